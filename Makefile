# One entry point for people and CI. `make help` lists the targets.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
KEEP ?=
# How long chaos and fuzz go on, and with which random choices.
MINUTES ?= 12
# For test-torch: the torch to test with.
TORCH ?= 2.4.1
SEED ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of processes: each would compile the whole product anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-rest test-torch lint types contracts docs docs-site dashboards pictures screenshots deploy wheel-test soak crash-points fuzz bench-overhead bench-detection bench-power bench-metamorphic bench-leave-one-out bench-drawn bench-rules bench-ingest bench-relays bench-snapshots bench-gate bench-rollback bench-regret bench-regret-real bench-page bench-stream bench-verify bench-randomised drills chaos tools clean bench-restore bench-neighbours

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is rebuilt only when what it is made from changes. The demo needs a part of it; setup adds the rest.
INSTALL := $(BIN)/python -m pip install -qq -c requirements/constraints.txt
$(BIN)/.demo-ready: pyproject.toml requirements/constraints.txt
	@requirements/system.sh venv "$(PYTHON)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (torch included: this takes a minute, once) ..."
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(INSTALL) -e '.[demo]'
	@touch $@

$(BIN)/.ready: $(BIN)/.demo-ready
	@echo "Adding the development tools to $(VENV) (this takes a minute, once) ..."
	@$(INSTALL) -e '.[dev]'
	@touch $@

setup: $(BIN)/.ready ## build the virtual environment (VENV=... overrides .venv)

demo: $(BIN)/.demo-ready ## watch a real 2-rank run in this terminal (KEEP=1 leaves the page up)
	@$(BIN)/caboose demo $(if $(KEEP),--keep)

tools: ## install the Debian packages the tests use (prometheus, alertmanager, victoria-metrics, chromium, kubectl)
	@requirements/system.sh tests

# Tests often wait for processes that they started, so there are more workers than cores. A slow file's tests share
# daemons and browsers. Tests that measure times and sizes run alone.
BESIDE := -n $(shell expr $$(nproc) + 2) --dist loadfile --no-loadscope-reorder
test: setup tools ## run all tests (ARGS=... runs pytest with those instead)
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@requirements/tests.sh $(BIN)/python -n $(shell expr $$(nproc) + 1) --dist worksteal -m "not slow"
	@requirements/tests.sh $(BIN)/python $(BESIDE) -m "slow and not alone and not long and not soak"
	@requirements/tests.sh $(BIN)/python -m "alone and not long"
endif

test-long: setup tools ## the tests that take minutes: long runs, kinds of sharding, an example
	@requirements/tests.sh $(BIN)/python $(BESIDE) -m "long and not alone and not rest"
	@requirements/tests.sh $(BIN)/python -m "alone and long"

# What has passed at this commit is kept in a file until all has, so that it goes on where it was stopped. (With "=": pytest
# looks for conftest.py beside a word that is a file.)
test-rest: setup tools ## every further case of what test and test-long run: half an hour, resumable, for a release
	@requirements/tests.sh $(BIN)/python $(BESIDE) --keep-passed=.rest-passed -m "rest"

test-torch: ## smoke tests with another torch or Python, in an environment of its own (TORCH=2.4.1 PYTHON=python3.12; up to 3 GB)
	@requirements/torch-test.sh "$(PYTHON)" "$(TORCH)" $(ARGS)

lint: setup ## check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## check types
	@$(BIN)/mypy

contracts: setup ## check who may import whom
	@$(BIN)/lint-imports

docs: setup ## write the generated alerts and the generated parts of docs/ anew
	@$(BIN)/python dashboards/alerts/generate.py
	@$(BIN)/python docs/generate.py

docs-site: setup ## build the documentation site of this version into build/site (with mkdocs-material; SITE=DIR)
	@$(INSTALL) -e '.[site]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python docs/build_site.py $(or $(SITE),build/site)

deploy: setup ## write the generated files of deploy/ anew
	@$(BIN)/python deploy/generate.py

dashboards: setup ## write dashboards/grafana/*.json anew from the code
	@$(BIN)/python -m dashboards.source

pictures: setup tools ## draw every dashboard from a real Prometheus into docs/images/dashboards (about seven minutes; ARGS="ranks layers" for some)
	@PYTHONPATH=tests $(BIN)/python -m support.contact_sheet docs/images/dashboards $(ARGS)

screenshots: setup tools ## take the pictures of the live page and the report into docs/images (about three minutes)
	@PYTHONPATH=tests $(BIN)/python -m support.screenshots docs/images

# What would break if a file were missing from the wheel, or found only because the source tree is there.
PACKAGED := $(addprefix tests/,daemon/app/test_start.py daemon/store/test_journal.py daemon/app/test_restart.py daemon/out/test_http_api.py \
	daemon/cli/test_rules_command.py daemon/cli/test_diagnose_command.py daemon/ops/test_grafana_push.py daemon/test_imports.py)
wheel-test: setup tools ## build the wheel and run tests against it, installed
	@requirements/wheel-test.sh $(BIN)/python -n auto -m "not slow" tests/wire $(PACKAGED)
	@requirements/wheel-test.sh $(BIN)/python tests/browser tests/integration/test_demo.py -k "spike or keep"

soak: setup ## a million simulated steps: the daemon's memory must stay flat (takes a while)
	@$(BIN)/python -m pytest tests/daemon/app/test_memory.py --soak -s

crash-points: setup ## kill the daemon before and after every commit of its journal in turn (goes on from build/crash-points)
	@CRASH_POINTS_DONE=$(CURDIR)/build/crash-points $(BIN)/python -m pytest -n $(shell nproc) tests/daemon/app/test_crash_points.py -m soak -rs
	@cat build/crash-points/* | awk '{ n += $$1 } END { print n " kills, all passed" }'
	@rm -r build/crash-points

fuzz: setup ## hostile messages through step close, scrape, page, restart (SEED=1 MINUTES=12; goes on from build/fuzz)
	@$(INSTALL) -e '.[fuzz]'
	@PYTHONPATH=tests $(BIN)/python -W ignore -m support.fuzzing --minutes $(MINUTES) --seed $(SEED) --directory build/fuzz $(ARGS)

bench-overhead: setup ## what the agent costs a step, beside others (long; ARGS=--quick for a look of two minutes)
	@$(INSTALL) -e '.[bench]'
	@$(BIN)/python bench/overhead.py $(ARGS)

bench-detection: setup ## how good the rules are on labelled logs (CORPUS=DIR; ARGS=--check)
	@test -n "$(CORPUS)" || { echo "give the directory of the labelled logs: make bench-detection CORPUS=DIR"; exit 2; }
	@$(BIN)/python bench/detection.py $(CORPUS) $(ARGS)

bench-power: setup ## how small a fault the rules find: faults spliced into healthy logs (CORPUS=DIR; about six minutes)
	@test -n "$(CORPUS)" || { echo "give the directory of the labelled logs: make bench-power CORPUS=DIR"; exit 2; }
	@$(BIN)/python bench/power.py $(CORPUS) $(ARGS)

bench-metamorphic: setup ## verdicts that must not change with units, step numbers and cadence (CORPUS=DIR; about five minutes)
	@test -n "$(CORPUS)" || { echo "give the directory of the labelled logs: make bench-metamorphic CORPUS=DIR"; exit 2; }
	@$(BIN)/python bench/metamorphic.py $(CORPUS) $(ARGS)

bench-leave-one-out: setup ## detection with thresholds chosen on the other repositories alone (CORPUS=DIR; about half an hour)
	@test -n "$(CORPUS)" || { echo "give the directory of the labelled logs: make bench-leave-one-out CORPUS=DIR"; exit 2; }
	@$(BIN)/python bench/leave_one_out.py $(CORPUS) $(ARGS)

bench-drawn: setup ## detection on drawn curves of many shapes, lengths and noises (about a minute; ARGS=-v for each wrong verdict)
	@$(BIN)/python bench/drawn.py $(ARGS)

bench-rules: setup ## what judging a step costs the daemon, rule by rule (ARGS=--quick for a short look)
	@$(BIN)/python bench/rules.py $(ARGS)

bench-ingest: setup ## what a report costs the daemon, at 64 to 2,048 ranks on real sockets (about three minutes; ARGS=--quick)
	@$(BIN)/python bench/ingest.py $(ARGS)

bench-relays: setup ## what relays save and cost: bytes, messages, CPU; 65,536 ranks in virtual time (about ten minutes; ARGS=--quick)
	@$(BIN)/python bench/relays.py $(ARGS)

bench-neighbours: setup ## what a job that floods the daemon costs the others; memory after jobs (about five minutes; ARGS=--quick)
	@$(BIN)/python bench/neighbours.py $(ARGS)

bench-snapshots: setup ## what a snapshot and the way back cost, beside a memcpy and a step (ARGS=--quick for a short look)
	@$(BIN)/python bench/snapshots.py $(ARGS)

bench-rollback: setup ## what a rollback saves: a spike under auto, beside its twins (about 40 minutes; ARGS="--worlds ddp:2 --seeds 1")
	@$(BIN)/python bench/rollback.py $(ARGS)

bench-regret: setup ## steps that rollback loses against an oracle, on generated loss curves (ARGS=--quick: two minutes; CORPUS=DIR adds healthy logs; resumable)
	@$(BIN)/python bench/regret.py $(if $(CORPUS),--corpus $(CORPUS)) $(ARGS)

bench-regret-real: setup ## the same on real small trainings on 2 ranks, against going back at other steps (ARGS="--minutes 90"; resumable)
	@$(BIN)/python bench/regret_real.py $(ARGS)

bench-restore: setup ## seconds from a boundary to the state restored and compared: 100 million parameters, 2 ranks (ARGS=--check)
	@$(BIN)/python bench/restore.py $(ARGS)

bench-gate: setup ## what the gate of rollback costs a step, idle and armed (ARGS=--check)
	@$(BIN)/python bench/gate.py $(ARGS)

bench-page: setup tools ## how long the page of 200,000 steps and 64 ranks takes to open (about two minutes; ARGS=--check)
	@$(BIN)/python bench/page.py $(ARGS)

bench-stream: setup ## what the live stream sends to one page, at 64, 512 and 4,096 ranks
	@$(BIN)/python bench/stream.py $(ARGS)

bench-verify: setup ## how well `caboose verify` tells a change from chance, on simulated runs
	@$(BIN)/python bench/verifying.py $(ARGS)

bench-randomised: setup ## diseases drawn over architectures, optimizers and loops; writes its part of docs/diagnosis.md (within 60 minutes; ARGS=--resume goes on, ARGS=--rejudge judges the recordings again)
	@$(BIN)/python bench/randomised.py --output docs/diagnosis.md $(ARGS)

chaos: setup ## faults against real 2-rank runs from a seeded schedule (SEED=1 MINUTES=12; ARGS="--episode 7" runs one again)
	@PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --minutes $(MINUTES) $(ARGS)

drills: setup ## how well known diseases are found and explained; writes docs/drills.md (within 40 minutes; ARGS=NAME for some, ARGS=--resume to go on)
	@$(BIN)/python bench/drills.py --results build/drills.json --output docs/drills.md $(ARGS)

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) .venv-wheel dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
