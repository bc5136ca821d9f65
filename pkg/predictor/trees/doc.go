// Package trees owns model files: a strict reader of LightGBM's text format in
// front of the library leaves, and the bundle of two heads and a manifest that
// makes a model.
//
// Leaves refuses what LightGBM 4 writes, and on damaged text it panics, loops
// or exhausts memory. So Read checks everything that a prediction depends on,
// and hands leaves a new text of version 3 that holds only what was checked.
// What Read accepts predicts what LightGBM itself predicts.
//
// What a feature means and what a prediction is used for belong to package
// predictor; where models lie on disk and which is active, to internal/models.
package trees
