// Package samples owns what is kept of predictions and of what became of them:
// a bounded log of predictor.Sample in Parquet files, reading it back, summing
// it up, and judging a new model against the one that serves.
//
// A file holds one row an attempt: one column a feature, by its name in the
// schema, and what every estimator said. Its key-value metadata names the
// schema, so that models and samples of different schemas never meet. There is
// nothing of prompts, keys or users in it.
//
// When a sample is taken belongs to whoever routes; training to deploy/trainer;
// what a model file looks like to package trees.
package samples
