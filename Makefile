# `make run` and `make test` set up everything they need; Python 3.11 or newer is all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
WORKERS ?= auto

.PHONY: setup run test lint docs slow bench figures constraints clean
.DEFAULT_GOAL := run

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "DUFL needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# What a user needs, and nothing more.
$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing dufl into $(VENV)"
	$(PIP) --editable .
	@touch $@

# What a developer and CI need.
$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing dufl and its development tools into $(VENV)"
	$(PIP) --editable '.[train,tensorboard,dev]'
	@touch $@ $(VENV)/.run

setup: $(VENV)/.dev

run: $(VENV)/.run
	$(BIN)/dufl plan --out runs/paper-default
	$(BIN)/dufl compare --resume --out runs/digits

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: lint docs
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

slow: $(VENV)/.dev
	$(BIN)/pytest -n $(WORKERS) -m slow

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/game.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/training.py

# The pictures and tables in README.md and docs/.
figures: $(VENV)/.dev
	$(BIN)/python docs/figures.py

# Resolve every extra anew and pin what came out.
constraints:
	rm -rf $(VENV)-resolve && $(PYTHON) -m venv $(VENV)-resolve
	$(VENV)-resolve/bin/pip install --quiet 'torch==2.13.0' hatchling
	$(VENV)-resolve/bin/pip install --quiet '.[train,tensorboard,flower,web,dev]'
	{ head -n 1 constraints.txt; $(VENV)-resolve/bin/pip freeze --exclude dufl | sed 's/^\(torch==[0-9.]*\)+.*/\1/' | sort -f; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV)-resolve

clean:
	rm -rf $(VENV) site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
