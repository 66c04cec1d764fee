"""Nothing acknowledged is lost when the power goes, and nothing unacknowledged is half there.

case 25: kill -9 proves little, for the system's cache survives it. Here the disk keeps only what was synced, and any
torn part of the rest; the store is opened from what is left and held to what it had said. LEASE-14.
"""

import random
import shutil
from pathlib import Path

import pytest

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free, LockRecord
from volcano_locks_server.stores.sqlite import SqliteFile, connection
from volcano_locks_server.testing import ManualClock

from .deeds import found, held, key, put
from .simulated_disk import PowerDisk

KEYS = [key(f"k{number}") for number in range(60)]
Written = dict[RecordKey, LockRecord]


class Witness:
    """Cuts the power at some of the disk's events, and notes what had been acknowledged and what was under way."""

    def __init__(self, disk: PowerDisk, directory: Path, chance: random.Random) -> None:
        self.acknowledged: Written = {}
        self.under_way: Written = {}
        self.cuts: list[tuple[Path, Written, Written]] = []
        self._disk = disk
        self._directory = directory
        self._chance = chance
        disk.on_event = self.maybe_cut

    def maybe_cut(self) -> None:
        if self._chance.random() < 0.07:
            self.cut()

    def cut(self) -> None:
        into = self._directory / f"cut-{len(self.cuts)}"
        self._disk.cut(into, self._chance)
        self.cuts.append((into, dict(self.acknowledged), dict(self.under_way)))


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_acknowledged_survives_a_power_cut_at_any_moment(
    path: Path, tmp_path: Path, clock: ManualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 25: also while the log is being checkpointed, which happens here every few batches."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 20)
    chance = random.Random(seed)
    disk = PowerDisk(f"power-{seed}")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    witness = Witness(disk, tmp_path, chance)
    for _ in range(50):
        now_ms = clock.advance(10)
        batch: Written = {}
        for one in chance.sample(KEYS, chance.randint(1, 20)):
            batch[one] = held(str(now_ms), now_ms) if chance.random() < 0.7 else Free(now_ms, now_ms)
        witness.under_way = batch
        await put(file.locks, *batch.items())
        witness.acknowledged |= batch
        witness.under_way = {}
        if chance.random() < 0.3:
            witness.cut()
    await file.close()
    assert len(witness.cuts) > 15
    for directory, acknowledged, under_way in witness.cuts:
        await check(directory / path.name, clock, acknowledged, under_way)


async def check(path: Path, clock: ManualClock, acknowledged: Written, under_way: Written) -> None:
    """The file holds what was acknowledged, with the whole of the batch under way or nothing of it."""
    file = await SqliteFile.open(path, clock)
    there = dict(zip(KEYS, await found(file.locks, *KEYS), strict=True))
    await file.close()
    before = dict.fromkeys(KEYS) | acknowledged
    assert there in (before, before | under_way)


async def test_each_batch_that_writes_is_synced_before_it_is_answered(path: Path, clock: ManualClock) -> None:
    """case 25: one sync for the whole batch, none for a batch that changes nothing."""
    disk = PowerDisk("counting")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    await put(file.locks, *((one, Free(1, 1)) for one in KEYS))  # the first after a checkpoint also syncs a new header
    for number in range(3):
        before = disk.syncs
        await put(file.locks, *((one, Free(2 + number, 1)) for one in KEYS))
        assert disk.syncs == before + 1
        await found(file.locks, *KEYS)
        assert disk.syncs == before + 1
    await file.close()


async def test_the_newest_instant_survives_with_what_was_judged_by_it(
    path: Path, tmp_path: Path, clock: ManualClock
) -> None:
    """case 30, LEASE-1."""
    disk = PowerDisk("instants")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    clock.advance(86_400_000)
    await put(file.locks, (key("a"), Free(1, clock.now_ms())))
    disk.cut(tmp_path / "cut", random.Random(0))
    await file.close()
    reopened = await SqliteFile.open(tmp_path / "cut" / path.name, clock)
    assert reopened.locks.newest_ms == clock.now_ms()
    await reopened.close()


@pytest.mark.parametrize("is_full", [False, True])
async def test_what_a_killed_server_left_is_made_durable_before_it_is_served(
    path: Path, tmp_path: Path, clock: ManualClock, is_full: bool
) -> None:
    """case 25: killed between write and sync, the log is in the system's cache only; who reads it may rely on it."""
    file = await SqliteFile.open(path, clock)
    await put(file.locks, *((one, Free(1, 1)) for one in KEYS))
    left = tmp_path / "left"
    left.mkdir()
    for name in (path.name, path.name + "-wal"):
        shutil.copy(path.with_name(name), left / name)
    await file.close()
    disk = PowerDisk(f"left-{is_full}", unsynced="-wal")
    disk.is_full = is_full
    restarted = await SqliteFile.open(left / path.name, clock, vfs=disk.name)
    assert await found(restarted.locks, *KEYS) == [Free(1, 1)] * len(KEYS)
    disk.cut(tmp_path / "cut", random.Random(1))
    disk.is_full = False
    await restarted.close()
    await check(tmp_path / "cut" / path.name, clock, {one: Free(1, 1) for one in KEYS}, {})


async def test_a_failed_sync_does_not_take_later_batches_with_it(
    path: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 24, case 25: after a failed sync a system may forget what it should have written and say so once only."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 20)
    chance = random.Random(5)
    disk = PowerDisk("lying")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    failed = 0
    for number in range(60):
        if chance.random() < 0.5:
            disk.lie()
        records = {one: Free(number, number) for one in chance.sample(KEYS, 10)}
        try:
            await put(file.locks, *records.items())
        except StoreUnavailableError:
            failed += 1
        await put(file.locks, (KEYS[0], Free(number, 1_000)))
        there = dict(zip(KEYS, await found(file.locks, *KEYS), strict=True))
        into = tmp_path / f"cut-{number}"
        disk.cut(into, chance)
        await check(into / path.name, clock, {one: record for one, record in there.items() if record}, {})
    assert failed > 10
    await file.close()
