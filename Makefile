# `make` alone lists what there is to make. Each target sets up its own .venv from the pinned constraints.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
KVPRESS := .venv-kvpress
BENCH := .venv-bench
PIP := -m pip install --quiet --disable-pip-version-check

SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help
.PHONY: help demo demo-smollm2 test coverage quick test-lowest kvpress ray faults lint format dist bench bench-check bench-memory bench-explorer
.PHONY: docs browser clean

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

quick: $(VENV)/.dev ## the tests that answer in three to four minutes
	$(BIN)/pytest -m "not slow"

# Without model types and wheels: their table and their constraints are of the pinned versions.
test-lowest: $(LOWEST)/.test ## the tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/pytest tests/quick tests/end_to_end

# Another environment, because KVPress needs an older transformers: this one writes what that one loads.
kvpress: $(VENV)/.dev $(KVPRESS)/.test ## what KVPress makes of `ropewalk export --to kvpress`, in an environment of its own
	$(BIN)/python scripts/fetch_smollm2.py
	PYTHONPATH=tests $(BIN)/python tests/peers/prepare.py build/kvpress
	ROPEWALK_KVPRESS=$(CURDIR)/build/kvpress HF_HUB_OFFLINE=1 \
		$(KVPRESS)/bin/python -m pytest -c tests/peers/pytest.ini tests/peers/test_kvpress.py

# Beside the environment of the tests: Ray is large, and only these tests need it.
ray: $(VENV)/.ray ## the engine `ray` on a local cluster, and what it costs beside processes
	$(BIN)/pytest -n 0 -m ray tests/ray
	$(BIN)/python benchmarks/engines.py

# SEED chooses the faults, SCALE the share of them (0.05: a few minutes), MINUTES the time they may take; PAGE is a page
# of docs to write the counts into.
faults: $(VENV)/.dev ## kills, damaged files, full disks, runs at once and bad inputs, at random, and what came of them
	cd tests && ../$(BIN)/python -m faults --seed $(or $(SEED),0) --scale $(or $(SCALE),1) \
		--minutes $(or $(MINUTES),75) $(foreach kind,$(KINDS),--only $(kind)) $(if $(PAGE),--write ../$(PAGE))

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

bench: $(BENCH)/.run ## beside TransformerLens, nnsight, dumps and scikit-learn: benchmarks/results.md and a plot (one to two hours, alone on the machine)
	$(BENCH)/bin/python scripts/fetch_smollm2.py
	HF_HUB_OFFLINE=1 $(BENCH)/bin/python benchmarks/capture.py
	$(BENCH)/bin/python benchmarks/analysis.py
	$(BENCH)/bin/python benchmarks/scale.py
	$(BENCH)/bin/python benchmarks/start.py
	$(BENCH)/bin/python benchmarks/results.py

bench-check: $(BENCH)/.run ## do TransformerLens, nnsight and a dump capture the queries and keys that this project does?
	$(BENCH)/bin/python scripts/fetch_smollm2.py
	HF_HUB_OFFLINE=1 $(BENCH)/bin/python benchmarks/peers.py --check

bench-memory: $(VENV)/.dev ## memory of a capture against the context, 1K to 128K tokens
	$(BIN)/python benchmarks/memory.py --statistics moments frame profile behaviour sample buckets

bench-explorer: $(VENV)/.dev ## size, first paint and frames a second of the page of a large study, in a headless browser
	$(BIN)/python benchmarks/explorer.py

docs: $(VENV)/.dev ## docs/reference.md from the code, docs/models.md from checking every model type
	$(BIN)/python scripts/generate_reference.py
	$(BIN)/python scripts/generate_models_doc.py

browser: ## the headless browser that the report's test opens (Debian)
	command -v chromium || ($(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq chromium)

clean: ## remove the environment and everything built
	rm -rf $(VENV) $(LOWEST) $(KVPRESS) $(BENCH) build dist results src/*.egg-info .coverage .coverage.*
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

$(VENV)/.ray: $(VENV)/.dev
	$(BIN)/python $(PIP) --constraint constraints.txt --no-build-isolation --editable '.[dev,ray]'
	touch $@

$(KVPRESS)/.test: constraints-kvpress.txt
	$(PYTHON) -m venv $(KVPRESS)
	$(KVPRESS)/bin/python $(PIP) --constraint constraints-kvpress.txt kvpress pytest
	touch $@

$(BENCH)/.run: pyproject.toml constraints-bench.txt | $(BENCH)/bin/python
	$(BENCH)/bin/python $(PIP) --constraint constraints-bench.txt --no-build-isolation --editable '.[gguf,sklearn]' \
		transformer-lens nnsight
	touch $@

$(LOWEST)/.test: pyproject.toml constraints-lowest.txt | $(LOWEST)/bin/python
	$(LOWEST)/bin/python $(PIP) --constraint constraints-lowest.txt --no-build-isolation --editable '.[test]'
	touch $@
