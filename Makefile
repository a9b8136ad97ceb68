# The front doors. Each sets up what is missing; CI calls only these.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

PYTEST := $(BIN)/python -m pytest
# Two files of tests at a time: most wait for processes that they have started.
SIDE_BY_SIDE := --numprocesses 2 --dist loadfile

.PHONY: train test suites check format learning bench clean

train: .venv/train.stamp  ## train Pendulum-v1 live until it is solved
	@$(BIN)/spreeze train Pendulum-v1 --target -200 --time 5m

test: .venv/dev.stamp  ## everything but the long learning tests
	$(PYTEST) $(SIDE_BY_SIDE) -m "not learning"

suites: .venv/suites.stamp  ## a task of every suite, EnvPool included: 1.4 GB of packages more
	$(PYTEST) $(SIDE_BY_SIDE) tests/suites tests/unit/envs/test_envpool.py

check: .venv/dev.stamp  ## format, lint, types, layers, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) $(SIDE_BY_SIDE) tests/unit

format: .venv/dev.stamp  ## rewrite the sources as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

learning: .venv/dev.stamp  ## real tasks to real scores: about half an hour on two cores
	$(PYTEST) -m learning -s --timeout 1200

bench: .venv/dev.stamp  ## time to score on Pendulum-v1 over five seeds
	$(BIN)/spreeze bench time-to-score Pendulum-v1 --cold --json bench/results/time-to-score-Pendulum-v1-$(shell nproc)cores.json

clean:
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Spreeze needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 train"; exit 1; }
	@echo "Setting up .venv (once; PyTorch is large) ..."
	@$(PYTHON) -m venv .venv || \
	  { echo "Python has no venv module here. Debian: apt install python3-venv"; rm -rf .venv; exit 1; }

.venv/train.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@$(INSTALL) -e '.[classic,dashboard]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@$(INSTALL) -e '.[dev]'
	@touch $@ .venv/train.stamp

.venv/suites.stamp: .venv/dev.stamp
	@$(INSTALL) -e '.[dev,suites]'
	@touch $@
