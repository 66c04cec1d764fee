"""The machine of a benchmark: facts that explain the numbers, without the names of the machine or its folders."""

import os
import platform
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from .processes import BenchError, program, run
from .source_tree import ROOT

IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
SYNC_SAMPLES: Final = 300


@contextmanager
def working_folder() -> Iterator[Path]:
    """A temporary folder on a real disk for the files of all servers.

    Raises BenchError if the folder is on a file system in memory, because commits would not reach a disk.
    """
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    if file_system(parent) in IN_MEMORY:
        raise BenchError("this checkout is on a file system in memory, where no commit is durable: use one on a disk")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        Path(folder).chmod(0o711)  # lets a database server that runs as another user reach its files
        yield Path(folder)


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` is on, such as ext4."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    inside = [(point, kind) for _device, point, kind, *_ in mounts if folder.resolve().is_relative_to(point)]
    return max(inside, key=lambda mount: len(mount[0]))[1]


def sync_milliseconds(folder: Path) -> float:
    """Median time to write 4096 bytes and call fdatasync: the cost of a commit without concurrency."""
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


def machine_facts(folder: Path) -> list[tuple[str, str]]:
    """Names and values for the report."""
    import apsw

    load_minute = os.getloadavg()[0]
    return [
        ("processor", f"{_processor()}, {os.cpu_count()} cores"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB"),
        ("disk", f"{file_system(folder)}, {sync_milliseconds(folder):.2f} ms for 4096 bytes and fdatasync (median)"),
        ("system", f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"),
        ("load before", f"{load_minute:.2f} (a minute's average; above 0.5 the machine was not quiet)"),
        (
            "Python",
            f"{platform.python_version()}, configured {interpreter_build(sysconfig.get_config_var('CONFIG_ARGS'))}",
        ),
        ("SQLite", f"{apsw.sqlite_lib_version()} (apsw {version('apsw')})"),
        ("server", f"volcano-locks-server {version('volcano-locks-server')}, httptools {version('httptools')}"),
    ]


def interpreter_build(configure_arguments: str | None) -> str:
    """Which optimizations the interpreter was configured with. Debian's is optimized without these arguments."""
    return " and ".join(
        f"{'with' if argument in (configure_arguments or '') else 'without'} {argument}"
        for argument in ("--enable-optimizations", "--with-lto")
    )


def baseline_versions() -> list[tuple[str, str]]:
    """The versions of etcd, Redis and redis-benchmark."""
    return [etcd_version(), _redis_version(), ("redis-benchmark", version_of("redis-benchmark", "redis-tools"))]


def redis_versions() -> list[tuple[str, str]]:
    """The versions of Redis and redis-py."""
    redis_py = run([sys.executable, "-c", "import redis; print(redis.__version__)"]).strip()
    return [_redis_version(), ("redis-py", redis_py)]


def etcd_version() -> tuple[str, str]:
    return "etcd", version_of("etcd", "etcd-server")


def version_of(name: str, debian_package: str) -> str:
    """The version that the program prints."""
    return version_at(program(name, debian_package))


def version_at(path: str) -> str:
    """The version that the program at `path` prints."""
    found = re.search(r"\d+(?:\.\d+)+", run([path, "--version"]))
    return found[0] if found else "unknown"


def _redis_version() -> tuple[str, str]:
    return "Redis", version_of("redis-server", "redis-server")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
