# SPDX-License-Identifier: Apache-2.0
# Everything a newcomer needs: `make demo` and `make test`.  `make help` lists the rest.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One worker more than processors, because workers wait for compilers and other commands.
JOBS   ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() + 1)")
MODEL  ?=
TIME   ?= 10m
SEED   ?=
ARGS   ?=
# Each worker gets one half of the files, so that modules and what their tests share are made in one process only.
PYTEST := -n $(JOBS) --dist worksteal
QUICK  := tests/arch tests/ir tests/relay tests/golden tests/errors tests/plan tests/passes tests/ops/test_registry.py \
  tests/codegen/test_printer.py tests/codegen/test_dialects.py tests/runtime/test_session.py tests/frontend/test_graph_conversion.py \
  tests/cli/test_commands.py tests/e2e/test_compile_api.py

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cuda demo-embedded demo-llm demo-web firmware-tools digits quick test test-all fuzz fuzz-kernels lint format docs conformance zoo bench train clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.test ## Make the virtual environment with all that tests need

$(VENV)/.test: pyproject.toml tests/setup.sh
	PYTHON="$(PYTHON)" sh tests/setup.sh venv "$(VENV)" test
	@touch $(VENV)/.verify $(VENV)/.docs $@

$(VENV)/.verify $(VENV)/.docs: $(VENV)/.%: pyproject.toml tests/setup.sh
	PYTHON="$(PYTHON)" sh tests/setup.sh venv "$(VENV)" $*
	@touch $@

demo: $(VENV)/.verify ## Compile ResNet-18 (or MODEL=path.onnx ARGS="--dim batch=1") to C, run it from C and Python, compare
	$(BIN)/python -m examples.demo $(if $(MODEL),--model "$(MODEL)") $(ARGS)

demo-cuda: $(VENV)/.test ## Compile ResNet-18 (or MODEL=...) for GPUs, run it on one or emulated, compare
	$(BIN)/python -m examples.demo --target cuda --cuda-arch 80,90 --output build/demo-cuda $(if $(MODEL),--model "$(MODEL)") $(ARGS)

demo-embedded: $(VENV)/.verify firmware-tools ## Compile the quantized digits network to firmware, run it on an emulated Cortex-M4
	$(MAKE) -s -C examples/embedded PYTHON="$$(cd "$(BIN)" && pwd)/python"

demo-llm: $(VENV)/.verify ## Compile a small language model (MODEL=decode.onnx TOKENIZER=...) to a C program, let it continue a text
	$(MAKE) -s -C examples/llm PYTHON="$$(cd "$(BIN)" && pwd)/python" \
	  $(if $(MODEL),MODEL="$(abspath $(MODEL))") $(if $(TOKENIZER),TOKENIZER="$(abspath $(TOKENIZER))")

demo-web: $(VENV)/.verify ## Serve a page that recognizes digits drawn with the mouse (needs clang-19 and lld-19)
	$(BIN)/python -m examples.web.build build/web $(ARGS)

firmware-tools: ## Install compilers and emulators for microcontrollers, on Debian and Ubuntu as root
	sh tests/setup.sh firmware-tools

digits: $(VENV)/.verify ## Classify handwritten digits from C and from Python
	$(MAKE) -C examples/digits PYTHON="$$(cd "$(BIN)" && pwd)/python"

quick: setup ## Run the tests that a change most likely breaks
	$(BIN)/python -m pytest $(PYTEST) -m "not slow" $(QUICK)

test: setup ## Run the tests, long sweeps and expensive tests by a seeded share (AOTC_TEST_SEED)
	sh tests/setup.sh tools
	$(BIN)/python -m pytest $(PYTEST) -m "not slow"

test-all: setup ## Run the tests, all cases of all sweeps included, which takes hours
	sh tests/setup.sh tools
	PYTHON="$(PYTHON)" sh tests/setup.sh package-tools build/package-tools
	$(BIN)/python -m pytest $(PYTEST) --hypothesis-profile=random

fuzz: setup ## Fuzz the readers and compare executions of random graphs for TIME (10m, 1h), from SEED or a random one
	$(BIN)/python -m tests.fuzz --time $(TIME) $(if $(SEED),--seed $(SEED))

fuzz-kernels: setup ## Compare C compilers and the interpreter on random kernels, for TIME, from SEED or a random one
	sh tests/setup.sh tools
	$(BIN)/python -m tests.fuzz --kinds kernels --time $(TIME) $(if $(SEED),--seed $(SEED))

lint: setup ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'runtime_c/*.c' 'runtime_c/*.h' 'runtime_c/*.cpp' 'examples/*.c')
	$(BIN)/mypy
	$(BIN)/codespell

format: setup ## Format Python and C sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'runtime_c/*.c' 'runtime_c/*.h' 'runtime_c/*.cpp' 'examples/*.c')

docs: $(VENV)/.docs ## Build the site of docs/ into build/docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

conformance: setup ## Run the official ONNX suite through compiled C and print the counts
	$(BIN)/python tests/conformance/run.py

zoo: setup ## Compile architectures drawn from other libraries, and write docs/zoo.md
	$(BIN)/python -m pip install -q -e ".[zoo]"
	$(BIN)/python -m tests.zoo --write

bench: setup ## Measure and print the table under "The figures" in docs/performance.md
	$(BIN)/python -m benchmarks.run

train: setup ## Train examples/digits again
	$(BIN)/python -m pip install -q -e ".[train]"
	$(BIN)/python examples/digits/train.py

clean: ## Remove what the other targets made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
