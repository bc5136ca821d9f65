// Package e2e runs the gateway with real parts: llama.cpp engines, official
// SDKs, a recorded trace. test/e2e/run installs them and runs the tests, which
// the build tag e2e keeps out of everyday runs.
package e2e
