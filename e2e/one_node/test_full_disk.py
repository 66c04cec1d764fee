"""A disk that is really full, felt through the HTTP door."""

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import NAMESPACE_OID, uuid5

import httpx2
import pytest

from .conftest import ServerProcess

DISK_BYTES = 2 << 20
FILL_MAX = 30_000
pytestmark = pytest.mark.real_time


class Disk(NamedTuple):
    """A server whose files cannot grow beyond DISK_BYTES, and how to make room."""

    server: ServerProcess
    make_room: Callable[[], object]
    cause: str


@pytest.fixture(params=["small disk", "small files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, new_server: Callable[..., ServerProcess]) -> Iterator[Disk]:
    """A small file system; a limit on the size of files, where the user may not mount one or the test wants it."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if request.param == "small disk" and subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        server = new_server(place / "locks.db")

        def grow() -> None:
            subprocess.run(["mount", "-o", f"remount,size={64 * DISK_BYTES}", str(place)], check=True)

        yield Disk(server, grow, "disk_full")
        server.close()
        subprocess.run(["umount", str(place)], check=True)
    else:
        server = new_server(place / "locks.db", limits=f"-S -f {DISK_BYTES // 512}")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        yield Disk(server, lambda: resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard)), "disk_error")


def test_a_full_disk_is_told_and_forgiven(disk: Disk) -> None:
    """case 24, LEASE-14, LEASE-16, OPS-2: 503 and a readiness that says why; after room was made it works without a
    restart; and nothing that was acknowledged is lost, neither then nor by a kill -9 while the disk was full."""
    server = disk.server
    server.start()
    headers = {"Authorization": f"Bearer {server.new_service_key()}", "X-Volcano-Lock-Holder": "x" * 128}
    tokens: dict[str, int] = {}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=30) as client:
        refused = fill(client, tokens)
        assert (refused.json()["code"], refused.headers["retry-after"]) == ("lock_service_unavailable", "1")
        assert len(tokens) > 50
        unready = unready_answer(client, tokens)
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
        disk.make_room()
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
    """Take lock after lock and keep the fencing tokens; the first answer that is none."""
    for _ in range(FILL_MAX):
        key = f"lock.{len(tokens)}"
        answer = acquire(client, key)
        if answer.status_code != 201:
            assert answer.status_code == 503
            return answer
        tokens[key] = answer.json()["fencing_token"]
    raise AssertionError("the disk is not full yet")


def unready_answer(client: httpx2.Client, tokens: dict[str, int]) -> httpx2.Response:
    """What readiness says once its own small write has no room either."""
    for _ in range(100):
        answer = client.get("/readyz")
        if answer.status_code != 200:
            return answer
        fill(client, tokens)
    raise AssertionError("it is always ready")


def held(client: httpx2.Client, tokens: dict[str, int]) -> dict[str, int]:
    """The fencing tokens under which these locks are held now."""
    states = {key: client.get(f"/locks/{key}").json() for key in tokens}
    return {key: state["fencing_token"] for key, state in states.items() if state["held"]}
