"""The lock service and the brokers that the tests of the integrations share."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from testsupport.engines.processes import free_port, program, started, wait_until
from testsupport.server_process import ADMIN_TOKEN, ServerProcess, success_body

from volcano_locks import Client

from .workers import ROOT, Journal


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They run workers of real frameworks, and wait for leases of 5 seconds to expire."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.real_time)


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """A lock service in a process of its own, in memory."""
    process = ServerProcess("memory://")
    process.start()
    yield process
    process.close()


@pytest.fixture
def service_key(server: ServerProcess) -> str:
    """The service key of a new project, so that tests may use the same lock keys."""
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    with httpx2.Client(base_url=server.url, headers=headers) as admin:
        project = success_body(admin.post("/projects", json={"name": f"test-{uuid4()}"}))["id"]
        success_body(admin.patch(f"/projects/{project}", json={"requests_per_minute": 0}))
        created = success_body(admin.post(f"/projects/{project}/service-keys", json={"name": "test"}))
        return str(created["key_value"])


@pytest.fixture
def client(server: ServerProcess, service_key: str) -> Iterator[Client]:
    """The test's own client, in the project of its workers."""
    with Client(server.url, service_key) as client:
        yield client


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """The journal of the test's workers."""
    return Journal(tmp_path / "journal")


@pytest.fixture
def environment(server: ServerProcess, service_key: str, journal: Journal, tmp_path: Path) -> dict[str, str]:
    """The environment of the workers: the service, the journal, and where each language finds the client."""
    bare = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
    packages = tmp_path / "node_modules"
    packages.mkdir()
    for package in (ROOT / "sdks/javascript/node_modules").iterdir():
        (packages / package.name).symlink_to(package)
    (packages / "volcano-locks").symlink_to(ROOT / "sdks/javascript")
    return bare | {
        "VOLCANO_API_URL": server.url,
        "VOLCANO_SERVICE_KEY": service_key,
        "JOURNAL": str(journal.path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{bare['PATH']}",
        "PYTHONPATH": str(tmp_path),
        "RUBYLIB": str(ROOT / "sdks/ruby/lib"),
    }


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis server without persistence."""
    folder, port = tmp_path_factory.mktemp("redis"), free_port()
    command = [program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    log = folder / "log"
    client = shutil.which("redis-cli")
    assert client is not None
    with log.open("wb") as output:
        process = started(command, None, output, "SIGKILL")
    ping = [client, "-p", str(port), "ping"]
    try:
        wait_until(lambda: subprocess.run(ping, capture_output=True, check=False).stdout == b"PONG\n", process, log)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def redis_database(redis_url: str) -> str:
    """An empty database of that server."""
    import redis

    with redis.Redis.from_url(f"{redis_url}/0") as connection:
        connection.flushall()
    return f"{redis_url}/0"
