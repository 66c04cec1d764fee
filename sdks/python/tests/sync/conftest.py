"""A server process for programs and signals that need one."""

from collections.abc import Iterator

import pytest
from testsupport.server_process import ServerProcess


@pytest.fixture(scope="session")
def process() -> Iterator[ServerProcess]:
    process = ServerProcess("memory://")
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="session")
def service_key(process: ServerProcess) -> str:
    return process.new_service_key()
