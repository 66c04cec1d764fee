"""Where a measurement was made: facts that explain the numbers, and nothing that names the machine or its folders."""

import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from .processes import BenchError, program, run

ROOT: Final = Path(__file__).resolve().parent.parent
IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
SYNC_SAMPLES: Final = 300


@contextmanager
def working_folder() -> Iterator[Path]:
    """A fresh folder on a real disk, gone afterwards; every server measured keeps its files in it.

    Raises BenchError where the folder would be in memory: a commit that reaches no disk measures nothing.
    """
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    if file_system(parent) in IN_MEMORY:
        raise BenchError("this checkout is on a file system in memory: durable commits cannot be measured on it")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        Path(folder).chmod(0o711)  # a database server that runs as a user of its own has to get at its folder in it
        yield Path(folder)


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` is on, such as ext4."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    inside = [(point, kind) for _device, point, kind, *_ in mounts if folder.resolve().is_relative_to(point)]
    return max(inside, key=lambda mount: len(mount[0]))[1]


def sync_milliseconds(folder: Path) -> float:
    """Median time of writing 4096 bytes and fdatasync, one after the other, as one who commits alone sees it."""
    samples = []
    path = folder / "sync-probe"
    with path.open("wb", buffering=0) as probe:
        for _ in range(SYNC_SAMPLES):
            began = time.perf_counter()
            probe.write(b"\0" * 4096)
            os.fdatasync(probe.fileno())
            samples.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(samples) * 1_000


def facts(folder: Path) -> list[tuple[str, str]]:
    """What was measured on, as pairs of name and value."""
    import apsw

    load_minute = os.getloadavg()[0]
    return [
        ("processor", f"{_processor()}, {os.cpu_count()} cores"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"),
        ("disk", f"{file_system(folder)}, {sync_milliseconds(folder):.2f} ms for 4096 bytes and fdatasync (median)"),
        ("system", f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"),
        ("load before", f"{load_minute:.2f} (a minute's average; above 0.5 the machine was not quiet)"),
        ("Python", platform.python_version()),
        ("SQLite", f"{apsw.sqlite_lib_version()} (apsw {version('apsw')})"),
        ("server", f"volcano-locks-server {version('volcano-locks-server')}, uvicorn {version('uvicorn')}"),
    ]


def peer_versions() -> list[tuple[str, str]]:
    """The versions of the peers and of what drives them."""
    return [
        ("etcd", version_of("etcd", "etcd-server")),
        ("Redis", version_of("redis-server", "redis-server")),
        ("redis-benchmark", version_of("redis-benchmark", "redis-tools")),
    ]


def version_of(name: str, debian_package: str) -> str:
    """What the program says its version is."""
    return version_said_by(program(name, debian_package))


def version_said_by(path: str) -> str:
    """What the program at `path` says its version is."""
    return _first_version(run([path, "--version"]))


def _first_version(text: str) -> str:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
