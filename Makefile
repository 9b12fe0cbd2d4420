# Everything runs in .venv, which is made and filled on first use and again whenever a lock changes. The lock follows from
# the version of Python: requirements/py311.lock for 3.11, with TensorFlow Federated; requirements/py312.lock for 3.12 and
# 3.13, without it. Of several versions the first of this list is used that can make environments.
PYTHONS := python3.11 python3.13 python3.12 python3
USABLE := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(or $(shell for python in $(PYTHONS); do $$python -c '$(USABLE)' 2>/dev/null && echo $$python && break; done),python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

INPUTS ?= 10000
FUZZ_INPUTS ?= 600
SAMPLE ?= 200
# Keeps the tests that pytest has compiled, under PYTHONDONTWRITEBYTECODE too: 13 CPU seconds of each worker.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# What `make test` does before the tests.
CHECKS ?= lint docs
SEEDS ?= 0 1 2 3 4 5 6 7 8 9

.PHONY: clusters test-clusters test-flower deployment test-deployment help sbom demo test test-seeds test-deep test-long test-fuzz environments wheel fuzz mutants notebooks measured tables docs lint format clean

help:
	@echo "Python 3.11, 3.12 or 3.13: the first that is found of $(PYTHONS), or make PYTHON=..."
	@echo "make demo    train, evaluate and export a federated Bayesian model; its report is demo/report.html"
	@echo "make test    the verdict: formatting, lint, types, documentation and the fast tests"
	@echo "make test-deep  the rest: kills, restarts, notebooks, studies, every combination; PART=1/2 for half of the files"
	@echo "make test-long  what takes longest of it: hundreds of rounds, ResNet-20, cells of studies"
	@echo "make test-seeds  the fast tests under ten base seeds, or make test-seeds SEEDS=\"1 2\""
	@echo "make environments  the library without TensorFlow Federated, in fresh environments on Python 3.11 to 3.13"
	@echo "make deployment  an environment of a server or a site, with NVIDIA FLARE, in .venvs/deployment"
	@echo "make test-flower  the strategy for Flower and its program, with PyTorch, in .venvs/flower"
	@echo "make test-deployment  a federation of processes there: its bits, and what kills and strangers come to"
	@echo "make clusters  an environment of a cluster's machine, with Ray, in .venvs/clusters"
	@echo "make test-clusters  Ray over network namespaces (as root): its bits, lost machines, strangers, unseen data"
	@echo "make wheel   a wheel in fresh environments on Python 3.11 to 3.13"
	@echo "make fuzz    broken files for every reader: $(INPUTS) of them, or make fuzz INPUTS=..."
	@echo "make mutants whether the tests notice $(SAMPLE) small faults of the arithmetic, or make mutants SAMPLE=..."
	@echo "make sbom    what is installed, with licences: build/sbom.json (CycloneDX) and build/NOTICE"
	@echo "make notebooks  runs them, and saves them with what they show"
	@echo "make measured  runs what the numbers and the picture of the documentation are of, and writes them"
	@echo "make tables  the tables and figures of the studies, from their records"
	@echo "make docs    the documentation site: build/docs/index.html"
	@echo "make format  format the code"
	@echo "make clean   remove .venv, demo and caches"

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

# Not in CI: ten times as long as the fast tests.
test-seeds: $(INSTALLED)
	@failed=; for seed in $(SEEDS); do \
		$(PYTEST) -m "not deep" --base-seed=$$seed || failed="$$failed $$seed"; \
	done; [ -z "$$failed" ] || { echo "The fast tests failed under the base seeds$$failed."; exit 1; }

test-deep: $(INSTALLED)
	@mkdir -p build
# The longest file first, so that no process waits for it at the end.
	$(PYTEST) -m "deep and not long" --timeout=1800 --cpu-times=build/cpu-deep.txt $(if $(PART),--part=$(PART)) tests/test_notebooks.py tests

test-long: $(INSTALLED)
	$(PYTEST) -m long --timeout=1800

test-fuzz: $(INSTALLED)
	TFP_BFL_FUZZ_INPUTS=$(FUZZ_INPUTS) $(PYTEST) tests/fuzz

mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants.run --sample $(SAMPLE) --jobs 2 --deep

sbom: $(INSTALLED)
	$(PYTHON) -m venv .venvs/sbom
	.venvs/sbom/bin/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0 pip-licenses==5.5.5
	@mkdir -p build
	.venvs/sbom/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom.json $(BIN)/python
	.venvs/sbom/bin/pip-licenses --python $(BIN)/python --with-license-file --no-license-path --with-urls --format plain-vertical --output-file build/NOTICE

# make environments TESTS=tests/files runs these alone.
environments:
	tests/environments.sh $(TESTS)

DEPLOYMENT := .venvs/deployment

deployment: $(DEPLOYMENT)/.installed

$(DEPLOYMENT)/.installed: requirements/deployment.lock setup.cfg pyproject.toml
	@rm -rf $(DEPLOYMENT)
	$(PYTHON) -m venv $(DEPLOYMENT)
	$(DEPLOYMENT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/deployment.lock
	$(DEPLOYMENT)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

test-deployment: deployment
	$(DEPLOYMENT)/bin/python -m pytest -q -p no:cacheprovider tests/sites/test_ledger.py tests/sites/test_flare.py tests/sites/interop/test_flare.py

CLUSTERS := .venvs/clusters

clusters: $(CLUSTERS)/.installed

$(CLUSTERS)/.installed: requirements/clusters.lock setup.cfg pyproject.toml
	@rm -rf $(CLUSTERS)
	$(PYTHON) -m venv $(CLUSTERS)
	$(CLUSTERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/clusters.lock
	$(CLUSTERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

test-clusters: clusters
	$(CLUSTERS)/bin/python -m pytest -q -p no:cacheprovider tests/clusters

test-flower:
	tests/flower.sh

wheel:
	tests/wheel.sh

fuzz: $(INSTALLED)
	TFP_BFL_FUZZ_NEW=1 TFP_BFL_FUZZ_INPUTS=$(INPUTS) $(BIN)/python -m pytest -s --timeout=0 tests/fuzz

notebooks: $(INSTALLED)
	$(BIN)/python docs/execute_notebooks.py

measured: $(INSTALLED)
	$(BIN)/python docs/measure.py

tables: $(INSTALLED)
	$(BIN)/python -m experiments.build_tables

# Builds the tables first: docs/_extensions/tables.py.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -c docs -b html -j 2 -q -W --keep-going . build/docs

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
