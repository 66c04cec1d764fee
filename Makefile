# Each target calls one tool. `make` alone lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup check test test-fast demo bench etcd-proto
BIN := .venv/bin
READY := .venv/.ready
JAVASCRIPT := sdks/javascript
JAVASCRIPT_READY := $(JAVASCRIPT)/node_modules/.ready
RUBY_PACKAGES = $(shell cat sdks/ruby/debian-packages.txt)
TEST_TOOLS := openssl sqlite3 libfaketime
ENGINES := postgresql mariadb-server pgbouncer etcd-server nginx haproxy
# Many tests wait for real time, so one more process than cores.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 5)))
# JavaScript is built before the suites start: the conformance tests and npm test would build it at the same time.
JAVASCRIPT_TESTS := "sdks/javascript: tests" "cd $(JAVASCRIPT) && node_modules/.bin/vitest run"
RUBY_TESTS := "sdks/ruby: tests" "rake -C sdks/ruby test"
# Lower priority than the other suites, whose tests wait for shorter times in real time.
PYTEST := nice -n 5 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## create .venv with both distributions and the pinned tools
	@echo "ready: try make demo, or . .venv/bin/activate and volcano-locks dev"

$(READY): constraints.txt requirements-dev.txt server/pyproject.toml sdks/python/pyproject.toml .ci/setup
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
	  "python: types" "$(BIN)/mypy" \
	  -- sh -ec '$(BIN)/ruff check .; $(BIN)/ruff format --check .; $(BIN)/lint-imports; $(BIN)/python -m pytest docs_consistency'

test: $(READY) $(JAVASCRIPT_READY) ## run every test of every language, side by side
	@.ci/debian-packages "the tests need" $(TEST_TOOLS) $(ENGINES) $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: build" npm run build --prefix $(JAVASCRIPT)
	@.ci/side-by-side $(JAVASCRIPT_TESTS) $(RUBY_TESTS) -- $(PYTEST)

test-fast: $(READY) $(JAVASCRIPT_READY) ## the same without database engines, proxies and tests that wait for real time
	@.ci/debian-packages "the tests need" $(TEST_TOOLS) $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: build" npm run build --prefix $(JAVASCRIPT)
	@.ci/side-by-side $(JAVASCRIPT_TESTS) $(RUBY_TESTS) -- $(PYTEST) -m "not engines and not real_time"

demo: $(READY) ## two workers, one lock, a kill -9 and a refused late write
	@$(BIN)/python examples/demo

bench: $(READY) ## compare with etcd, Redis and PostgreSQL on this machine
	@.ci/debian-packages "the benchmark needs" wrk etcd-server redis-server postgresql ruby-redis
	$(BIN)/python -m bench

etcd-proto: $(READY) ## regenerate the etcd store's message classes from rpc.proto
	$(BIN)/python -m grpc_tools.protoc -I server/src --python_out=server/src server/src/volcano_locks_server/stores/etcd/rpc.proto
