"""A power cut loses no acknowledged record, and leaves no unacknowledged batch half written.

case 25: kill -9 proves little, because the system's cache survives it. Here the disk keeps only what was synced, plus
random parts of the rest; the test then opens the store from this and compares its records. LEASE-14.
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

from ..store_actions import held, key, read_records, write_records
from .simulated_disk import PowerDisk

KEYS = [key(f"k{number}") for number in range(60)]
Written = dict[RecordKey, LockRecord]


class Witness:
    """Cuts the power at some of the disk's events, and records what was acknowledged and what was in progress."""

    def __init__(self, disk: PowerDisk, directory: Path, chance: random.Random) -> None:
        self.acknowledged: Written = {}
        self.in_progress: Written = {}
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
        self.cuts.append((into, dict(self.acknowledged), dict(self.in_progress)))


@pytest.mark.parametrize("seed", range(3))
async def test_acknowledged_records_survive_a_power_cut_at_any_moment(
    path: Path, tmp_path: Path, clock: ManualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 25: also during a checkpoint of the log, which happens here every few batches."""
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
        witness.in_progress = batch
        await write_records(file.locks, *batch.items())
        witness.acknowledged |= batch
        witness.in_progress = {}
        if chance.random() < 0.3:
            witness.cut()
    await file.close()
    assert len(witness.cuts) > 15
    for directory, acknowledged, in_progress in witness.cuts:
        await check(directory / path.name, clock, acknowledged, in_progress)


async def check(path: Path, clock: ManualClock, acknowledged: Written, in_progress: Written) -> None:
    """The file holds the acknowledged records, with all or nothing of the batch in progress."""
    file = await SqliteFile.open(path, clock)
    there = dict(zip(KEYS, await read_records(file.locks, *KEYS), strict=True))
    await file.close()
    before = dict.fromkeys(KEYS) | acknowledged
    assert there in (before, before | in_progress)


async def test_each_batch_that_writes_is_synced_before_it_returns(path: Path, clock: ManualClock) -> None:
    """case 25: one sync for the whole batch, none for a batch that changes nothing."""
    disk = PowerDisk("counting")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    await write_records(
        file.locks, *((one, Free(1, 1)) for one in KEYS)
    )  # the first after a checkpoint also syncs a new header
    for number in range(3):
        before = disk.syncs
        await write_records(file.locks, *((one, Free(2 + number, 1)) for one in KEYS))
        assert disk.syncs == before + 1
        await read_records(file.locks, *KEYS)
        assert disk.syncs == before + 1
    await file.close()


async def test_the_newest_instant_survives_with_its_batch(path: Path, tmp_path: Path, clock: ManualClock) -> None:
    """case 30, LEASE-1."""
    disk = PowerDisk("instants")
    file = await SqliteFile.open(path, clock, vfs=disk.name)
    clock.advance(86_400_000)
    await write_records(file.locks, (key("a"), Free(1, clock.now_ms())))
    disk.cut(tmp_path / "cut", random.Random(0))
    await file.close()
    reopened = await SqliteFile.open(tmp_path / "cut" / path.name, clock)
    assert reopened.locks.clock.newest_ms == clock.now_ms()
    await reopened.close()


@pytest.mark.parametrize("is_full", [False, True])
async def test_the_log_of_a_killed_server_is_made_durable_at_the_start(
    path: Path, tmp_path: Path, clock: ManualClock, is_full: bool
) -> None:
    """case 25: after a kill between write and sync the log is only in the system's cache, but readers rely on it."""
    file = await SqliteFile.open(path, clock)
    await write_records(file.locks, *((one, Free(1, 1)) for one in KEYS))
    left = tmp_path / "left"
    left.mkdir()
    for name in (path.name, path.name + "-wal"):
        shutil.copy(path.with_name(name), left / name)
    await file.close()
    disk = PowerDisk(f"left-{is_full}", unsynced="-wal")
    disk.is_full = is_full
    restarted = await SqliteFile.open(left / path.name, clock, vfs=disk.name)
    assert await read_records(restarted.locks, *KEYS) == [Free(1, 1)] * len(KEYS)
    disk.cut(tmp_path / "cut", random.Random(1))
    disk.is_full = False
    await restarted.close()
    await check(tmp_path / "cut" / path.name, clock, {one: Free(1, 1) for one in KEYS}, {})


async def test_batches_after_a_failed_sync_are_durable(
    path: Path, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 24, case 25: after a failed sync the system may drop the pages and report the failure only once."""
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
            await write_records(file.locks, *records.items())
        except StoreUnavailableError:
            failed += 1
        await write_records(file.locks, (KEYS[0], Free(number, 1_000)))
        there = dict(zip(KEYS, await read_records(file.locks, *KEYS), strict=True))
        into = tmp_path / f"cut-{number}"
        disk.cut(into, chance)
        await check(into / path.name, clock, {one: record for one, record in there.items() if record}, {})
    assert failed > 10
    await file.close()
