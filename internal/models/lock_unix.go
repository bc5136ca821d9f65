//go:build unix

package models

import (
	"errors"
	"os"
	"syscall"
)

// exclude waits until no other open file has the lock.
func exclude(lock *os.File) error {
	for {
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
