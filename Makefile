# Every target below with a "##" comment is listed by `make help`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
GOLANGCI_VERSION := v2.15.0
export FIRSTTOKEN_DATA ?= $(abspath ../shared/data)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/firsttoken
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/firsttoken ./cmd/gateway

# The gateway gets its own foreground process group, so that Ctrl-C reaches it
# alone and its exit code is make's.
.PHONY: run
run: build ## Run the gateway on a simulated fleet (needs nothing but Go)
	@if [ -t 0 ]; then set -m; fi; bin/firsttoken serve --demo; exit $$?

.PHONY: test
test: ## Install what the tests need and run them
	test/run

.PHONY: lint
lint: ## Vet, format check and golangci-lint (installed into .cache)
	test/lint $(GOLANGCI_VERSION)

.PHONY: fuzz
fuzz: ## Fuzz every parser for FUZZTIME (30s) each
	test/fuzz $(or $(FUZZTIME),30s)

.PHONY: e2e
e2e: build ## Real engines (llama.cpp), failover and a replayed trace
	test/e2e/run

.PHONY: bench
bench: build ## Speed of decisions, and against direct, a minimal relay, nginx, HAProxy and Caddy
	go test -run '^$$' -bench 'Predict|Observe' ./pkg/predictor
	go test -run '^$$' -bench Decision ./pkg/router
	test/predict/run bench
	test/bench/run

.PHONY: eval-sim
eval-sim: build ## Hold the simulated engines against measured ones (minutes)
	bin/firsttoken sim validate --all

.PHONY: eval-predict
eval-predict: build ## Hold the predictions against truth, oracle and baselines (minutes); plots in bin/predict.html
	bin/firsttoken eval --trace azure2023_conv --trace azure2023_code --trace mooncake --fleet equal --fleet mixed --fleet wide \
	  --measured $(FIRSTTOKEN_DATA)/measured --html bin/predict.html --json bin/predict.json
	bin/firsttoken eval --trace azure2023_conv --trace azure2023_code --trace mooncake --fleet mixed --change
	bin/firsttoken eval --trace azure2023_conv --trace mooncake --fleet wide --load 0.8,1.1 --ablate

# EVAL=--full is five seeds of all requests, as docs/routing.md has them (hours);
# other flags are those of firsttoken replay targets.
.PHONY: eval-routing
eval-routing: build ## Hold the default policy against the best known rules (EVAL=--full: hours)
	bin/firsttoken replay targets $(or $(EVAL),--quick)

.PHONY: clean
clean: ## Remove what was built; .cache keeps installed tools
	rm -rf bin

.PHONY: bootstrap-model
bootstrap-model: ## train the LightGBM model that ships in the binary, on simulated fleets
	deploy/trainer/bootstrap
