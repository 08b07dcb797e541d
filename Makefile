# Everything a fresh checkout needs. `make demo` and `make test` install into .venv by themselves.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.delayd-installed
ARGS ?=

.PHONY: help setup demo test test-full check check-fast format clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## the checkout's own .venv with delayd in it

$(STAMP): pyproject.toml
	@python=""; \
	for candidate in "$${PYTHON:-}" python3.12 python3.11 python3; do \
	  if [ -n "$$candidate" ] && "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "delayd needs Python 3.11 or 3.12 with the venv module: install it (Debian: apt-get install python3 python3-venv) or name one with PYTHON=" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$($$python --version)"; \
	"$$python" -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[audit,dev-cluster,test]'
	@touch $@

demo: setup  ## the main job, on real parts: 20,000 time-outs, a third of them cancelled, through a killed master (ARGS="--orders 200000")
	$(BIN)/delayd dev demo $(ARGS)

test: check-fast  ## every check and every test (real Kafka, real etcd, real kills)
	$(BIN)/python -m pytest tests/conformance tests/integration tests/guides tests/audit $(ARGS)

test-full: setup  ## the tests of loads at full size, with their figures: random requests, the storm of cancels, planted defects
	$(BIN)/python -m pytest -s --full tests/integration/test_random_requests.py tests/integration/test_storm.py tests/integration/test_audit_defects.py $(ARGS)

check: test  ## the same as test: format, lint, types and every test

check-fast: setup  ## the inner loop: format, lint, types, unit tests, simulation; without Spark
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests --ignore=tests/conformance --ignore=tests/integration --ignore=tests/guides --ignore=tests/audit $(ARGS)

format: setup  ## rewrite the code in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what setup and the tests made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
