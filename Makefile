# Each target calls one tool. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup dev check test test-fast test-integrations docs dist simulate torture demo bench screenshots etcd-proto
BIN := .venv/bin
READY := .venv/.ready
DEV := build/dev
JAVASCRIPT := sdks/javascript
JAVASCRIPT_READY := $(JAVASCRIPT)/node_modules/.ready
RUBY_PACKAGES = $(shell cat sdks/ruby/debian-packages.txt)
TEST_TOOLS := openssl sqlite3 libfaketime systemd prometheus chromium
ENGINES := postgresql mariadb-server pgbouncer etcd-server nginx haproxy
FRAMEWORKS_READY := .venv/.frameworks
RELEASE_READY := .venv/.release
DOCS_READY := .venv/.docs
FRAMEWORK_PACKAGES := redis-server ruby-activejob ruby-activerecord ruby-railties ruby-sidekiq ruby-sqlite3 puma
# These mostly wait for leases of 5 seconds to expire.
FRAMEWORK_WORKERS ?= 6
# Tests that wait for real time have processes of their own, and the processor first: the others fill it up.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 6 ? cores : 6)))
WAITING_WORKERS ?= 6
# JavaScript is built before the suites start: the conformance tests and npm test would build it at the same time.
JAVASCRIPT_TESTS := "sdks/javascript: tests" "cd $(JAVASCRIPT) && node_modules/.bin/vitest run"
PUBLIC_CALLS := sdks/python/tests/public_calls.py
RUBY_TESTS := "sdks/ruby: tests" "rake -C sdks/ruby test TESTOPTS=--verbose"
PYTEST := $(BIN)/python -m pytest --dist loadgroup
WAITING_TESTS := "python: tests that wait for real time" "nice -n 2 $(PYTEST) -n $(WAITING_WORKERS) -m real_time"
COMPUTING_TESTS := nice -n 10 $(PYTEST) -n $(WORKERS) -m "not real_time"

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## create .venv with both distributions and the pinned tools
	@echo "ready: try make demo, or . .venv/bin/activate and volcano-locks dev"

dev: $(DEV)/bin/volcano-locks ## install the server in build/dev, and start a development server
	@$(DEV)/bin/volcano-locks dev

$(DEV)/bin/volcano-locks: server/pyproject.toml sdks/python/pyproject.toml
	@$(or $(PYTHON),python3) -m venv --clear $(DEV)
	@.ci/quietly "dev: installing the server (half a minute)" \
	  $(DEV)/bin/python -m pip install -q --disable-pip-version-check './sdks/python[cli]' ./server
	@touch $@

$(READY): requirements-hashed.txt server/pyproject.toml sdks/python/pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" .ci/setup
	@touch $@

$(JAVASCRIPT_READY): $(JAVASCRIPT)/package.json $(JAVASCRIPT)/package-lock.json .ci/node
	@.ci/node
	@touch $@

check: $(READY) $(JAVASCRIPT_READY) ## lint, formats, types, import directions, packages, docs against the code
	@.ci/debian-packages "the checks need" $(RUBY_PACKAGES)
	@.ci/side-by-side \
	  "sdks/javascript: checks" "npm run check --prefix $(JAVASCRIPT)" \
	  "sdks/ruby: checks" "rake -C sdks/ruby check" \
	  "python: types" "$(BIN)/mypy && $(BIN)/mypy $(PUBLIC_CALLS) && $(JAVASCRIPT)/node_modules/.bin/pyright --pythonpath $(BIN)/python $(PUBLIC_CALLS)" \
	  -- sh -ec '$(BIN)/ruff check .; $(BIN)/ruff format --check .; $(BIN)/lint-imports; $(BIN)/python -m pytest docs_consistency'

test: $(READY) $(JAVASCRIPT_READY) ## run every test of every language, side by side
	@.ci/debian-packages "the tests need" $(TEST_TOOLS) $(ENGINES) $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: build" npm run build --prefix $(JAVASCRIPT)
	@.ci/side-by-side $(JAVASCRIPT_TESTS) $(RUBY_TESTS) $(WAITING_TESTS) -- $(COMPUTING_TESTS)

test-fast: $(READY) $(JAVASCRIPT_READY) ## the same without database engines, proxies and tests that wait for real time
	@.ci/debian-packages "the tests need" $(TEST_TOOLS) $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: build" npm run build --prefix $(JAVASCRIPT)
	@.ci/side-by-side $(JAVASCRIPT_TESTS) $(RUBY_TESTS) -- nice -n 10 $(PYTEST) -n $(WORKERS) -m "not engines and not real_time"

test-integrations: $(READY) $(JAVASCRIPT_READY) $(FRAMEWORKS_READY) ## run the integrations with real frameworks
	@.ci/debian-packages "the tests of the integrations need" $(FRAMEWORK_PACKAGES) $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: build" npm run build --prefix $(JAVASCRIPT)
	@$(BIN)/python -m pytest -n $(FRAMEWORK_WORKERS) --durations=5 integrations

$(FRAMEWORKS_READY): $(READY) integrations/requirements.txt
	@.ci/quietly "integrations: installing the frameworks" \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r integrations/requirements.txt
	@touch $@

docs: $(READY) $(JAVASCRIPT_READY) $(DOCS_READY) ## build the docs site in build/site/html; a dead link fails
	@.ci/debian-packages "the site needs" $(RUBY_PACKAGES)
	@$(BIN)/python -m docs.site

$(DOCS_READY): $(READY) docs/site/requirements.txt
	@.ci/quietly "docs: installing the generator of the site" \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r docs/site/requirements.txt
	@touch $@

dist: $(READY) $(JAVASCRIPT_READY) $(RELEASE_READY) ## build and check the packages of a release in dist/, and try each
	@.ci/debian-packages "the packages need" $(RUBY_PACKAGES)
	@$(BIN)/python -m release dist
	@VOLCANO_LOCKS_DIST=dist $(BIN)/python -m pytest e2e/packaging/test_packages.py e2e/packaging/test_wheels.py \
	  e2e/packaging/test_installed_wheels.py

$(RELEASE_READY): $(READY) release/requirements.txt
	@.ci/quietly "release: installing its tools" \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r release/requirements.txt
	@touch $@

SEED ?= 1
SEEDS ?= 20
OPERATIONS ?= 10000
simulate: $(READY) ## run seeded simulations: SEED (first), SEEDS (how many), OPERATIONS (of each)
	@$(BIN)/python -m simulation run --seed $(SEED) --seeds $(SEEDS) --operations $(OPERATIONS)

demo: $(READY) ## two workers, one lock, a kill -9 and a refused late write
	@$(BIN)/python examples/demo

bench: $(READY) ## compare with etcd, Redis and PostgreSQL on this machine
	@.ci/debian-packages "the benchmark needs" wrk etcd-server redis-server postgresql ruby-redis
	$(BIN)/python -m bench

screenshots: $(READY) ## write pictures of the dashboard into docs/images/dashboard
	@.ci/debian-packages "the pictures need" chromium fonts-inter
	@$(BIN)/python -m e2e.dashboard.screenshots docs/images/dashboard

torture: $(READY) $(JAVASCRIPT_READY) ## faults in real engines, nodes and clients: MINUTES=3 ENGINE=sqlite|postgres|etcd SEED=…
	@.ci/debian-packages "the torture needs" $(TEST_TOOLS) $(ENGINES) $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: build" npm run build --prefix $(JAVASCRIPT)
	@$(BIN)/python -m torture $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ENGINE),--engine $(ENGINE)) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json)

etcd-proto: $(READY) ## regenerate the etcd store's message classes from rpc.proto
	$(BIN)/python -m grpc_tools.protoc -I server/src --python_out=server/src server/src/volcano_locks_server/stores/etcd/rpc.proto
