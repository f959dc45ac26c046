# SPDX-License-Identifier: Apache-2.0
# Everything a newcomer needs: `make demo` and `make test`.  `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= auto
MODEL  ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format conformance bench digits clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready ## Make the virtual environment with all that tests need

$(VENV)/.ready: pyproject.toml tests/setup.sh
	PYTHON="$(PYTHON)" sh tests/setup.sh venv "$(VENV)"
	@touch $@

demo: setup ## Compile ResNet-18 (or MODEL=path.onnx) to C, run it from C and Python, compare
	$(BIN)/python examples/demo.py $(if $(MODEL),--model "$(MODEL)")

test: setup ## Run the tests
	sh tests/setup.sh tools
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-all: setup ## Run the tests, slow ones included
	sh tests/setup.sh tools
	$(BIN)/python -m pytest -n $(JOBS)

lint: setup ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'runtime_c/*.c' 'runtime_c/*.h')
	$(BIN)/mypy

format: setup ## Format Python and C sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'runtime_c/*.c' 'runtime_c/*.h')

conformance: setup ## Run the official ONNX suite through compiled C and print the counts
	$(BIN)/python tests/conformance/run.py

bench: setup ## Measure and print the table of docs/performance.md
	$(BIN)/python benchmarks/run.py

digits: setup ## Train examples/digits again
	$(BIN)/python -m pip install -q -e ".[train]"
	$(BIN)/python examples/digits/train.py

clean: ## Remove what the other targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
