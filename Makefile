# Steadyfleet: `make help` explains each target. Everything is set up on first use; nothing is needed but Python 3.11, and
# for the cluster targets root and Go.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
UV := $(shell command -v uv 2>/dev/null || echo .cache/uv/bin/uv)

.PHONY: help
help: ## Say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

.PHONY: demo
demo: $(VENV) ## A real cluster, real vLLM on CPU, one node with a flipped weight bit: found, marked, repaired, cleared
	$(RUN) -m tests.demo

.PHONY: test
test: lint test-fast test-wheel test-cluster ## Every test, on a real API server and a real three-node cluster

.PHONY: test-fast
test-fast: $(VENV) ## Unit and contract tests alone, without a cluster (under a minute)
	$(RUN) -m pytest tests/unit tests/contract -m "not cluster and not engine" -n auto

.PHONY: test-cluster
test-cluster: $(VENV) ## Tests on the real API server, kubelet, containerd, Helm, Prometheus and vLLM
	$(RUN) -m tests.cluster prepare
	@# Real kubelets and engines on two busy cores: a test that fails once is run once more, and told as such.
	$(RUN) -m pytest tests/cluster --reruns 1
	$(RUN) -m pytest tests/operator tests/chart
	$(RUN) -m pytest tests/e2e --reruns 1

.PHONY: test-wheel
test-wheel: $(VENV) ## Build the wheel and test it in an environment without the checkout, on Python 3.11 and 3.10
	$(RUN) -m tests.wheel

.PHONY: lint
lint: $(VENV) ## Style, types, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

.PHONY: prepare
prepare: $(VENV) ## Build the cluster's programs, images and engine into the cache (about 15 minutes from nothing)
	$(RUN) -m tests.cluster prepare

.PHONY: cluster-up
cluster-up: $(VENV) ## Start the three-node cluster and leave it running
	$(RUN) -m tests.cluster up --detach

.PHONY: cluster-down
cluster-down: $(VENV) ## Take it down, with everything that an earlier one left behind
	$(RUN) -m tests.cluster down

.PHONY: bench-visit
bench-visit: $(VENV) ## Measure a visit against the bare engine, the operator's memory, and report to condition
	$(RUN) -m tests.bench.visit

.PHONY: bench-compare
bench-compare: $(VENV) ## Measure a comparison of two launches (32 prompts x 128 tokens x top-20, under 20 ms)
	$(RUN) -m tests.bench.compare

.PHONY: clean
clean: ## Remove what was built inside the checkout (the cache outside of it stays)
	rm -rf $(VENV) .cache dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV): pyproject.toml uv.lock
	@test -x "$(UV)" || { echo "installing uv into .cache/uv"; $(PYTHON) -m venv .cache/uv && .cache/uv/bin/pip install -q "uv>=0.5"; }
	$(UV) sync -q --frozen --extra operator --group dev
	@touch $(VENV)
