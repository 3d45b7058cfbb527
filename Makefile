# make run | test | demo | bench | chaos | lint | clean      (make help explains)
#
# Everything is installed in .venv; a stamp file there makes repeated calls fast. ARGS are passed to a target's command:
#   make run ARGS="-p 4333 -m 8222"        make test-unit ARGS="-k conf"
# ALL=1 makes a test stage include its heavy tests:                make test-lake ALL=1

SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
ARGS ?=
ALL ?=
# Test processes of each stage. Those that start servers mostly wait for them, so there are more. Lake tests run in one
# process, which starts Spark once.
WORKERS ?= 2
SERVER_WORKERS ?= 4
CLUSTER_WORKERS ?= 3
PYTEST := $(BIN)/pytest -q --durations=25 --durations-min=1 --maxfail=5
CHOSEN := $(if $(ALL),,-m "not heavy")

# The first sufficiently new interpreter; PYTHON=... overrides it.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$name >/dev/null 2>&1 && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$name; break; }; done)

.PHONY: help setup jars jar run demo bench chaos test test-all conformance test-unit test-sim test-socket test-cluster test-lake lint dead-code clean

help:
	@echo "make run      server and compactor over ./data, NATS on 127.0.0.1:4222 (Ctrl-C stops both)"
	@echo "make demo     336,776 flights through NATS into Delta, queried with SQL"
	@echo "make test     15 minutes: lint, unit, simulation, socket, the smoke tests of clusters and of the lake"
	@echo "make test-all make test with the heavy tests (chaos, clusters, Spark, S3, power losses), and conformance"
	@echo "make conformance  compares lakestream with nats-server live; fails if a recording of nats-server is stale"
	@echo "make bench    benchmarks, beside nats-server"
	@echo "make chaos    long kill, power loss and fault tests"
	@echo "make jar      rebuild lakestream/lake/jvm/lakestream-spark.jar from jvm/ (needs javac 17 or newer)"
	@echo "make lint     ruff, mypy, import-linter"
	@echo "make dead-code  names without a use, by vulture"
	@echo "make clean    remove .venv and caches; ./data stays"

setup: $(INSTALLED) $(COMPILED)

$(INSTALLED): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then echo "lakestream: needs Python 3.11 or newer with venv; install it or pass PYTHON=/path/to/python3" >&2; exit 1; fi
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	@echo "installing lakestream into $(VENV) (once; pyspark alone is several hundred MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# pip compiles the bytecode of what it installs, but not of this directory: without it a start takes more than twice as long.
$(COMPILED): $(INSTALLED) $(shell find lakestream -name '*.py')
	@$(BIN)/python -m compileall -q lakestream
	@touch $@

# Without Java or network this prints one line and succeeds: the server runs without the compactor.
jars: $(INSTALLED)
	@$(BIN)/python -m lakestream.lake.spark.jars >/dev/null || true

# The Java classes for Spark (delta.`streams/…` paths, atomic commits): sources in jvm/, the JAR in the repository.
jar: $(INSTALLED)
	@$(BIN)/python jvm/build.py

run: setup jars
	@$(BIN)/lakestream up -a 127.0.0.1 -sd data $(ARGS)

demo: setup jars
	@$(BIN)/lakestream demo $(ARGS)

bench: setup
	@for script in tests/bench/bench_*.py; do name=$$(basename $$script .py); echo "== $$name"; $(BIN)/python -m tests.bench.$$name $(ARGS) || exit 1; done

chaos: setup jars
	@LAKESTREAM_KILL_ROUNDS=200 LAKESTREAM_CONSUMER_KILLS=100 LAKESTREAM_GARBAGE_ROUNDS=2000 LAKESTREAM_FUZZ_ROUNDS=200000 LAKESTREAM_TLS_ROUNDS=50000 LAKESTREAM_FUZZ_SEED=random LAKESTREAM_CLOCK_LIVES=1000 LAKESTREAM_SOAK_ROUNDS=60 \
	LAKESTREAM_PROPERTY_ROUNDS=2000 LAKESTREAM_PROPERTY_SEED=random LAKESTREAM_COMMIT_RACES=25 LAKESTREAM_COMPACTOR_KILLS=20 \
	LAKESTREAM_CLUSTER_ROUNDS=100 LAKESTREAM_LINEAR_KILLS=60 LAKESTREAM_LINEAR_ROUNDS=40 \
	LAKESTREAM_MIRROR_ROUNDS=20 LAKESTREAM_MIRROR_LIVES=10 LAKESTREAM_LEAF_ROUNDS=20 LAKESTREAM_POWER_POINTS=200 LAKESTREAM_POWER_COMPACTIONS=10 \
		$(BIN)/pytest tests/power tests/chaos tests/unit/account/api/test_api_fuzz.py tests/unit/config/test_conf_fuzz.py tests/unit/protocol/test_jwt.py tests/unit/net/accounts/test_operators.py tests/unit/net/websocket/test_websocket_fuzz.py tests/unit/stream/features/test_clock_steps.py tests/cluster/test_chaos.py tests/cluster/test_consumers.py tests/cluster/test_linearizable.py tests/cluster/test_leaf.py tests/conformance/test_leaf_chaos.py tests/lake/test_soak.py tests/lake/test_property.py tests/lake/test_mirror_property.py tests/lake/test_as_it_was.py tests/lake/test_compact_job.py tests/lake/test_log_stores.py $(ARGS)

# Fast stages first, so that failures show early.
test: setup jars
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-sim
	@$(MAKE) --no-print-directory test-socket
	@$(MAKE) --no-print-directory test-cluster
	@$(MAKE) --no-print-directory test-lake

lint: setup
	@echo "== lint: ruff, mypy, import-linter"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

# Names that neither lakestream, the jobs nor the tests use.
dead-code: setup
	@echo "== dead code: names of lakestream/ and jobs/ without a use"
	@! $(BIN)/vulture | grep -v '^tests/'

test-all: setup jars
	@$(MAKE) --no-print-directory test ALL=1
	@$(MAKE) --no-print-directory conformance

# ARGS=--record replaces stale recordings: review the difference before you commit them.
conformance: setup
	@echo "== conformance: lakestream beside a real nats-server $$($(BIN)/nats-server --version | sed 's/.* v//')"
	@$(PYTEST) -n $(CLUSTER_WORKERS) --dist worksteal --live tests/conformance tests/clients tests/cluster $(ARGS)

test-unit: setup
	@echo "== unit: no sockets, no JVM"
	@$(PYTEST) $(CHOSEN) -n $(WORKERS) tests/unit $(ARGS)

test-sim: setup
	@echo "== simulation: Raft groups on simulated disks and networks, many seeds"
	@$(PYTEST) $(CHOSEN) -n $(WORKERS) --dist worksteal tests/sim $(ARGS)

test-socket: setup
	@echo "== socket: unmodified clients, recordings of nats-server, and kills"
	@$(PYTEST) $(CHOSEN) -n $(SERVER_WORKERS) tests/conformance tests/clients tests/chaos tests/stored/test_standalone.py $(ARGS)

test-cluster: setup
	@echo "== cluster: several servers, with kills, pauses and cut links"
	@$(PYTEST) $(CHOSEN) -n $(CLUSTER_WORKERS) --dist worksteal tests/cluster tests/stored/test_cluster.py $(ARGS)

test-lake: setup jars
	@echo "== lake: real Spark, and power losses"
	@$(PYTEST) $(CHOSEN) tests/lake tests/power tests/stored/test_lake.py $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find lakestream tests jobs -name __pycache__ -type d -prune -exec rm -rf {} +
