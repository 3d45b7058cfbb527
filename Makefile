# make run | test | demo | bench | chaos | lint | clean      (make help explains)
#
# Everything is installed in .venv; a stamp file there makes repeated calls fast. ARGS are passed to a target's command:
#   make run ARGS="-p 4333 -m 8222"        make test-unit ARGS="-k conf"
# ALL=1 makes a test stage include its heavy tests:                make test-lake ALL=1

SHELL := /bin/bash
# What is compiled is kept: every test starts programs, and a start takes twice as long without.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Stamps: what builds our packages; the server alone; with compactor, SQL and demo; with the tools of developers.
BUILDERS := $(VENV)/.builders
SERVER := $(VENV)/.installed-server
RUN := $(VENV)/.installed-run
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
# An installation takes the dependencies from the first and compiles the others.
# Optional products that are packages of their own (packages/parts.py lists them).
PARTS := packages/bench packages/catalogs packages/client packages/commands packages/console packages/demo packages/flight packages/iceberg packages/mcp packages/move packages/mqtt packages/postgres packages/registry packages/schemas packages/sharing packages/spark packages/sql packages/transfer packages/verify
# Those that `make run` starts with: a running Python does not see what is installed from folders later. The distributions
# that they require come while the server is up.
FIRST := packages/client packages/commands packages/console packages/schemas packages/spark packages/sql packages/verify
PART_FILES := $(PARTS:%=%/pyproject.toml)
BUILT_FROM := pyproject.toml setup.py $(wildcard lakestream/native/*.pyx lakestream/native/*.h)
ARGS ?=
ALL ?=
NATS_SERVER ?= $(BIN)/nats-server
# Test processes of each stage. Some unit tests wait, those that start servers mostly do, so there are more than processors.
# Those of the lake start Spark once each. With worksteal each process has tests that stand together: what a file shares, a
# server or a parsed tree, is made once instead of in every process.
WORKERS ?= 3
SERVER_WORKERS ?= 5
CLUSTER_WORKERS ?= 3
LAKE_WORKERS ?= 2
PYTEST := $(BIN)/pytest -q --durations=25 --durations-min=1 --maxfail=5
INSTALL := $(BIN)/python packages/install.py
COMPILE := $(BIN)/python -m compileall -q -j 0
# With progress bars in a terminal; otherwise (or with PLAIN=1) a line for each large download and each long step. Half of an
# installation's time went into an environment of its own for each package that is built, and into bytecode, which pip makes
# on one processor.
PLAIN ?=
LINES := ^(==|ERROR|error|Installed|Successfully)|Downloading .*[0-9][0-9](\.[0-9]+)? ?(MB|MiB)|Building |rror:
install = @if [ -t 1 ] && [ -z "$(PLAIN)" ]; then $(INSTALL) $(1); else \
	set -o pipefail; $(INSTALL) $(1) 2>&1 | { grep --line-buffered -E '$(LINES)' || true; }; fi
# Some packages have files that are no Python of this version: they stay as they are.
compile_installed = @$(COMPILE) $(VENV)/lib >/dev/null 2>&1 || true
PRODUCT := $(wildcard tests/docs tests/packages tests/examples)
CHOSEN := $(if $(ALL),,-m "not heavy")

# The first sufficiently new interpreter; PYTHON=... overrides it.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$name >/dev/null 2>&1 && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$name; break; }; done)

.PHONY: help setup jars jar packages run demo bench chaos docs test test-all conformance audit test-unit test-sim test-socket test-cluster test-lake test-product test-sealed lint lint-types lint-rules dead-code clean

help:
	@echo "make run      server and compactor over ./data, NATS on 127.0.0.1:4222 (Ctrl-C stops both)"
	@echo "make demo     336,776 flights through NATS into Delta, queried with SQL"
	@echo "make test     12 minutes: lint, unit, simulation, socket, the smoke tests of clusters and of the lake"
	@echo "make test-all make test with the heavy tests (chaos, clusters, Spark, S3, power losses), and conformance"
	@echo "make conformance  compares lakestream with nats-server live; fails if a recording of nats-server is stale"
	@echo "make bench    one table of all figures, beside nats-server; ARGS=--quick takes three minutes"
	@echo "make chaos    long kill, power loss and fault tests, and a million inputs for each fuzz target"
	@echo "make packages wheel and sdist, wheels of optional packages and of the JARs, in dist/"
	@echo "make audit    security advisories about the Python packages (needs network)"
	@echo "make docs     the documentation site in site/, with its generated references and pictures"
	@echo "make jar      rebuild packages/spark/lakestream_spark/jvm/lakestream-spark.jar from jvm/ (needs javac 17 or newer)"
	@echo "make lint     ruff, mypy, import-linter, and whether all tests can be collected"
	@echo "make dead-code  names without a use, by vulture"
	@echo "make clean    remove .venv and caches; ./data stays"

setup: $(INSTALLED) $(COMPILED)

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "lakestream: needs Python 3.11 or newer with venv; install it or pass PYTHON=/path/to/python3" >&2; exit 1; fi
	@echo "== install: a virtual environment in $(VENV), with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)

$(BUILDERS): packages/requirements.py | $(BIN)/python
	@$(PIP) install -q $$($(BIN)/python packages/requirements.py --build)
	@$(PIP) install -q uv || echo "== install: without uv, by pip"
	@touch $@

$(SERVER): $(BUILT_FROM) | $(BUILDERS)
	@echo "== install: the server (once, 130 MB)"
	$(call install,-e .)
	$(call install,--no-deps $(FIRST:%=-e %))
	$(compile_installed)
	@touch $@

# In two steps, so that SQL and the demo's data are there while Spark is still on its way.
$(RUN): $(SERVER) $(PART_FILES)
	@echo "== install: SQL, import and export (650 MB)"
	$(call install,$$($(BIN)/python packages/requirements.py all --without pyspark delta-spark))
	$(call install,--no-deps $(PARTS:%=-e %))
	@echo "== install: Spark for the compactor (430 MB to download)"
	$(call install,$$($(BIN)/python packages/requirements.py all))
	$(compile_installed)
	@echo "== install: complete"
	@touch $@

# The tools of developers have a C compiler, so that the compiled module is tested on machines without one too. Most of their
# 15,000 files are never imported: what is gets compiled when `make lint` collects the tests, beside mypy.
$(INSTALLED): $(BUILT_FROM) $(PART_FILES) tests/sharing_client.txt | $(BUILDERS)
	@echo "== install: server, Spark and developer tools (once, 2 GB)"
	$(call install,-e '.[dev]' $(PARTS:%=-e %))
	$(call install,--no-deps -r tests/sharing_client.txt)
	@$(BIN)/python -c 'from lakestream import native; raise SystemExit(not native.NATIVE)' || \
		CC="$(CURDIR)/$(BIN)/python -m ziglang cc" $(BIN)/python -W ignore setup.py -q build_ext --force --inplace
	@touch $(SERVER) $(RUN) $@

# Without bytecode a start takes more than twice as long.
$(COMPILED): $(SERVER) $(shell find lakestream $(PARTS) -name '*.py')
	@$(COMPILE) lakestream $(PARTS)
	@touch $@

# Without Java or network this prints one line and succeeds: the server runs without the compactor.
jars: $(RUN)
	@$(BIN)/python -m lakestream_spark.jars >/dev/null || true

# The Java classes for Spark (delta.`streams/…` paths, atomic commits): sources in jvm/, the JAR in the repository.
jar: $(INSTALLED)
	@$(BIN)/python jvm/build.py

# The server starts as soon as its own packages are there; Spark is installed meanwhile, and the compactor then starts by
# itself. The installation is a process group of its own, which ends with the server.
run: $(SERVER) $(COMPILED)
	@if [ ! -e $(RUN) ] || [ -n "$$(find pyproject.toml $(PART_FILES) -newer $(RUN))" ]; then \
		set -m; \
		{ $(MAKE) --no-print-directory PLAIN=1 $(RUN) 2>/dev/null || echo "== install: failed; make run tries again"; } </dev/null & \
		install=$$!; \
		( while kill -0 $$$$ && kill -0 $$install; do sleep 1; done; kill -- -$$install ) >/dev/null 2>&1 & \
	fi; \
	exec $(BIN)/lakestream up -a 127.0.0.1 -sd data $(ARGS)

demo: $(RUN) $(COMPILED) jars
	@$(BIN)/lakestream demo $(ARGS)

# Wheel and sdist of lakestream, the wheels of optional packages, and the wheel lakestream-jars, into dist/.
packages: setup jars
	@$(BIN)/python packages/build.py $(ARGS)

# Security advisories about the Python packages; needs network. ARGS=--save records a successful one.
audit: setup
	@$(BIN)/python packages/audit.py $(ARGS)

# ARGS="--quick", or names of sections; --save replaces docs/benchmarks.md, its plots and its results.
bench: setup
	@$(BIN)/python -m tests.bench.run $(ARGS)

chaos: setup jars
	@$(BIN)/python -m tests.fuzz --runs 1000000 --seconds 7200
	@$(BIN)/python -m tests.faults --seed $$RANDOM --rounds 100
	@$(BIN)/python -m tests.overload
	@$(BIN)/python -m tests.lake_faults
	@$(BIN)/python -m tests.damage --seed $$((RANDOM * 1000 + 1)) --cases 200
	@$(BIN)/python -m tests.upgrades --seed $$RANDOM
	@$(BIN)/python -m tests.sim --whole --swarm --seed $$((RANDOM * 10000 + 1)) --seeds 10000 --seconds 5 --keep-going --shrink 300
	@$(BIN)/python -m tests.sim.everywhere --seed $$((RANDOM * 10000 + 1))
	@$(BIN)/python -m tests.spec
	@LAKESTREAM_KILL_ROUNDS=200 LAKESTREAM_CONSUMER_KILLS=100 LAKESTREAM_GARBAGE_ROUNDS=2000 LAKESTREAM_FUZZ_ROUNDS=200000 LAKESTREAM_TLS_ROUNDS=50000 LAKESTREAM_FUZZ_SEED=random LAKESTREAM_CLOCK_LIVES=1000 LAKESTREAM_DAMAGE_CASES=200 LAKESTREAM_SOAK_ROUNDS=60 \
	LAKESTREAM_PROPERTY_ROUNDS=2000 LAKESTREAM_PROPERTY_SEED=random LAKESTREAM_COMMIT_RACES=25 LAKESTREAM_COMPACTOR_KILLS=20 \
	LAKESTREAM_ICEBERG_KILLS=60 LAKESTREAM_ICEBERG_ROUNDS=300 LAKESTREAM_ICEBERG_SEED=random \
	LAKESTREAM_CLUSTER_ROUNDS=100 LAKESTREAM_LINEAR_KILLS=60 LAKESTREAM_LINEAR_ROUNDS=40 \
	LAKESTREAM_MIRROR_ROUNDS=20 LAKESTREAM_MIRROR_LIVES=10 LAKESTREAM_LEAF_ROUNDS=20 LAKESTREAM_POWER_POINTS=200 LAKESTREAM_POWER_COMPACTIONS=10 LAKESTREAM_HISTORY_SECONDS=7200 \
		$(BIN)/pytest tests/power tests/chaos tests/unit/meta/test_replica_damage.py tests/unit/native/test_native.py tests/unit/schemas/test_batches.py tests/unit/schemas/test_references.py tests/unit/net/test_proxy.py tests/unit/net/accounts/test_operators.py tests/unit/stream/features/test_clock_steps.py tests/cluster/test_chaos.py tests/cluster/test_jepsen.py tests/histories tests/judge tests/cluster/test_consumers.py tests/cluster/test_linearizable.py tests/cluster/test_leaf.py tests/conformance/test_leaf_chaos.py tests/lake/test_soak.py tests/lake/test_property.py tests/lake/test_mirror_property.py tests/lake/test_as_it_was.py tests/lake/test_compact_job.py tests/lake/test_log_stores.py tests/lake/test_iceberg_kills.py tests/lake/test_iceberg_property.py $(ARGS)

# References and pictures first: they are pages of the site.
docs: setup
	@$(BIN)/python -m tests.docs.references
	@$(BIN)/python -m tests.docs.folders
	@$(BIN)/python packages/sbom.py --licences
	@$(BIN)/python -m tests.docs.pictures
	@$(BIN)/python -m tests.docs.recording
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/mkdocs build --quiet
	@echo "the site is in site/index.html"

# Fast stages first, so that failures show early. One behind the other: socket beside unit takes as long as both (9.4 minutes).
test: setup jars
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-sim
	@$(MAKE) --no-print-directory test-socket
	@$(MAKE) --no-print-directory test-cluster
	@$(MAKE) --no-print-directory test-lake
	@$(MAKE) --no-print-directory test-product

# mypy works on one processor. Beside it all tests are collected: errors in them show early, and pytest compiles each file
# once instead of in every process of every stage.
lint: setup
	@echo "== lint: ruff, mypy, import-linter; collecting all tests"
	@$(MAKE) --no-print-directory --output-sync -j 2 lint-types lint-rules

lint-types:
	@$(BIN)/mypy
	@$(BIN)/mypy --no-error-summary docker/healthy.py jobs/*.py

lint-rules:
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@found=$$($(BIN)/pytest -q --collect-only tests 2>&1) || { tail -n 40 <<< "$$found"; exit 1; }

# Names that neither lakestream, the jobs nor the tests use.
dead-code: setup
	@echo "== dead code: names of lakestream/, jobs/ and packages/ without a use"
	@! $(BIN)/vulture | grep -v '^tests/'

test-all: setup jars
	@$(MAKE) --no-print-directory test ALL=1
	@$(MAKE) --no-print-directory test-product ALL=1
	@$(MAKE) --no-print-directory test-sealed
	@$(MAKE) --no-print-directory conformance

# ARGS=--record replaces stale recordings: review the difference before you commit them. NATS_SERVER names the program of
# another release.
conformance: setup
	@echo "== conformance: lakestream beside a real nats-server $$($(NATS_SERVER) --version | sed 's/.* v//')"
	@LAKESTREAM_TEST_NATS_SERVER=$(abspath $(NATS_SERVER)) $(PYTEST) -n $(CLUSTER_WORKERS) --dist worksteal --live tests/conformance tests/clients tests/cluster $(ARGS)

# Neighbours of a cluster have different keys and ciphers. Tests that look for texts or places in files are not among these.
SEALED := tests/conformance/test_scenarios.py tests/chaos tests/faults tests/histories tests/judge tests/sim/whole tests/power $(addprefix tests/conformance/test_,backups.py copies_restart.py move.py restart.py stalled_copies.py verify.py workers.py worker_moves.py) $(addprefix tests/cluster/test_,backups.py chaos.py conformance.py jepsen.py mirrors.py peer_failures.py peers.py rolled_back.py verify.py)
SEALED_LAKE := $(addprefix tests/lake/test_,archive.py clones.py cluster.py end_to_end.py mirrors.py)

test-sealed: setup jars
	@echo "== sealed: scenarios, clusters, kills, faults, power losses, simulations, backups and clones on encrypted stores"
	@LAKESTREAM_TEST_KEY=sealed $(PYTEST) -n $(SERVER_WORKERS) --dist worksteal $(SEALED) $(ARGS)
	@LAKESTREAM_TEST_KEY=sealed $(PYTEST) -n $(LAKE_WORKERS) --dist loadfile $(SEALED_LAKE) $(ARGS)

test-unit: setup
	@echo "== unit: no sockets, no JVM"
	@$(PYTEST) $(CHOSEN) -n $(WORKERS) --dist worksteal tests/unit tests/fuzz tests/faults/test_steps.py tests/corruption tests/histories/test_checks.py tests/long_run $(ARGS)

test-sim: setup
	@echo "== simulation: Raft groups and whole servers on simulated disks and networks, models"
	@$(PYTEST) $(CHOSEN) -n $(WORKERS) --dist worksteal tests/sim tests/spec $(ARGS)

test-socket: setup
	@echo "== socket: unmodified clients, recordings of nats-server, and kills"
	@$(PYTEST) $(CHOSEN) -n $(SERVER_WORKERS) --dist worksteal tests/conformance tests/clients tests/chaos tests/faults/test_servers.py tests/lake_faults tests/stored/test_standalone.py $(ARGS)

test-cluster: setup
	@echo "== cluster: several servers, with kills, pauses and cut links"
	@$(PYTEST) $(CHOSEN) -n $(CLUSTER_WORKERS) --dist worksteal tests/cluster tests/stored/test_cluster.py tests/histories/test_histories.py tests/judge tests/damage $(ARGS)

test-lake: setup jars
	@echo "== lake: real Spark, and power losses"
	@$(PYTEST) $(CHOSEN) -n $(LAKE_WORKERS) --dist loadfile tests/lake tests/power tests/stored/test_lake.py $(ARGS)

test-product: setup jars
	@echo "== product: documentation, packages, deployment, examples"
	@$(PYTEST) $(CHOSEN) $(PRODUCT) $(ARGS)

clean:
	rm -rf $(VENV) build dist site *.egg-info packages/*/*.egg-info packages/*/build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find lakestream packages tests jobs -name __pycache__ -type d -prune -exec rm -rf {} +
