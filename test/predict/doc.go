// Package predict holds predictions to LightGBM's own: it trains models with
// its Python package, and compares what both make of the same rows. The script
// "run" beside it installs the package first.
//
// It leaves to package trees what needs no training, and damaged models.
package predict
