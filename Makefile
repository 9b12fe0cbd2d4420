# Everything runs in .venv, which is made and filled on first use and again whenever a lock changes. The lock follows from
# the version of Python: requirements/py311.lock for 3.11, with TensorFlow Federated; requirements/py312.lock for 3.12 and
# 3.13, without it. Of several versions the first of this list is used that can make environments: on macOS none before
# 3.12, as the first lock is for Linux.
PYTHONS := python3.11 python3.13 python3.12 python3
USABLE := import sys, ensurepip, venv; sys.exit(not (3, 11 + (sys.platform == "darwin")) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(or $(shell for python in $(PYTHONS); do $$python -c '$(USABLE)' 2>/dev/null && echo $$python && break; done),python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

FUZZ_INPUTS ?= 600
# Keeps the tests that pytest has compiled, under PYTHONDONTWRITEBYTECODE too: 13 CPU seconds of each worker.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What `make test` does before the tests.
CHECKS ?= lint docs

.PHONY: help demo test test-deep test-fuzz docs lint format deployment clean

help:
	@echo "Python 3.11, 3.12 or 3.13: the first that is found of $(PYTHONS), or make PYTHON=..."
	@echo "make demo    train, evaluate and export a federated Bayesian model; its report is demo/report.html"
	@echo "make test    the verdict: formatting, lint, types, documentation and the fast tests"
	@echo "make test-deep  the rest: kills, restarts, notebooks, studies, every combination; PART=1/2 for half of the files"
	@echo "make test-fuzz  broken files for every reader: FUZZ_INPUTS of them"
	@echo "make docs    the documentation site: build/docs/index.html"
	@echo "make lint    formatting, lint and types"
	@echo "make format  format the code"
	@echo "make deployment  an environment of a server or a site, with NVIDIA FLARE, in .venvs/deployment"
	@echo "make clean   remove environments, demo and caches"
	@echo "Rarer tasks (notebooks, tables of the studies, mutants, clusters, wheels ...): .venv/bin/nox --list"

$(INSTALLED): requirements/py311.lock requirements/py312.lock setup.cfg pyproject.toml
	@$(PYTHON) -c '$(USABLE)' 2>/dev/null || { echo "tfp_bfl needs Python 3.11, 3.12 or 3.13 with its module venv, and $(PYTHON) is not one: install one (3.11 adds TensorFlow Federated), or name it with make PYTHON=..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	lock=$$($(BIN)/python -c 'import sys; print("requirements/py311.lock" if sys.version_info < (3, 12) else "requirements/py312.lock")') && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $$lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(INSTALLED)
	@rm -rf demo
	$(BIN)/tfp-bfl run --output demo

test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs 2 $(CHECKS)
	@mkdir -p build
	$(PYTEST) -m "not deep" --cpu-times=build/cpu-fast.txt $(TESTS)

test-deep: $(INSTALLED)
	@mkdir -p build
# The longest file first, so that no process waits for it at the end.
	$(PYTEST) -m "deep and not long" --timeout=1800 --cpu-times=build/cpu-deep.txt $(if $(PART),--part=$(PART)) tests/test_notebooks.py tests experiments

test-fuzz: $(INSTALLED)
	TFP_BFL_FUZZ_INPUTS=$(FUZZ_INPUTS) $(PYTEST) tests/fuzz

DEPLOYMENT := .venvs/deployment

deployment: $(DEPLOYMENT)/.installed

$(DEPLOYMENT)/.installed: requirements/deployment.lock requirements/deployment312.lock setup.cfg pyproject.toml
	@rm -rf $(DEPLOYMENT)
	$(PYTHON) -m venv $(DEPLOYMENT)
	lock=$$($(DEPLOYMENT)/bin/python -c 'import sys; print("requirements/deployment%s.lock" % ("312" if sys.version_info >= (3, 12) else ""))') && \
	$(DEPLOYMENT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $$lock
	$(DEPLOYMENT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Builds the tables first: docs/_extensions/tables.py. A failed build is repeated whole: unchanged pages are not warned about twice.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -c docs -b html -j 2 -q -W --keep-going . build/docs || { rm -rf build/docs/.doctrees; exit 1; }

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	-git clean -fdXq experiments
	rm -rf $(VENV) .venvs demo federation_demo build docs/generated dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
