# `make run` and `make test` set up everything they need; Python 3.11 or newer is all that must be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor
# One more than cores: many tests wait for processes, servers and browsers.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# A file's tests run on one worker, which computes what they share once; tests/conftest.py puts long files first.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: setup run test lint docs browser broker kernels slow flower-versions dist bench figures reproduction constraints clean
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
	$(PIP) --editable '.[train,tensorboard,flower,web,tables,mqtt,dev]'
	@touch $@ $(VENV)/.run

setup: $(VENV)/.dev

# Seed 7 is not one of the calibration's own.
WEATHER := --set dataset=weather --set training.seed=7
run: $(VENV)/.run
	$(BIN)/dufl plan --out runs/paper-default
	$(BIN)/dufl compare --resume --out runs/digits
	$(BIN)/dufl compare --resume $(WEATHER) --policies static,keep-all,dufl --out runs/weather
	$(BIN)/dufl calibrate --set dataset=weather --out runs/weather-calibration
	$(BIN)/dufl plan runs/weather-calibration/calibrated.toml
	$(BIN)/dufl compare --resume runs/weather-calibration/calibrated.toml --set training.seed=7 --policies dufl --out runs/weather-calibrated

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).citation-file-format CITATION.cff
	$(SCHEMA).compose-spec examples/flower-deployment/compose.yaml
	$(BIN)/hadolint examples/flower-deployment/Dockerfile

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

browser:
	@tools/chromium

broker:
	@tools/mosquitto

# Numba compiles every kernel once; otherwise all test workers would compile them at the same time.
kernels: $(VENV)/.dev
	@run=$$(mktemp -d) && $(BIN)/dufl compare --set game.num_rounds=4 --set clients.count=3 --out $$run/run >/dev/null && rm -r $$run

# The rooms whose coverage has a floor; see [tool.coverage] in pyproject.toml.
MEASURED := tests/game tests/data tests/experiment
# The tests execute the notebooks, so the site is built without executing them once more.
# The modules are compiled first: hundreds of tests start a process, and each would compile them again where
# Python may not write bytecode. Linear algebra has one thread, because the workers occupy all cores.
test slow flower-versions: export OMP_NUM_THREADS = 1
test slow flower-versions: export OPENBLAS_NUM_THREADS = 1
test: $(VENV)/.dev
	$(BIN)/python -m compileall -q src tests docs
	DUFL_DOCS_EXECUTE=0 $(MAKE) --jobs=2 --output-sync kernels lint docs browser broker
	$(PYTEST) -m "not slow" --cov --cov-report=term $(MEASURED)
	$(PYTEST) -m "not slow" $(MEASURED:%=--ignore=%)

slow: $(VENV)/.dev kernels browser broker
	$(BIN)/pytest -n $(WORKERS) -m slow

# The tests of the room `flower` with the oldest and the newest Flower that pyproject.toml allows.
flower-versions: $(VENV)/.dev kernels
	tools/flower-versions $(BIN)/python $(VERSIONS)

# What a release uploads: the sdist, and the wheel built from it.
dist: $(VENV)/.dev
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/game.py
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/service.py
	$(BIN)/python benchmarks/explorer.py

# The pictures and tables in README.md and docs/.
figures: $(VENV)/.dev browser
	$(BIN)/python docs/figures.py

# docs/reproduction.md, from nothing: hours on two cores. What is there already is not run again.
REPRODUCE := $(BIN)/dufl reproduce --scale paper --out runs/reproduction
TASKS := --only 1.25 --only 0.75
CNN := --set game.num_rounds=30 --set clients.initial_volume=200 --set training.local_epochs=4
RESNET := $(CNN) --set clients.count=5 --set training.model=resnet18-coarse \
	--set training.momentum=0.9 --set training.batch_size=32
reproduction: $(VENV)/.dev
	$(REPRODUCE) convergence clients sensitivity updates leaders
	$(REPRODUCE) table --only mnist --only fmnist
	$(REPRODUCE) server $(CNN)
	$(REPRODUCE) table --only cifar10 $(TASKS) $(CNN)
	$(REPRODUCE) table --only svhn --only fedavg $(TASKS) $(CNN)
	$(REPRODUCE) table --only cifar100 --only fedavg $(TASKS) $(RESNET) --page docs/reproduction.md

# Resolve every extra anew and pin what came out.
constraints:
	rm -rf $(VENV)-resolve && $(PYTHON) -m venv $(VENV)-resolve
	$(VENV)-resolve/bin/pip install --quiet 'torch==2.13.0' hatchling
	$(VENV)-resolve/bin/pip install --quiet '.[train,tensorboard,flower,web,tables,mqtt,dev]'
	{ head -n 1 constraints.txt; $(VENV)-resolve/bin/pip freeze --exclude dufl | sed 's/^\(torch==[0-9.]*\)+.*/\1/' | sort -f; } > constraints.new
	mv constraints.new constraints.txt
	rm -rf $(VENV)-resolve

clean:
	rm -rf $(VENV) $(VENV)-flower-* site runs dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
