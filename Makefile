# `make` alone lists what there is to make. Each target sets up its own .venv from the pinned constraints.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
PIP := -m pip install --quiet --disable-pip-version-check

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help
.PHONY: help demo demo-smollm2 test coverage quick test-lowest lint format dist bench docs browser clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(VENV)/.run ## the built-in study: ten trained checkpoints, tables, figures, report
	$(BIN)/ropewalk demo

demo-smollm2: $(VENV)/.gguf ## a real pretrained model: SmolLM2-135M, all 270 heads
	$(BIN)/python scripts/fetch_smollm2.py
	$(BIN)/ropewalk run configs/smollm2_135m.yaml

test: $(VENV)/.dev ## the tests
	$(BIN)/pytest $(if $(COVERAGE),--cov=ropewalk --cov-report=term)

# Tracing branches costs a third more computing time, so it is asked for: `make test COVERAGE=1`, as CI does.
coverage: ## the tests, and which lines and branches they miss
	$(MAKE) test COVERAGE=1

quick: $(VENV)/.dev ## the tests that answer within a minute
	$(BIN)/pytest -m "not slow"

# Without model types and wheels: their table and their constraints are of the pinned versions.
test-lowest: $(LOWEST)/.test ## the tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/pytest tests/quick tests/end_to_end

lint: $(VENV)/.dev ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/.dev ## wheel and source archive in dist/, and a look into both
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	DIST=dist $(BIN)/pytest -n 0 tests/packaging/test_dist.py

bench: $(VENV)/.gguf ## capture overhead and analysis speed, measured side by side
	$(BIN)/python scripts/fetch_smollm2.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/analysis.py

docs: $(VENV)/.dev ## docs/reference.md from the code, docs/models.md from checking every model type
	$(BIN)/python scripts/generate_reference.py
	$(BIN)/python scripts/generate_models_doc.py

browser: ## the headless browser that the report's test opens (Debian)
	command -v chromium || ($(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium)

clean: ## remove the environment and everything built
	rm -rf $(VENV) $(LOWEST) build dist results src/*.egg-info .coverage .coverage.*
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# Setuptools first, so that the package is built with the pinned one and not with the newest.
%/bin/python:
	$(PYTHON) -m venv $*
	$@ $(PIP) --constraint constraints.txt setuptools

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(PIP) --constraint constraints.txt --no-build-isolation --editable .
	touch $@

$(VENV)/.gguf: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(PIP) --constraint constraints.txt --no-build-isolation --editable '.[gguf]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python $(PIP) --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

$(LOWEST)/.test: pyproject.toml constraints-lowest.txt | $(LOWEST)/bin/python
	$(LOWEST)/bin/python $(PIP) --constraint constraints-lowest.txt --no-build-isolation --editable '.[test]'
	touch $@
