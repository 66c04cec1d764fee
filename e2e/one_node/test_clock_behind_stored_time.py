"""A server whose machine's clock is behind the newest time in its file."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from testsupport.server_process import ServerExitedError, ServerProcess

from volcano_locks.cli.exit_codes import UNAVAILABLE
from volcano_locks_server.ports.lock_store import RecordKey, Records, StepResult
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import open_store
from volcano_locks_server.testing import ManualClock

KEY = RecordKey("project", LockKey.parse("a"))
pytestmark = pytest.mark.real_time


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def write_store_at(path: Path, now_ms: int) -> None:
    """Create a store's file whose newest time is `now_ms`."""
    store = await open_store(f"sqlite:///{path}", ManualClock(now_ms))

    def step(_records: Records, _now_ms: int) -> StepResult:
        return StepResult({KEY: Free(now_ms, now_ms)}, [])

    await store.locks.update([KEY], step)
    await store.close()


async def test_a_file_from_the_future_is_refused_and_unchanged(
    tmp_path: Path, new_server: Callable[..., ServerProcess]
) -> None:
    """LEASE-1, LEASE-16, CLI-14: the message names the time and what to do; the exit code is 69."""
    path, future_ms = tmp_path / "locks.db", wall_ms() + 600_000
    await write_store_at(path, future_ms)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.suffix != ".lock"}
    with pytest.raises(ServerExitedError) as caught:
        new_server(path).start()
    assert caught.value.exit_code == UNAVAILABLE
    instant = datetime.fromtimestamp(future_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    assert f"the store was written at {instant}: set the machine's clock right" in caught.value.output
    assert "Traceback" not in caught.value.output
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir() if one.suffix != ".lock"} == before


async def test_the_server_waits_for_a_time_that_is_near(
    tmp_path: Path, new_server: Callable[..., ServerProcess]
) -> None:
    """LEASE-1: the server listens and serves when the time has passed."""
    path, soon_ms = tmp_path / "locks.db", wall_ms() + 3_000
    await write_store_at(path, soon_ms)
    server = new_server(path)
    server.start()
    assert wall_ms() >= soon_ms
    assert httpx2.get(f"{server.url}/readyz").status_code == 200
