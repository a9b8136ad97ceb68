# The commands of the README and of CI. Each one first installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

PYTEST := $(BIN)/python -m pytest
# Two test files at a time: most tests wait for the processes that they start.
PARALLEL := --numprocesses 2 --dist loadfile

.PHONY: train test suites check format docs learning bench clean

train: .venv/train.stamp  ## train Pendulum-v1 live until it is solved
	@$(BIN)/spreeze train Pendulum-v1 --target -200 --time 5m

test: .venv/dev.stamp  ## all tests except the long learning tests
	$(PYTEST) $(PARALLEL) -m "not learning"

suites: .venv/suites.stamp  ## one task of every suite, EnvPool included; installs another 1.4 GB
	$(PYTEST) $(PARALLEL) tests/suites tests/unit/envs/test_envpool.py

check: .venv/dev.stamp  ## format, lint, types, import layers, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) $(PARALLEL) tests/unit

format: .venv/dev.stamp  ## format and fix the sources the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/dev.stamp  ## write the generated tables in README.md and docs/
	$(BIN)/python bench/tables.py
	$(BIN)/python docs/knobs.py

learning: .venv/dev.stamp  ## train real tasks to real scores: about half an hour on two cores
	$(PYTEST) -m learning -s --timeout 1200

bench: .venv/dev.stamp  ## time to score on Pendulum-v1 over five seeds
	$(BIN)/spreeze bench time-to-score Pendulum-v1 --cold --json bench/results/time-to-score-Pendulum-v1-$(shell nproc)cores.json

clean:  ## remove .venv
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Spreeze needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 train"; exit 1; }
	@echo "Setting up .venv (only once; PyTorch is large) ..."
	@$(PYTHON) -m venv .venv || \
	  { echo "$(PYTHON) has no venv module. On Debian: apt install python3-venv"; rm -rf .venv; exit 1; }

.venv/train.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@$(INSTALL) -e '.[classic,dashboard]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@$(INSTALL) -e '.[dev]'
	@touch $@ .venv/train.stamp

.venv/suites.stamp: .venv/dev.stamp
	@$(INSTALL) -e '.[dev,suites]'
	@touch $@
