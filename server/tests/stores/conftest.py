"""Fixtures: every store, open, with a clock that the test controls."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from testsupport.engines import etcd, postgres

from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def database() -> str:
    """The URL of an empty PostgreSQL database on a server that all tests share."""
    server = postgres.shared()
    return server.url(server.new_database())


def url_of(kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of an empty store of that kind."""
    match kind:
        case "sqlite":
            return f"sqlite:///{request.getfixturevalue('path')}"
        case "postgres":
            return str(request.getfixturevalue("database"))
        case "etcd":
            return etcd.shared().url()
    return "memory://"


@pytest.fixture(params=["memory", "sqlite", "postgres", "etcd"])
async def store(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[OpenStore]:
    """An open store; each test that uses it runs on all four."""
    opened = await open_store(url_of(request.param, request), clock)
    yield opened
    await opened.close()
