"""The writer thread: in order, bounded, and safe with cancelled callers."""

import asyncio
import threading
from pathlib import Path

import pytest

from volcano_locks_server.ports.lock_store import Records, StepResult
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores.sqlite import SqliteFile, connection, writer
from volcano_locks_server.testing import ManualClock

from ..store_actions import increment, key, read_records, write_records


async def blocked(file: SqliteFile) -> tuple[threading.Event, asyncio.Task[None]]:
    """The writer is busy until the event is set."""
    gate = threading.Event()

    async def wait() -> None:
        await file._writer.run(gate.wait)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return gate, task


async def test_close_runs_the_queue_and_refuses_new_work(path: Path, clock: ManualClock) -> None:
    """LEASE-14."""
    file = await SqliteFile.open(path, clock)
    gate, _busy = await blocked(file)
    queued = [asyncio.create_task(increment(file.locks, key("a"))) for _ in range(20)]
    await asyncio.sleep(0)
    closing = [asyncio.create_task(file.close()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError) as caught:
        await file.locks.ready()
    assert caught.value.cause_code == "stopping"
    gate.set()
    assert await asyncio.gather(*queued) == list(range(1, 21))
    await asyncio.gather(*closing)
    assert not any(thread.name == "sqlite-writer" for thread in threading.enumerate())
    again = await SqliteFile.open(path, clock)
    assert await increment(again.locks, key("a")) == 21
    await again.close()


async def test_a_cancelled_job_in_the_queue_is_skipped(path: Path, clock: ManualClock) -> None:
    file = await SqliteFile.open(path, clock)
    gate, _busy = await blocked(file)
    calls = [asyncio.create_task(increment(file.locks, key("a"))) for _ in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    await asyncio.sleep(0)
    gate.set()
    assert [await calls[0], await calls[2]] == [1, 2]
    await file.close()


async def test_a_cancelled_job_that_began_runs_to_its_end(path: Path, clock: ManualClock) -> None:
    """LEASE-14: it takes effect as a whole."""
    file = await SqliteFile.open(path, clock)
    begun, gate = threading.Event(), threading.Event()

    def step(_records: Records, now_ms: int) -> StepResult:
        begun.set()
        gate.wait()
        return StepResult({key("a"): Free(1, now_ms), key("b"): Free(1, now_ms)}, ())

    call = asyncio.create_task(file.locks.update([key("a"), key("b")], step))
    await asyncio.to_thread(begun.wait)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    gate.set()
    assert await read_records(file.locks, key("a"), key("b")) == [Free(1, clock.now_ms())] * 2
    await file.close()


async def test_the_queue_is_bounded(path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "JOBS_MAX", 3)
    file = await SqliteFile.open(path, clock)
    gate, _busy = await blocked(file)
    queued = [asyncio.create_task(increment(file.locks, key("a"))) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError) as caught:
        await increment(file.locks, key("a"))
    assert caught.value.cause_code == "overloaded"
    gate.set()
    assert await asyncio.gather(*queued) == [1, 2]
    assert await increment(file.locks, key("a")) == 3
    await file.close()


async def test_the_log_stays_small_under_many_writes(path: Path, clock: ManualClock) -> None:
    log = path.with_name("locks.db-wal")
    file = await SqliteFile.open(path, clock)
    biggest = 0
    for number in range(150):
        now_ms = clock.advance(1)
        await write_records(
            file.locks, *((key(f"{number * 7919 % 1000}-{place}"), Free(1, now_ms)) for place in range(100))
        )
        biggest = max(biggest, log.stat().st_size)
    bound = 2 * connection.WAL_CHECKPOINT_PAGES * (4_096 + 24)
    assert bound / 4 < biggest < bound
    await file.close()
    assert not log.exists()


async def test_a_huge_transaction_does_not_leave_a_huge_log(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAL_BYTES_KEPT_MAX", 100_000)
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 100)
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, *((key(f"{number}"), Free(1, 1)) for number in range(20_000)))
    assert path.with_name("locks.db-wal").stat().st_size > 1_000_000
    await write_records(file.locks, (key("a"), Free(1, 1)))
    assert path.with_name("locks.db-wal").stat().st_size <= 100_000
    await file.close()
