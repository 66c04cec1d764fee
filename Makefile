# Thin on purpose: each target calls one tool. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup check test demo bench
BIN := .venv/bin
READY := .venv/.ready

help: ## list the targets
	@echo "usage: make TARGET"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with both distributions and the pinned tools
	@echo "ready: try make demo, or . .venv/bin/activate and volcano-locks dev"

$(READY): constraints.txt requirements-dev.txt server/pyproject.toml sdks/python/pyproject.toml .ci/setup
	@PYTHON="$(PYTHON)" .ci/setup
	@touch $@

check: $(READY) ## lint, format, types, import directions, the spec's tables
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/spec

test: $(READY) ## run every test
	@.ci/debian-packages "the tests need" openssl postgresql mariadb-server sqlite3
	$(BIN)/python -m pytest

demo: $(READY) ## two workers, one lock, a kill -9 and a refused late write
	@$(BIN)/python examples/demo

bench: $(READY) ## measure beside etcd and Redis
	@.ci/debian-packages "the benchmark needs" wrk etcd-server redis-server ruby-redis
	$(BIN)/python -m bench
