"""A disk that is really full, seen through HTTP."""

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

import httpx2
import pytest
from testsupport.server_process import ServerProcess

DISK_BYTES = 2 << 20
FILL_MAX = 30_000
pytestmark = pytest.mark.real_time


class Disk(NamedTuple):
    """A server whose files cannot grow beyond DISK_BYTES; `free_space` lifts the limit."""

    server: ServerProcess
    free_space: Callable[[], object]
    cause: str


@pytest.fixture(params=["small disk", "small files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, new_server: Callable[..., ServerProcess]) -> Iterator[Disk]:
    """A small file system. A limit on file sizes replaces it in one test, and if the user may not mount."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if request.param == "small disk" and subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        server = new_server(folder / "locks.db")

        def grow() -> None:
            subprocess.run(["mount", "-o", f"remount,size={64 * DISK_BYTES}", str(folder)], check=True)

        yield Disk(server, grow, "disk_full")
        server.close()
        subprocess.run(["umount", str(folder)], check=True)
    else:
        server = new_server(folder / "locks.db", limits=f"-S -f {DISK_BYTES // 512}")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield Disk(server, lambda: resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard)), "disk_error")


def test_a_full_disk_is_reported_and_recovered_from(disk: Disk) -> None:
    """case 24, LEASE-14, LEASE-16, OPS-2: requests get 503 and readiness reports the cause. After space is freed, the
    server works without a restart. No acknowledged lease is lost, not even by a kill -9 while the disk is full."""
    server = disk.server
    server.start()
    headers = {"Authorization": f"Bearer {server.new_service_key()}", "X-Volcano-Lock-Holder": "x" * 128}
    tokens: dict[str, int] = {}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=30) as client:
        refused = fill(client, tokens)
        assert (refused.json()["code"], refused.headers["retry-after"]) == ("lock_service_unavailable", "1")
        assert len(tokens) > 50
        unready = unready_response(client, tokens)
        assert (unready.status_code, unready.headers["retry-after"]) == (503, "1")
        assert disk.cause in unready.json()["error"]
        assert client.get("/healthz").status_code == 200
        assert acquire(client, f"lock.{len(tokens)}").status_code == 503
        assert client.get(f"/locks/lock.{len(tokens)}").json() == {"held": False}
        assert held(client, tokens) == tokens

        server.kill()
        server.start()
        assert held(client, tokens) == tokens
        fill(client, tokens)
        disk.free_space()
        assert client.get("/readyz").status_code == 200
        for number in range(len(tokens), len(tokens) + 50):
            granted = acquire(client, f"lock.{number}")
            assert granted.status_code == 201
            tokens[f"lock.{number}"] = granted.json()["fencing_token"]
        assert held(client, tokens) == tokens
        assert server.terminate() == 0
        server.start()
        assert held(client, tokens) == tokens


def acquire(client: httpx2.Client, key: str) -> httpx2.Response:
    token = str(uuid5(NAMESPACE_OID, key))
    return client.post(f"/locks/{key}/lease", headers={"X-Volcano-Lock-Token": token}, json={"ttl_seconds": 3_600})


def fill(client: httpx2.Client, tokens: dict[str, int]) -> httpx2.Response:
    """Acquire locks and collect their fencing tokens until a request fails. Returns that response."""
    for _ in range(FILL_MAX):
        key = f"lock.{len(tokens)}"
        response = acquire(client, key)
        if response.status_code != 201:
            assert response.status_code == 503
            return response
        tokens[key] = response.json()["fencing_token"]
    raise AssertionError("the disk is not full yet")


def unready_response(client: httpx2.Client, tokens: dict[str, int]) -> httpx2.Response:
    """The first failed readiness response: its own small write fails later than others."""
    for _ in range(100):
        response = client.get("/readyz")
        if response.status_code != 200:
            return response
        fill(client, tokens)
    raise AssertionError("it is always ready")


def held(client: httpx2.Client, tokens: dict[str, int]) -> dict[str, int]:
    """The fencing tokens under which these locks are held now."""
    states = {key: client.get(f"/locks/{key}").json() for key in tokens}
    return {key: state["fencing_token"] for key, state in states.items() if state["held"]}
