"""A server process for programs and signals that need one."""

import gc
import warnings
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


@pytest.fixture
def dropped_sockets() -> Iterator[None]:
    """Python closes a socket whose owner was interrupted, with a warning. Collects them here, not in a later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
