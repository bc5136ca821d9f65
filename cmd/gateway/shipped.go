package main

import (
	"fmt"

	"github.com/firsttoken/firsttoken/deploy/models"
	"github.com/firsttoken/firsttoken/pkg/predictor"
	"github.com/firsttoken/firsttoken/pkg/predictor/trees"
)

// shippedModel is the trained model in the binary.
func shippedModel() (*trees.Bundle, error) {
	files, err := models.Bootstrap()
	if err != nil {
		return nil, err
	}
	b, err := trees.OpenWith(files, predictor.Names(), predictor.SchemaHash())
	if err != nil {
		return nil, fmt.Errorf("the model in the binary: %w", err)
	}
	return b, nil
}
