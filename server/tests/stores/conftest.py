"""Both stores, open, under a clock that the test moves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, path: Path, clock: ManualClock) -> AsyncIterator[OpenStore]:
    """Every promise of a store is tested on each of them."""
    opened = await open_store("memory://" if request.param == "memory" else f"sqlite:///{path}", clock)
    yield opened
    await opened.close()
