# Everything that a person or CI runs. Each target does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(shell find magnetar_core managed_ledger bookie broker -name '*.proto' 2>/dev/null)
SOURCES := magnetar magnetar_core broker managed_ledger bookie autorecovery connectors pyspark_magnetar.py tests bench deploy
# How long `make soak` and `make differ` run, and what they repeat; without a seed they draw new ones and say them.
MINUTES ?= 10
SEED ?=
# How many rounds its part with Spark has.
ROUNDS ?= 50
# How many its part with tables of a lake has.
LAKE_ROUNDS ?= 20
# How many lives of clusters `make sim` lives: 20 a minute and core, or more.
LIVES ?= 200
# Since when `make check` looks for changes.
SINCE ?= main
# Which groups `make bench-apache` runs; all without.
ONLY ?=
# Whose servers `make interop` and `make differ` run: 4.2.4 or 5.0.1; without it those of 4.0.8, and all that 4.0.8 has beside them.
LINE ?=
# What it runs with those of other lines.
WITH_SERVERS := swap_matrix takeovers contents transactions delayed_buckets autorecovery bookie_folder bundles compaction policies backlog entry_index retries idle_since
JAVA_CLIENT := $(addprefix tests/interop/test_tools.py::test_java_client,$() _that_wants_transactions_is_refused)
# Where `make interop` writes its matrix.
MATRIX ?= docs/INTEROP.md
# Where it writes what pulsar-admin was answered.
ADMIN_TABLE ?= docs/pulsar-admin.md

# Tests start hundreds of processes: each would compile all of our files anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-drain demo-failover pictures test test-all check unit coverage interop smoke differ crash sim abuse soak mutants lint types format docs release proto bench bench-apache bench-bookie requirements clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## ?/  make \1\t/' | expand -t 24

# Every package is pinned with its hashes, so pip resolves nothing (--no-deps): older ones stop at an extra of a package
# that has a newer version than the pinned one. `pip check` shows that nothing is missing.
$(VENV)/dev: requirements/dev.txt pyproject.toml
	@$(PYTHON) deploy/check_machine.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/pip check
# Else three processes at a time would compile the same thousand files of a fresh clone.
	@$(BIN)/python -m pytest --collect-only -qq tests >/dev/null || true
	@touch $@

$(VENV)/demo: requirements/demo.txt pyproject.toml
	@$(PYTHON) deploy/check_machine.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -e $(VENV)/dev || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/demo.txt
	@test -e $(VENV)/dev || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(VENV)/demo ## the flights of 2013 through a cluster that loses a broker and a bookie, and into Spark
	$(BIN)/python -m bench.demo flights

demo-drain: $(VENV)/demo ## five bookies under load: one is killed, one is drained and removed, with a dashboard to watch
	$(BIN)/python -m bench.demo drain

demo-failover: $(VENV)/demo ## a thousand topics under load: a broker is killed, one is stopped; a plot of every topic's gap
	$(BIN)/python -m bench.demo failover

pictures: $(VENV)/dev ## draw the pictures of the dashboard anew (needs a Chromium)
	$(BIN)/python -m tests.pictures

differ: $(VENV)/dev ## drawn programs of the Python client at Apache's broker (of LINE=) and at ours, for MINUTES=; SEED=n runs one; fails for a difference that is not listed
	$(BIN)/python deploy/fetch_apache.py $(LINE)
	MAGNETAR_APACHE_LINE=$(LINE) $(BIN)/python -m tests.differ $(if $(SEED),$(SEED),--kept --minutes $(MINUTES))

crash: $(VENV)/dev ## power cuts, faulty disks, kill -9, fuzz: 20,000 disk images and more (minutes)
	MAGNETAR_CRASH_IMAGES=20000 MAGNETAR_INDEX_IMAGES=500 MAGNETAR_KILL_ROUNDS=100 MAGNETAR_FAULT_RUNS=3000 \
	MAGNETAR_FUZZ_FRAMES=20000 $(BIN)/python -m pytest -n 2 --timeout 7200 -m crash tests/crash

sim: $(VENV)/dev ## lives of whole clusters under virtual time, LIVES of them, and of delivery, compaction and ownership alone, 2,000 runs each (minutes); SEED=n lives one and prints its story, WITHOUT= parts of it
ifdef SEED
	$(BIN)/python -m tests.simulation.stack $(SEED) --story --shrink --without "$(WITHOUT)"
else
	$(BIN)/python -m tests.simulation.stack 0 $(LIVES)
endif
	MAGNETAR_SIM_SEEDS=2000 $(BIN)/python -m pytest -n 2 tests/simulation/test_delivery_sim.py tests/simulation/test_compacted_sim.py \
	tests/simulation/test_ownership_sim.py

abuse: $(VENV)/dev ## hostile clients of each role at every port, drawn: ten minutes; MAGNETAR_ABUSE_SEED repeats a run
	MAGNETAR_ABUSE_INPUTS=5000 MAGNETAR_ABUSE_RESULTS=out/abuse.json $(BIN)/python -m pytest tests/abuse

soak: $(VENV)/dev ## clients on a cluster under faults, and the topic API under closes and forks, each message accounted for; MINUTES=10 ROUNDS=50 LAKE_ROUNDS=20 SEED=
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed "$(SEED)"
	$(BIN)/python -m tests.soak.topics --minutes $(MINUTES) --seed "$(SEED)"
	$(BIN)/python -m tests.soak.spark --rounds $(ROUNDS) --seed "$(SEED)"
	$(BIN)/python -m tests.soak.lake --rounds $(LAKE_ROUNDS) --seed "$(SEED)"

mutants: $(VENV)/dev ## seeded bugs of bookie, broker, managed ledger and client, each of which the tests must catch
	$(BIN)/python -m tests.mutants

lint: $(VENV)/dev ## ruff, formatting, who imports whom, types; two minutes the first time, then seconds
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/mypy

types: $(VENV)/dev ## types alone
	$(BIN)/mypy

format: $(VENV)/dev ## put the sources in shape
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Three at a time on two cores: the waits of one, for servers and clocks, are filled by the others.
WORKERS ?= 3

test: $(VENV)/dev ## each promise once; ten minutes on two quiet cores
	$(BIN)/python -m pytest -n $(WORKERS) -m "not long" --ignore tests/interop tests

test-all: $(VENV)/dev ## every test that needs nothing but us; twenty-five minutes
	$(BIN)/python -m pytest -n $(WORKERS) --ignore tests/interop tests

check: $(VENV)/dev ## lint, types and tests of what changed, in 90 seconds; SINCE=main or another revision
	$(BIN)/python -m tests.check --since $(SINCE)

interop: $(VENV)/dev ## Apache's servers, tools and clients with ours; gets them first (Maven; 245 MB, once); LINE=4.2.4 or 5.0.1: the servers of that line
	$(BIN)/python deploy/fetch_apache.py $(LINE)
ifneq ($(LINE),)
	MAGNETAR_APACHE_LINE=$(LINE) $(BIN)/python -m pytest $(WITH_SERVERS:%=tests/interop/test_%.py) $(JAVA_CLIENT) --write-matrix docs/INTEROP-$(LINE).md
else
	@mkdir -p $(dir $(MATRIX)) $(dir $(ADMIN_TABLE))
	$(BIN)/python -m pytest tests/interop --write-matrix $(MATRIX) --write-admin-table $(ADMIN_TABLE)
endif

smoke: $(VENV)/dev ## of interop what CI runs: the swap matrix, the official clients, pulsar-admin, drawn programs; ten minutes
	$(BIN)/python deploy/fetch_apache.py
	$(BIN)/python -m pytest -m smoke tests/interop

unit: $(VENV)/dev ## the tests that take milliseconds, all of them; four minutes
	@echo "12,700 tests, some four minutes on two quiet cores; 'make check' runs those near a change"
	$(BIN)/python -m pytest -n 2 -m "not process" tests/unit tests/property

coverage: $(VENV)/dev ## branch coverage of the tests without processes, as a report in out/coverage (minutes)
	$(BIN)/python -m pytest -n 2 -m "not process" --cov --cov-report html tests/unit tests/property tests/conformance \
	tests/simulation tests/golden

$(VENV)/docs: requirements/docs.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(VENV)/site/bin/python || $(PYTHON) -m venv $(VENV)/site
	$(VENV)/site/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/docs.txt
	@touch $@

docs: $(VENV)/docs ## the pages as a site in out/site; fails for a broken link
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --strict

release: $(VENV)/dev ## sdist and wheel in out/dist, tried in an empty environment (minutes)
	$(BIN)/python deploy/release.py

proto: $(VENV)/dev ## generate the protobuf code again
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)

bench: $(VENV)/dev ## speed and memory, as a table of ratios (about ten minutes)
	$(BIN)/python -m bench

bench-bookie: $(VENV)/dev ## one bookie: reads, background work, replay, ten million entries (minutes)
	$(BIN)/python -m bench.bookie

bench-apache: $(VENV)/dev ## the same beside Apache's servers; writes docs/BENCHMARKS.md and docs/benchmarks/ (long; ONLY=takeover: one group; leave the machine alone meanwhile)
	$(BIN)/python deploy/fetch_apache.py
	$(BIN)/python -m bench.apache $(ONLY) --write-docs

requirements: ## pin the dependencies anew
	sh requirements/compile.sh

clean: ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache out
