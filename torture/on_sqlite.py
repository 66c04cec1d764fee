"""One node on a SQLite file, on a file system that can be filled; faults of its disk, its date and its machine."""

import asyncio
import random
import resource
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from testsupport.faked_date import FakedDate
from testsupport.fault_proxy import FaultProxy
from testsupport.server_process import ServerProcess

from .faults import Deployment, Faults, kind, start
from .worker_process import now

DISK_BYTES = 64 << 20
FULL_SECONDS = 4
STEPS_SECONDS = (5, 60, 3_600, -3_600)


@asynccontextmanager
async def deployed(folder: Path, seed: object) -> AsyncIterator[Deployment]:
    """One node, running."""
    disk, date = folder / "disk", FakedDate(folder / "date")
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    is_mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    node = ServerProcess(f"sqlite:///{disk}/locks.db", environment=date.environment)
    try:
        await asyncio.to_thread(node.start)
        async with FaultProxy(node.port) as front:
            deployment = Deployment("SQLite", [node], front)
            deployment.faults |= _Faults(deployment, disk, date, seed).by_kind()
            if not is_mounted:  # then it would fill the disk of the machine
                del deployment.faults["disk: full"]
            yield deployment
    finally:
        node.close()
        if is_mounted:
            subprocess.run(["umount", str(disk)], check=True)


class _Faults(Faults):
    def __init__(self, deployment: Deployment, disk: Path, date: FakedDate, seed: object) -> None:
        self._deployment = deployment
        (self._node,) = deployment.nodes
        self._disk = disk
        self._date = date
        self._ahead_seconds = 0
        self._random = random.Random(f"sqlite {seed}")

    @kind("disk: full")
    async def disk_full(self) -> AsyncIterator[float]:
        """Another file takes the rest of the disk. Sometimes the node is killed meanwhile."""
        ballast = self._disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                await asyncio.sleep(FULL_SECONDS)
        if self._random.random() < 0.5:
            self._node.kill()
            ballast.unlink()
            await start(self._node)
        ballast.unlink(missing_ok=True)
        yield now()

    @kind("disk: writes fail")
    async def writes_fail(self) -> AsyncIterator[float]:
        """No file may grow: writes to the log fail with EFBIG, which SQLite reports as an I/O error."""
        limits = resource.prlimit(self._node.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._node.pid, resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
        await asyncio.sleep(FULL_SECONDS)
        resource.prlimit(self._node.pid, resource.RLIMIT_FSIZE, limits)
        yield now()

    @kind("date: set, node restarted")
    async def date_set(self) -> AsyncIterator[float]:
        """The date is set while the node runs, and then the node restarts: the time goes on (LEASE-1)."""
        self._date.step(self._ahead_seconds + self._random.choice(STEPS_SECONDS))
        await asyncio.sleep(1)
        self._node.kill()
        began_at = now()
        await start(self._node)
        self._deployment.date_steps.append(began_at)
        self._date.step(self._ahead_seconds)
        yield began_at

    @kind("date: set, machine rebooted")
    async def machine_rebooted(self) -> AsyncIterator[float]:
        """The node restarts in another boot with a date that is ahead: takeovers are held (LEASE-17)."""
        await self._kill_between_checkpoints()
        with closing(sqlite3.connect(self._disk / "locks.db")) as file, file:
            file.execute("UPDATE newest_instant SET boot_id = 'of another machine', is_synchronised = 0")
        self._ahead_seconds += self._random.choice([0, 5, 60, 3_600])
        self._date.step(self._ahead_seconds)
        began_at = now()
        self._deployment.date_steps.append(began_at)
        await start(self._node)
        yield began_at

    async def _kill_between_checkpoints(self) -> None:
        """Killed during one, the node refuses a file whose log another program merged (OPS-11)."""
        self._node.kill()
        while (self._disk / "locks.db.lock").read_text().rstrip().endswith("served"):
            await start(self._node)
            self._node.kill()
