"""A model of SQLite's file on one machine, under the product's own SQLite store.

What is modelled is the writer thread and the disk: jobs run one at a time and take time, a commit is durable when its
job has run, a killed process loses the jobs that have not, and a disk may stall, fail before a write, or fail after it.
The database is SQLite itself, in memory: it outlives the processes.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeVar, cast

import apsw

from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.errors import refuse_clock_far_behind
from volcano_locks_server.stores.sqlite.connection import migrations, roll_back_if_open
from volcano_locks_server.stores.sqlite.file_clock import BEHIND_MS_MAX
from volcano_locks_server.stores.sqlite.locks import SqliteStore

from ..loop import ProcessLoop
from ..world import World
from .observed import OnCommit, current_update

T = TypeVar("T")


class ModelFile:
    """One file. `disk_fails` is the share of jobs that fail, half of them after they took effect."""

    def __init__(self, world: World, random: Random, on_commit: OnCommit) -> None:
        self.disk_fails = 0.0
        self.stalled_until = 0.0
        self.world: Final = world
        self.random: Final = random
        self.on_commit: Final = on_commit
        self.connection: Final = apsw.Connection(":memory:")
        for _, script in migrations():
            self.connection.execute(script)

    async def open(self, _node: str, clock: Clock, loop: ProcessLoop) -> OpenStore:
        """Open the file in a new process. Raises StoreUnavailableError if its clock is too far behind."""
        roll_back_if_open(self.connection)
        writer = _ModelWriter(self, loop)
        locks = SqliteStore(self.connection, cast("Any", writer), cast("Any", _Undamaged()), cast("Any", None), clock)
        while (behind_ms := locks.clock.behind_ms()) > 0:
            refuse_clock_far_behind(
                "the machine's clock", locks.clock.unchecked_ms(), locks.clock.newest_ms, BEHIND_MS_MAX
            )
            await asyncio.sleep(behind_ms / 1_000)
        await writer.run(locks.clock.begin)
        return OpenStore(locks, *[cast("Any", None)] * 4)


class _Undamaged:
    """The files' lock; no other program touches them."""

    def __init__(self) -> None:
        self.served: Final = _Uncounted()

    def check_files(self, *, now: bool = False) -> None: ...


class _Uncounted:
    """The numbers of commits; the model never loses a log, so it needs none."""

    def count_commit(self, _connection: apsw.Connection) -> None: ...

    def committed(self) -> None: ...


class _ModelWriter:
    def __init__(self, file: ModelFile, loop: ProcessLoop) -> None:
        self._file: Final = file
        self._loop: Final = loop
        self._free_at = 0.0

    async def run(self, work: Callable[[], T]) -> T:
        result: asyncio.Future[T] = self._loop.create_future()
        file, world = self._file, self._file.world
        begins_at = max(world.now, self._free_at, file.stalled_until)
        self._free_at = begins_at + 0.000_5 + file.random.expovariate(400)
        world.at(self._free_at, self._work, work, result, current_update())
        return await result

    def _work(self, work: Callable[[], T], result: "asyncio.Future[T]", update: Any) -> None:
        file, loop = self._file, self._loop
        if loop.is_killed:
            return
        if file.world.now < loop.paused_until or file.world.now < file.stalled_until:  # the thread is paused too
            self._free_at = max(loop.paused_until, file.stalled_until)
            file.world.at(self._free_at, self._work, work, result, update)
            return
        fails = file.random.random() if file.disk_fails else 1.0
        if fails < file.disk_fails / 2:
            error: BaseException = StoreUnavailableError("disk_error", "the model's disk failed before the write")
            loop.call_soon(_settle, result, None, error)
            return
        try:
            value: object = work()
        except BaseException as raised:  # noqa: BLE001 - raised again in the awaiting caller
            loop.call_soon(_settle, result, None, raised)
            return
        if update is not None:
            file.on_commit(update)
        if fails < file.disk_fails:
            error = StoreUnavailableError("disk_error", "the model's disk failed after the write")
            loop.call_soon(_settle, result, None, error)
        else:
            loop.call_soon(_settle, result, value, None)


def _settle(result: "asyncio.Future[Any]", value: object, error: BaseException | None) -> None:
    if result.done():
        return
    if error is None:
        result.set_result(value)
    else:
        result.set_exception(error)
