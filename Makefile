# `make` alone lists what there is to make. Each target sets up its own .venv from the pinned constraints.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help
.PHONY: help demo demo-smollm2 test lint format bench docs browser clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(VENV)/.run ## the built-in study: ten trained checkpoints, tables, figures, report
	$(BIN)/ropewalk demo

demo-smollm2: $(VENV)/.gguf ## a real pretrained model: SmolLM2-135M, all 270 heads
	$(BIN)/python scripts/fetch_smollm2.py
	$(BIN)/ropewalk run configs/smollm2_135m.yaml

test: $(VENV)/.dev ## the tests
	$(BIN)/pytest

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.gguf ## capture overhead and analysis speed, measured side by side
	$(BIN)/python scripts/fetch_smollm2.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/analysis.py

docs: $(VENV)/.dev ## docs/models.md, from checking every model type
	$(BIN)/python scripts/generate_models_doc.py

browser: ## the headless browser that the report's test opens (Debian)
	command -v chromium || ($(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium)

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist results src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable .
	touch $@

$(VENV)/.gguf: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[gguf]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	touch $@
