# make quickstart  installs and runs the whole loop on the embedded model
# make test        installs what tests need and runs them
# make check       lint, formatting, types, docs
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# Threads that spin while they wait slow each other down on a shared machine.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: venv quickstart test check format bench bench-quick chaos test-vllm clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make venv PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (a few minutes the first time)"
	@$(PIP_INSTALL) -e '.[test,check]'
	@touch $@

quickstart: venv
	$(BIN)/grpo-pipeline iterate-rl --config configs/quickstart.toml

test: venv
	$(BIN)/python -m pytest --cov --cov-report=term:skip-covered --cov-fail-under=90

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*
