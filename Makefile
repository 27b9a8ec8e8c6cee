# One entry point for people and CI. `make help` lists the targets.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
KEEP ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types contracts docs wheel-test soak bench-overhead bench-detection bench-rules tools clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is rebuilt only when what it is made from changes.
$(BIN)/.ready: pyproject.toml requirements/constraints.txt
	@requirements/system.sh venv "$(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (torch included: this takes a minute or two, once) ..."
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq -c requirements/constraints.txt -e '.[dev]'
	@touch $@

setup: $(BIN)/.ready ## build the virtual environment (VENV=... overrides .venv)

demo: setup ## watch a real 2-rank run in this terminal (KEEP=1 leaves the page up)
	@$(BIN)/caboose demo $(if $(KEEP),--keep)

tools: ## install the Debian packages the tests use (promtool, chromium)
	@requirements/system.sh tests

# Quick tests run on all cores; the slow ones, which measure times and sizes or start ranks of their own, one by one.
test: setup tools ## run all tests (ARGS=... runs pytest with those instead)
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@$(BIN)/python -m pytest -n auto -m "not slow"
	@$(BIN)/python -m pytest -m slow
endif

lint: setup ## check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## check types
	@$(BIN)/mypy

contracts: setup ## check who may import whom
	@$(BIN)/lint-imports

docs: setup ## write the generated parts of docs/ anew
	@$(BIN)/python docs/generate.py

wheel-test: setup tools ## build the wheel and run the tests against it, installed (all but the slow ones, and the page)
	@requirements/wheel-test.sh $(BIN)/python -n auto -m "not slow" tests/wire tests/daemon tests/agent
	@requirements/wheel-test.sh $(BIN)/python tests/browser tests/integration/test_demo.py -k "spike"

soak: setup ## a million simulated steps: the daemon's memory must stay flat (takes a while)
	@$(BIN)/python -m pytest tests/daemon/test_memory.py --soak -s

bench-overhead: setup ## what the agent costs a step, beside others (long; ARGS=--quick for a minute's look)
	@$(BIN)/python -m pip install -qq -c requirements/constraints.txt -e '.[bench]'
	@$(BIN)/python bench/overhead.py $(ARGS)

bench-detection: setup ## how good the rules are on labelled logs (CORPUS=DIR; ARGS=--check)
	@test -n "$(CORPUS)" || { echo "say where the labelled logs are: make bench-detection CORPUS=DIR"; exit 2; }
	@$(BIN)/python bench/detection.py $(CORPUS) $(ARGS)

bench-rules: setup ## what judging a step costs the daemon, rule by rule (ARGS=--quick for a short look)
	@$(BIN)/python bench/rules.py $(ARGS)

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) .venv-wheel dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
