# Thin on purpose: each target calls one tool. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup check test demo bench etcd-proto
BIN := .venv/bin
READY := .venv/.ready
JAVASCRIPT := sdks/javascript
JAVASCRIPT_READY := $(JAVASCRIPT)/node_modules/.ready
RUBY_PACKAGES = $(shell cat sdks/ruby/debian-packages.txt)

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with both distributions and the pinned tools
	@echo "ready: try make demo, or . .venv/bin/activate and volcano-locks dev"

$(READY): constraints.txt requirements-dev.txt server/pyproject.toml sdks/python/pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" .ci/setup
	@touch $@

$(JAVASCRIPT_READY): $(JAVASCRIPT)/package.json $(JAVASCRIPT)/package-lock.json .ci/node
	@.ci/node
	@touch $@

check: $(READY) $(JAVASCRIPT_READY) ## lint, format, types, import directions, packages, the spec's tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@.ci/debian-packages "the checks need" $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: checks" npm run check --prefix $(JAVASCRIPT)
	@.ci/quietly "sdks/ruby: checks" rake -C sdks/ruby check
	$(BIN)/python -m pytest docs_consistency

test: $(READY) $(JAVASCRIPT_READY) ## run every test of every language
	@.ci/debian-packages "the tests need" openssl postgresql mariadb-server pgbouncer etcd-server libfaketime sqlite3 nginx haproxy $(RUBY_PACKAGES)
	@.ci/quietly "sdks/javascript: tests" npm test --prefix $(JAVASCRIPT)
	@.ci/quietly "sdks/ruby: tests" rake -C sdks/ruby test
	$(BIN)/python -m pytest

demo: $(READY) ## two workers, one lock, a kill -9 and a refused late write
	@$(BIN)/python examples/demo

bench: $(READY) ## measure beside etcd, Redis and PostgreSQL
	@.ci/debian-packages "the benchmark needs" wrk etcd-server redis-server postgresql ruby-redis
	$(BIN)/python -m bench

etcd-proto: $(READY) ## regenerate the etcd store's message classes from rpc.proto
	$(BIN)/python -m grpc_tools.protoc -I server/src --python_out=server/src server/src/volcano_locks_server/stores/etcd/rpc.proto
