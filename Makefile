# Everything a contributor types. Needs python3 (3.11 or newer, with venv) and make; the rest is set up in $(VENV).
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV ?= .venv
# The interpreter that makes $(VENV): the first one new enough, unless you name one.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(if \
    $(shell $(name) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(name))))
BIN := $(VENV)/bin
# Images of containers often set it: then each of the hundreds of programs that tests start is compiled anew.
unexport PYTHONDONTWRITEBYTECODE
READY := $(VENV)/.ready

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY) page ## make the environment in .venv and the gateway's page, again when pins or sources change

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
	    echo "gpufleet needs Python 3.11 or newer; found $$(python3 --version 2>&1)."; \
	    echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: make setup PYTHON=/path/to/python3"; \
	    exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "$(PYTHON) cannot make environments: its venv module is not installed."; \
	    echo "Debian, Ubuntu: apt-get install $$('$(PYTHON)' -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"; \
	    exit 1; }
	@test -x $(BIN)/python || { \
	    echo "Setting up $(VENV): the first time this downloads PyTorch and takes some minutes."; \
	    "$(PYTHON)" -m venv $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# What is not changed is not built again. Without npm's registry everything but the page works: up, demo and test go on.
.PHONY: page
page: $(READY) ## build the gateway's page, where its sources have changed
	@$(BIN)/python building/page.py

.PHONY: page-if-possible
page-if-possible: $(READY)
	@$(BIN)/python building/page.py --if-possible

.PHONY: up
up: $(READY) page-if-possible ## start a scheduler and an agent on this machine, until Ctrl-C
	$(BIN)/gpuctl up $(ARGS)

.PHONY: demo
demo: $(READY) page-if-possible ## start everything on this machine, run a real training job, stop everything
	BIN=$(BIN) docs/examples/demo.sh

# Much of a test's time is waiting: more processes than cores. Idle processes take whole files, so that fixtures of a file
# are made once, and those with the most slow tests first. Which test is in which ring: tests/rings.
TEST_PROCESSES ?= $(shell echo $$(($$(nproc) + 2)))
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(READY) page-if-possible ## all that a change can break, in a CPU budget; ARGS="-k words" for some
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(BY_FILE) --ring test $(if $(ARGS),,--within-budget) $(ARGS)

.PHONY: nightly
nightly: $(READY) page-if-possible ## what takes long: all seeds, drills, upgrades, containers; PART=0 to 3 for a quarter
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(BY_FILE) --ring nightly $(if $(PART),--part $(PART)) $(ARGS)

# What speaks with the network most, on the loop that programs take where it is installed.
UVLOOP_TESTS := $(addprefix tests/,gateway/proxy gateway/test_program.py gateway/test_sessions.py gateway/test_turn.py \
    gateway/test_local.py gpufleet_lib/net/test_local_stream.py inference/test_streams.py inference/http_service \
    inference/predict/test_program.py engine api/test_long_streams.py e2e/test_programs.py)

.PHONY: test-uvloop
test-uvloop: $(READY) ## a part of the tests with programs on uvloop; the others run on asyncio
	GPUFLEET_EVENT_LOOP=uvloop $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) $(BY_FILE) --ring test $(UVLOOP_TESTS) $(ARGS)

# The pure rings and what holds the house together: values, decisions, the stored format, fields, words, rules.
FAST_TESTS := tests/core tests/node_agent/core tests/engine tests/fields tests/gpufleet_lib tests/series tests/rules \
    $(addprefix tests/store/test_,stored_format.py stored_classes.py codec.py) \
    $(addprefix tests/packaging/test_,import_directions.py package_list.py) \
    $(addprefix tests/cli/,jobs/test_queue_words.py test_conventions.py submitting/test_job_spec.py test_commands.py)

.PHONY: test-fast
test-fast: $(READY) ## within 45 s: what is pure, the stored format, fields, rules; the default while working
	$(BIN)/python -m pytest -q -n $(shell nproc) --dist loadfile --ring fast -m "not slow and not postgres" $(FAST_TESTS) $(ARGS)

.PHONY: bench
bench: $(READY) ## measure against floors of the same run; ARGS="--only path --jobs 500" for a part
	GRPC_VERBOSITY=ERROR $(BIN)/python -m bench $(ARGS)

# Where PyTorch and the driver are there already: make gpu-test GPU_PYTHON=python3 (docs/gpus.md).
GPU_PYTHON ?= $(BIN)/python

.PHONY: gpu-test
gpu-test: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(READY)) ## test and measure on this machine's NVIDIA GPUs
	PYTHONPATH=.:gen "$(GPU_PYTHON)" -m pytest tests/gpu -m gpu -p no:cacheprovider $(ARGS)

.PHONY: sim
sim: $(READY) ## the simulated fleet: SEED=7 replays one run, ARGS="--count 500" tries new ones
	PYTHONPATH=.:gen $(BIN)/python -m tests.simulation $(SEED) $(ARGS)

.PHONY: takeover-drill
takeover-drill: $(READY) ## kill, pause and cut off schedulers that stand by for each other: SEED=16; needs root
	PYTHONPATH=.:gen $(BIN)/python -m tests.drills.takeover $(SEED) $(ARGS)

.PHONY: upgrade-drill
upgrade-drill: $(READY) ## upgrade a fleet of 0.1.0 under load, program by program, and back again: SEED=16; needs root
	PYTHONPATH=.:gen $(BIN)/python -m tests.drills.upgrades $(SEED) $(ARGS)

.PHONY: drill
drill: $(READY) ## break a fleet of real processes: SEED=7 replays, ARGS="--minutes 30 --nodes 4"; needs root
	PYTHONPATH=.:gen $(BIN)/python -m tests.drills $(SEED) $(ARGS)

.PHONY: pairs
pairs: $(READY) ## every pair of a job's features on a real fleet: SEED=7 replays, ARGS="--strength 3 --only upload,retries"
	PYTHONPATH=.:gen $(BIN)/python -m tests.pairs $(SEED) $(ARGS)

.PHONY: fuzz
fuzz: $(READY) ## send a fleet what nobody should: ARGS="--seed 7 --messages 100000 --only WebSocket"
	PYTHONPATH=.:gen $(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: traces
traces: $(READY) ## replay logs of real machines through the core, beside EASY; ARGS="--jobs 2000 --only kth" for less
	PYTHONPATH=.:gen $(BIN)/python -m bench.traces $(ARGS)

.PHONY: sim-scale
sim-scale: $(READY) ## 1,000,000 jobs on 10,000 nodes through the core; ARGS="--nodes 100 --jobs 10000" for fewer
	PYTHONPATH=.:gen $(BIN)/python -m bench.sim_scale $(ARGS)

# Every check that needs no running program, two at a time: pyright takes as long as all others. `lint` alone is the
# quick part and installs nothing.
.PHONY: check
check: $(READY) ## all checks: style, types, import directions, protos
	$(MAKE) --jobs=2 --output-sync=target --no-print-directory types lint contracts fresh

.PHONY: lint
lint: imports ## ruff, mypy and import directions, with the environment as it is
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: types
types: export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
types:
	$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: imports
imports:
	$(BIN)/lint-imports --no-logo

# A breaking change is one that breaks what was released: the protos are compared with the last release tag, and with
# what was kept of each release (tests/releases).
.PHONY: contracts
contracts:
	$(BIN)/buf lint
	@tag=$$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true); \
	if test -z "$$tag"; then \
	    echo "buf breaking: no tag yet"; \
	else \
	    echo "buf breaking: against $$tag"; \
	    $(BIN)/buf breaking --against "$$(git rev-parse --path-format=absolute --git-common-dir)#tag=$$tag"; \
	fi
	@for image in tests/releases/*/protos.binpb.gz; do \
	    echo "buf breaking: against $$image"; \
	    $(BIN)/buf breaking --against "$$image"; \
	done

.PHONY: fresh
fresh:
	$(BIN)/python protos/generate.py --check

.PHONY: proto
proto: $(READY) ## generate code from protos/gpufleet/v1: gen/gpufleet/v1, and the dashboard's types of messages
	$(BIN)/python protos/generate.py

.PHONY: clean
clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info gateway/static gateway/web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
