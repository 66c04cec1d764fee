"""pytest fixtures for code that takes locks: a lock server in memory, a clock that the test moves, and clients.

    def test_report(volcano_client, volcano_clock):
        with volcano_client.locks.with_lock("report", ttl=30) as guard:
            volcano_clock.advance(300)
            assert not guard.lost

pytest finds them when the package is installed (entry point `pytest11`). Each test has its own server.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from volcano_locks import AsyncClient, Client
    from volcano_locks.testing import FakeLocks, ManualClock


@pytest.fixture
def volcano_clock() -> "ManualClock":
    """The clock of the server and the clients: `advance(seconds)` moves it, with every renewal in between."""
    from volcano_locks.testing import ManualClock  # noqa: PLC0415 - the plugin loads in every test run

    return ManualClock()


@pytest.fixture
def volcano_server(volcano_clock: "ManualClock") -> "FakeLocks":
    """A lock server in memory. `volcano_server.client()` makes further clients."""
    from volcano_locks.testing import FakeLocks  # noqa: PLC0415 - the plugin loads in every test run

    return FakeLocks(volcano_clock)


@pytest.fixture
def volcano_client(volcano_server: "FakeLocks") -> "Iterator[Client]":
    """A `Client` of that server."""
    with volcano_server.client() as client:
        yield client


@pytest.fixture
def volcano_async_client(volcano_server: "FakeLocks") -> "AsyncClient":
    """An `AsyncClient` of that server. It has no connections, so it needs no closing."""
    return volcano_server.async_client()
