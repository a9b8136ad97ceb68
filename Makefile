# The commands of the README and of CI. Each one first installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Every package must have a hash of the lock; --no-deps, because the lock lists all of them.
LOCKED := $(PIP) --require-hashes --no-deps
# Then Spreeze itself and PyTorch, which no lock can name: its build depends on the machine (see constraints.txt).
INSTALL := $(PIP) --no-build-isolation -c constraints.txt

PYTEST := $(BIN)/python -m pytest
# Two test files at a time: most tests wait for the processes that they start.
PARALLEL := --numprocesses 2 --dist loadfile

# Tools that are no dependencies of the project, in a virtual environment that is removed afterwards.
TOOLS = set -e; tools=$$(mktemp -d); trap 'rm -rf "$$tools"' EXIT; $(PYTHON) -m venv "$$tools"; \
  "$$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r locks/tools.txt
# PyTorch and what comes with its build for GPUs.
NOT_LOCKED := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
  nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
  nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --custom-compile-command "make lock"
PROJECT := $(COMPILE) $(NOT_LOCKED:%=--no-emit-package %) -c constraints.txt
# The frameworks that `spreeze bench time-to-score` compares with.
PEERS := $(basename $(wildcard src/spreeze/bench/peers/locks/*.in))
BUILD_TOOLS := printf 'hatchling\neditables\n'
TOOL_NAMES := printf 'cyclonedx-bom\npip-audit\nuv\n'

.PHONY: train test exhaustive faults suites wheels check format docs learning bench lock audit sbom clean

train: .venv/train.stamp  ## train Pendulum-v1 live until it is solved
	@$(BIN)/spreeze train Pendulum-v1 --target -200 --time 5m

test: .venv/dev.stamp  ## all tests but those of `exhaustive`, `suites` and `learning`
	$(PYTEST) $(PARALLEL) -m "not learning and not cluster and not exhaustive"

exhaustive: .venv/dev.stamp  ## every fault at every point, and faults that take long to show
	$(PYTEST) $(PARALLEL) -m exhaustive

faults: .venv/dev.stamp  ## every test that injects a fault or an attack; then writes docs/faults.md
	$(PYTEST) $(PARALLEL) -m "fault and not cluster" --fault-results tests/fault/results.json; \
	  status=$$?; $(BIN)/python docs/faults.py && exit $$status

suites: .venv/suites.stamp  ## one task of every suite, EnvPool included, and clusters; installs another 1.7 GB
	$(PYTEST) $(PARALLEL) tests/suites tests/unit/envs/test_envpool.py
	$(PYTEST) tests/cluster

wheels:  ## install the wheel with every Python found (3.11, 3.12, 3.13), and train there; needs the network
	@$(PYTHON) tests/packaging/wheels.py

check: .venv/dev.stamp  ## format, lint, types, import layers, documentation site, unit tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/website.py
	$(PYTEST) $(PARALLEL) tests/unit

format: .venv/dev.stamp  ## format and fix the sources the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/dev.stamp  ## write the generated tables and pictures in README.md and docs/, then the site in build/site
	$(BIN)/python bench/tables.py
	$(BIN)/python docs/knobs.py
	$(BIN)/python docs/metrics.py
	$(BIN)/python docs/faults.py
	$(BIN)/python docs/website.py

learning: .venv/dev.stamp  ## train real tasks to real scores: about half an hour on two cores
	$(PYTEST) -m learning -s --timeout 1200

bench: .venv/dev.stamp  ## has anything become slower? Ratios to references in the same run, against the kept ones
	$(BIN)/spreeze bench ratios --kept bench/results/ratios-$(shell nproc)cores.json

lock:  ## write locks/: the versions and hashes of what `make` installs, for Python 3.11 and newer
	@$(TOOLS); PATH="$$tools/bin:$$PATH"; \
	$(BUILD_TOOLS) | $(PROJECT) --upgrade --extra dev -o locks/dev.txt pyproject.toml -; \
	$(BUILD_TOOLS) | $(PROJECT) -c locks/dev.txt --extra classic --extra dashboard -o locks/train.txt pyproject.toml -; \
	$(BUILD_TOOLS) | $(PROJECT) --upgrade -c locks/dev.txt --extra dev --extra suites -o locks/suites.txt pyproject.toml -; \
	for peer in $(PEERS); do $(PROJECT) --upgrade -o $$peer.txt $$peer.in; done; \
	$(TOOL_NAMES) | $(COMPILE) --upgrade -o locks/tools.txt -

audit:  ## look for known vulnerabilities in what is locked; needs the network
	@$(TOOLS); for lock in suites tools; do \
	  "$$tools/bin/pip-audit" --strict --disable-pip --require-hashes -r locks/$$lock.txt; done

sbom:  ## write dist/sbom.json: what is locked, as CycloneDX
	@mkdir -p dist
	@$(TOOLS); "$$tools/bin/cyclonedx-py" requirements locks/suites.txt --pyproject pyproject.toml -o dist/sbom.json

clean:  ## remove .venv
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Spreeze needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 train"; exit 1; }
	@echo "Setting up .venv (only once; PyTorch is large) ..."
	@$(PYTHON) -m venv .venv || \
	  { echo "$(PYTHON) has no venv module. On Debian: apt install python3-venv"; rm -rf .venv; exit 1; }

.venv/train.stamp: pyproject.toml constraints.txt locks/train.txt | .venv/bin/python
	@$(LOCKED) -r locks/train.txt
	@$(INSTALL) -e '.[classic,dashboard]'
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt locks/dev.txt | .venv/bin/python
	@$(LOCKED) -r locks/dev.txt
	@$(INSTALL) -e '.[dev]'
	@touch $@ .venv/train.stamp

.venv/suites.stamp: locks/suites.txt .venv/dev.stamp
	@$(LOCKED) -r locks/suites.txt
	@$(INSTALL) -e '.[dev,suites]'
	@touch $@
