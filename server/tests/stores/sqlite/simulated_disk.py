"""Simulated disks that fail on command or lose power: SQLite VFS shims over the system's own.

`PowerDisk` keeps, beside the real files, what a disk certainly holds: everything written before a file's last sync. A
power cut keeps that, plus a random part of later writes, in sectors, in any order. `FaultyDisk` lets some operations
pass and then fails, once or permanently.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw

SECTOR_BYTES: Final = 512
Write = tuple[int, bytes] | int  # an offset and what was written there, or the length the file was cut to


class _Shimmed(apsw.VFS):
    def __init__(
        self,
        name: str,
        make: Callable[[Any, Any], apsw.VFSFile],
        deleted: Callable[[str], None] = lambda _path: None,
    ) -> None:
        super().__init__(name, "unix")
        self._make = make
        self._deleted = deleted

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return self._make(name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        self._deleted(filename)


class PowerDisk:
    """Records every write and sync. `on_event` is called before each one reaches the disk.

    A file whose name ends in `unsynced` counts as written but never synced when it is first opened.
    """

    def __init__(self, name: str, *, unsynced: str | None = None) -> None:
        self._unsynced: Final = unsynced
        self.name: Final = name
        self.syncs = 0
        self.is_full = False
        self._lies = False
        self.on_event: Callable[[], None] = lambda: None
        self._durable: dict[Path, bytes] = {}
        self._pending: dict[Path, list[Write]] = {}
        self._vfs: Final = _Shimmed(name, self._opened, self._forget)

    def cut(self, into: Path, chance: random.Random) -> None:
        """Write what a power cut might leave now into the directory `into`."""
        into.mkdir()
        for path, durable in self._durable.items():
            content = bytearray(durable)
            for write in self._pending[path]:
                if isinstance(write, int):
                    if chance.random() < 0.5:
                        del content[write:]
                    continue
                for offset, piece in _sectors(*write):
                    if chance.random() < 0.5:
                        _put(content, offset, piece)
            (into / path.name).write_bytes(content)

    def lie(self) -> None:
        """Let the next sync fail, and lose its writes unless they are written again."""
        self._lies = True

    def wrote(self, path: Path, write: Write) -> None:
        self.on_event()
        if self.is_full and not isinstance(write, int):
            raise apsw.FullError("simulated")
        self._pending[path].append(write)

    def synced(self, path: Path) -> None:
        self.on_event()
        if self._lies:
            self._lies = False
            self._pending[path] = []
            raise apsw.IOError("simulated")
        self.syncs += 1
        content = bytearray(self._durable[path])
        for write in self._pending[path]:
            if isinstance(write, int):
                del content[write:]
            else:
                _put(content, *write)
        self._durable[path], self._pending[path] = bytes(content), []

    def _forget(self, name: str) -> None:
        """A deletion counts as durable: SQLite syncs the directory with it."""
        self._durable.pop(Path(name), None)
        self._pending.pop(Path(name), None)

    def _opened(self, name: Any, flags: Any) -> apsw.VFSFile:
        path = Path(str(name.filename() if isinstance(name, apsw.URIFilename) else name))
        if path not in self._durable:
            content = path.read_bytes() if path.exists() else b""
            is_synced = self._unsynced is None or not path.name.endswith(self._unsynced)
            self._durable[path] = content if is_synced else b""
            self._pending[path] = [] if is_synced else [(0, content)]
        return _PowerFile(name, flags, self, path)


class _PowerFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, disk: PowerDisk, path: Path) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._path = path

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.wrote(self._path, (offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.wrote(self._path, newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.synced(self._path)
        super().xSync(flags)


class FaultyDisk:
    """Passes `passes` writes, syncs and truncations, then raises `fault` once, or always if `lasts`.

    Only files whose name ends in `only` count.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.fault: type[apsw.Error] | None = None
        self.passes = 0
        self.lasts = True
        self.only = ""
        self.failed = 0
        self._vfs: Final = _Shimmed(name, lambda name, flags: _FaultyFile(name, flags, self))

    def break_after(self, passes: int, fault: type[apsw.Error], *, lasts: bool, only: str = "") -> None:
        self.passes, self.fault, self.lasts, self.only, self.failed = passes, fault, lasts, only, 0

    def heal(self) -> None:
        self.fault = None

    def touch(self, path: str) -> None:
        if self.fault is None or not path.endswith(self.only):
            return
        if self.passes > 0:
            self.passes -= 1
            return
        fault = self.fault
        self.failed += 1
        if not self.lasts:
            self.fault = None
        raise fault("simulated")


class _FaultyFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: Any, disk: FaultyDisk) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._path = str(name.filename() if isinstance(name, apsw.URIFilename) else name)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.touch(self._path)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.touch(self._path)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.touch(self._path)
        super().xSync(flags)


def _sectors(offset: int, content: bytes) -> list[tuple[int, bytes]]:
    cuts = range(0, len(content), SECTOR_BYTES)
    return [(offset + cut, content[cut : cut + SECTOR_BYTES]) for cut in cuts]


def _put(content: bytearray, offset: int, piece: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(piece)] = piece
