//go:build !unix

package models

import (
	"errors"
	"os"
)

func exclude(*os.File) error {
	return errors.New("models can be published and activated on Unix systems only")
}
