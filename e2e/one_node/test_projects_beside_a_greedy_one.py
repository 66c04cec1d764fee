"""One project uses as much of each budget as it can; another one beside it is served as before (HTTP-32, case 61).

What a greedy project holds costs the server no time, so the p99 of its neighbour stays within twice that on a server
without a greedy project. Rounds alternate between the two servers, because other tests use the machine too. Budgets of
what costs time, such as list queries, are tested in the server's own tests, against a store that is slow on purpose.
"""

import asyncio
import json
import socket
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx2
import pytest
from testsupport.server_process import ADMIN_TOKEN, ServerProcess, success_body

RATIO_MAX = 2.0
ROUNDS = 5
ROUNDS_MAX = 25  # more rounds while the ratio is above its limit, for a busy machine
CYCLES = 200  # per round
AT_ONCE = 50  # connections that open at the same time
WAITERS_MAX = 4_000
WAITERS_PER_LOCK_MAX = 1_000
STREAMS_MAX = 500
TTL_SECONDS = 5


def new_project(server: ServerProcess, name: str) -> str:
    """The service key of a new project without a quota."""
    with httpx2.Client(base_url=server.url, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}, timeout=60) as admin:
        project = success_body(admin.post("/projects", json={"name": name}))["id"]
        success_body(admin.patch(f"/projects/{project}", json={"requests_per_minute": 0}))
        return str(success_body(admin.post(f"/projects/{project}/service-keys", json={"name": name}))["key_value"])


def request(key: str, method: str, path: str, body: str = "", token: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}"]
    lines += [f"X-Volcano-Lock-Token: {token or uuid.uuid4()}", f"Content-Length: {len(body)}", "", body]
    return "\r\n".join(lines).encode()


def acquire(key: str, lock: str, token: str = "", *, ttl: int = 300, wait: int = 0) -> bytes:
    fields = {"ttl_seconds": ttl, **({"wait_seconds": wait} if wait else {})}
    return request(key, "POST", f"/locks/{lock}/lease", json.dumps(fields), token)


class Greedy:
    """Connections of the greedy project that stay open."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.key = new_project(server, "greedy")
        self.connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, *requests: bytes) -> None:
        """Send each request on a connection of its own."""
        for some in batches(requests):
            opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", self.server.port) for _ in some))
            for (_, writer), sent in zip(opened, some, strict=True):
                writer.write(sent)
            self.connections += opened

    async def statuses(self, count: int) -> list[int]:
        """The status of the response on each of the last connections."""
        heads = [await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60) for reader, _ in self.connections[-count:]]
        return [int(head.split(b" ", 2)[1]) for head in heads]

    async def send_all(self, requests: list[bytes]) -> None:
        """Send requests on one connection, and read the responses."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        for some in batches(tuple(requests)):
            writer.write(b"".join(some))
            for _ in some:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
        writer.close()

    def close(self) -> None:
        for _, writer in self.connections:
            writer.close()


def batches(requests: tuple[bytes, ...]) -> list[tuple[bytes, ...]]:
    return [requests[start : start + AT_ONCE] for start in range(0, len(requests), AT_ONCE)]


class Modest:
    """A worker of another project: it acquires and releases a lock, again and again."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.key = new_project(server, "modest")
        self._connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)

    def p99_seconds(self) -> float:
        """Of one round of cycles."""
        seconds = []
        for _ in range(CYCLES):
            token = str(uuid.uuid4())
            began = time.perf_counter()
            self._perform(acquire(self.key, "mine", token), b"201")
            self._perform(request(self.key, "DELETE", "/locks/mine/lease", token=token), b"204")
            seconds.append(time.perf_counter() - began)
        return statistics.quantiles(seconds, n=100)[98]

    def _perform(self, sent: bytes, status: bytes) -> None:
        self._connection.sendall(sent)
        response = self._connection.recv(65_536)
        assert response.startswith(b"HTTP/1.1 " + status), response

    async def wait_is_granted(self) -> bool:
        """Whether an acquire that waits gets its lock, when that is released."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        holder = str(uuid.uuid4())
        self._perform(acquire(self.key, "waited-for", holder), b"201")
        writer.write(acquire(self.key, "waited-for", wait=60))
        await asyncio.sleep(0.2)
        self._perform(request(self.key, "DELETE", "/locks/waited-for/lease", token=holder), b"204")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        writer.close()
        return head.startswith(b"HTTP/1.1 201")

    async def expiry_is_published(self) -> bool:
        """Whether a stream gets the end of a lease when it is over."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(request(self.key, "GET", "/locks/watched/events"))
        await asyncio.wait_for(reader.readuntil(b": watching"), 10)
        self._perform(acquire(self.key, "watched", ttl=TTL_SECONDS), b"201")
        await asyncio.wait_for(reader.readuntil(b"event: acquired"), 10)
        await asyncio.wait_for(reader.readuntil(b"event: expired"), TTL_SECONDS + 3)
        writer.close()
        return True

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def other_server(new_server: Callable[..., ServerProcess], tmp_path: Path) -> ServerProcess:
    """A server without a greedy project."""
    one = new_server(tmp_path / "other.db")
    one.start()
    return one


async def beside(
    servers: Sequence[ServerProcess], occupy: Callable[[Greedy], object], check: Callable[[Modest], object]
) -> None:
    """Compare a modest project beside a greedy one, which `occupy` brings to its maximum, with one alone."""
    server, other_server = servers
    modest, alone, greedy = Modest(server), Modest(other_server), Greedy(server)
    try:
        await occupy(greedy)  # type: ignore[misc]
        assert await check(modest)  # type: ignore[misc]
        ratio, beside, apart = RATIO_MAX + 1, [], []
        while len(beside) < ROUNDS or (ratio > RATIO_MAX and len(beside) < ROUNDS_MAX):
            beside.append(await asyncio.to_thread(modest.p99_seconds))
            apart.append(await asyncio.to_thread(alone.p99_seconds))
            ratio = statistics.median(beside) / statistics.median(apart)
        assert ratio <= RATIO_MAX, f"{statistics.median(beside):.4f} s, and {statistics.median(apart):.4f} s alone"
    finally:
        greedy.close()
        modest.close()
        alone.close()


@pytest.mark.real_time
@pytest.mark.usefixtures("open_files_max")
async def test_waiters(server: ServerProcess, other_server: ServerProcess) -> None:
    """WAIT-14: half of all places wait for locks of the greedy project."""

    async def occupy(greedy: Greedy) -> None:
        locks = [f"k{number}" for number in range(WAITERS_MAX // WAITERS_PER_LOCK_MAX + 1)]
        await greedy.send_all([acquire(greedy.key, lock) for lock in locks])
        await greedy.open(*(acquire(greedy.key, locks[n // WAITERS_PER_LOCK_MAX], wait=60) for n in range(WAITERS_MAX)))
        await greedy.open(acquire(greedy.key, locks[-1], wait=60))
        assert await greedy.statuses(1) == [429]

    await beside((server, other_server), occupy, Modest.wait_is_granted)


@pytest.mark.real_time
@pytest.mark.usefixtures("open_files_max")
async def test_streams(server: ServerProcess, other_server: ServerProcess) -> None:
    """EVENT-9: a project with the default quota opened all 1,000 streams within half a minute."""

    async def occupy(greedy: Greedy) -> None:
        await greedy.open(*[request(greedy.key, "GET", "/locks/events?prefix=")] * (STREAMS_MAX + 1))
        assert sorted(await greedy.statuses(STREAMS_MAX + 1)) == [200] * STREAMS_MAX + [429]

    await beside((server, other_server), occupy, Modest.expiry_is_published)
