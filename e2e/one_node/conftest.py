"""Server processes on a SQLite file."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from testsupport.server_process import ServerProcess


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Creates servers without starting them. They are killed after the test."""
    created: list[ServerProcess] = []

    def new(database: Path = tmp_path / "locks.db", limits: str = "") -> ServerProcess:
        created.append(ServerProcess(f"sqlite:///{database}", limits))
        return created[-1]

    yield new
    for server in created:
        server.close()


@pytest.fixture
def server(new_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server that listens."""
    one = new_server()
    one.start()
    return one


@pytest.fixture
def open_files_max() -> Iterator[int]:
    """Raises this process's limit of open files to its maximum, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
