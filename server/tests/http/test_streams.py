"""EventStreams of events over HTTP: what begins one, what it tells, what ends it."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx2
import pytest
from testsupport.service_requests import perform

from volcano_locks_server.events import hub, subscriber
from volcano_locks_server.http import event_stream
from volcano_locks_server.ports.registry import Credential
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS, Acquire
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.testing import ManualClock, RunningServer, running_server_async

from .conftest import House, new_token, problem


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Ear:
    """A client of one stream, in the test's own loop. `gone` is set to hang up."""

    def __init__(self, house: House, path: str, query: str = "", **headers: str) -> None:
        sent = {"authorization": f"Bearer {house.service_key}", **headers}
        self.scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "http_version": "1.1",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
        }  # fmt: skip
        self.gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.raw = b""
        self.whole = False
        self._taken = 0
        self.listening = asyncio.create_task(house.server.app(self.scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.raw += message["body"]
            self.whole = not message.get("more_body", False)

    def news(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Id, name and data of the events that came since the last call."""
        blocks = self.raw[self._taken :].decode().split("\n\n")
        self._taken += len("\n\n".join(blocks[:-1])) + 2 if len(blocks) > 1 else 0
        found = []
        for block in blocks[:-1]:
            fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
            if "event" in fields:
                found.append((fields["id"], fields["event"], json.loads(fields["data"])))
        return found

    def names(self) -> list[str]:
        return [f"{name} {data.get('key', data['why'])}" for _, name, data in self.news()]

    async def hang_up(self) -> None:
        self.gone.set()
        await asyncio.wait_for(self.listening, 30)


@asynccontextmanager
async def listening(house: House, path: str, query: str = "", **headers: str) -> AsyncIterator[Ear]:
    ear = Ear(house, path, query, **headers)
    await turns()
    yield ear
    await ear.hang_up()


async def moved(house: House, ms: int) -> None:
    house.clock.advance(ms)
    await turns()


async def test_every_kind_of_event_is_told_once_with_its_fields(house: House) -> None:
    """EVENT-1, EVENT-2, EVENT-3, LEASE-15: over the life of a lock, and never a token or its digest."""
    first, second = new_token(), new_token()
    labelled = {"X-Volcano-Lock-Holder": 'host/"1"'}
    async with listening(house, "/locks/job%3A1/events") as ear:
        lease = (await house.acquire("job:1", first, headers=labelled)).json()
        await house.acquire("job:1", first, 20)
        await house.acquire("job:1", second)
        await house.renew("job:1", first, 5)
        await house.acquire("elsewhere", first)
        await moved(house, 5_000 + GRACE_MS)
        taken = (await house.acquire("job:1", second, 60)).json()
        await house.release("job:1", second)
        await house.acquire("job:1", first)
        await house.acquire("job:1", new_token(), 60)
        await house.acquire("job:1", new_token(), 60)
        await house.ask("DELETE", "/locks/job:1")
        await turns()
        told = ear.news()
    token, later = lease["fencing_token"], taken["fencing_token"]
    at, over = "2026-07-20T14:00:00.000Z", "2026-07-20T14:00:06.000Z"
    about = {"key": "job:1", "fencing_token": token, "holder": 'host/"1"', "at": at}
    after = {"key": "job:1", "fencing_token": later, "holder": None, "at": over}
    assert [(name, data) for _, name, data in told[:6]] == [
        ("acquired", about | {"why": "free", "expires_at": "2026-07-20T14:00:30.000Z"}),
        ("renewed", about | {"why": "repeated", "expires_at": "2026-07-20T14:00:20.000Z"}),
        ("renewed", about | {"why": "renewed", "expires_at": "2026-07-20T14:00:05.000Z"}),
        ("expired", about | {"why": "not_renewed", "at": over}),
        ("acquired", after | {"why": "free", "expires_at": "2026-07-20T14:01:06.000Z"} | {"why": "taken_over"}),
        ("released", after | {"why": "released"}),
    ]
    assert [name for _, name, _ in told[6:]] == ["acquired", "force_released"]
    assert told[-1][2]["why"] == "forced"
    assert len({id_ for id_, _, _ in told}) == len(told)
    for secret in (first, second):
        assert secret not in ear.raw.decode()
        assert sha256(secret.encode()).hexdigest() not in ear.raw.decode()


async def test_those_who_wait_are_told_too(house: House) -> None:
    """EVENT-2, LIST-2: joining the line, leaving it, and being granted the lock from it."""
    service = house.server.service
    await house.acquire("a", owner := new_token())

    def wait(letter: bytes, ms: int) -> "asyncio.Task[Any]":
        command = Acquire(letter * 32, 30, f"host/{letter.decode()}")
        return asyncio.create_task(perform(service, house.project_id, 0, LockKey("a"), command, wait_ms=ms))

    async with listening(house, "/locks/events", "prefix=") as ear:
        patient, leaving = wait(b"p", 30_000), wait(b"l", 30_000)
        await turns()
        assert (await house.ask("GET", "/locks/a?view=full")).json()["waiters"] == 2
        leaving.cancel()
        await turns()
        await house.release("a", owner)
        await asyncio.wait_for(patient, 30)
        at_once = wait(b"x", 30_000)
        await turns()
        at_once.cancel()
        await turns()
        told = [(name, data["holder"], data["why"]) for _, name, data in ear.news()]
    assert told == [
        ("waiting", "host/p", "held"),
        ("waiting", "host/l", "held"),
        ("gave_up", "host/l", "left"),
        ("released", None, "released"),
        ("acquired", "host/p", "waited"),
        ("waiting", "host/x", "held"),
        ("gave_up", "host/x", "left"),
    ]


async def test_a_stream_begins_with_an_id_and_tells_the_quota_once(house: House) -> None:
    """EVENT-1, EVENT-5, EVENT-7, QUOTA-3, HTTP-9."""
    async with listening(house, "/locks/a/events") as ear:
        assert (ear.status, ear.headers["content-type"]) == (200, "text/event-stream")
        assert ear.headers["cache-control"] == "no-store"
        assert len(ear.headers["x-volcano-request-id"]) == 36
        assert ear.headers["x-ratelimit-remaining"] == "599"
        first, rest = ear.raw.decode().split("\n\n")
        assert rest == ""
        retry, id_, comment = first.split("\n")
        assert (retry, id_[:4], comment[0]) == ("retry: 1000", "id: ", ":")
        for _ in range(5):
            await moved(house, event_stream.PING_MS)
        answer = await house.ask("GET", "/locks/a")
        assert answer.headers["x-ratelimit-remaining"] == "598"


async def test_events_without_a_prefix_is_a_lock_like_any_other(house: House) -> None:
    """EVENT-1: and its own events have an address too."""
    token = new_token()
    async with listening(house, "/locks/events/events") as ear:
        assert (await house.acquire("events", token)).status_code == 201
        assert (await house.read("events"))["held"] is True
        assert (await house.ask("GET", "/locks/events?other=prefix")).json()["held"] is True
        assert (await house.ask("GET", "/locks/events?view=full")).json()["key"] == "events"
        assert (await house.release("events", token)).status_code == 204
        assert (await house.ask("DELETE", "/locks/events?prefix=")).status_code == 204
        await turns()
        assert ear.names() == ["acquired events", "released events"]


async def test_all_locks_with_a_prefix_are_watched(house: House) -> None:
    """EVENT-1."""
    async with (
        listening(house, "/locks/events", "prefix=n%3A&x=1") as some,
        listening(house, "/locks/events", "prefix") as all_,
    ):
        for lock in ("n:1", "n:2", "m"):
            await house.acquire(lock, new_token())
        await turns()
        assert some.names() == ["acquired n:1", "acquired n:2"]
        assert all_.names() == ["acquired n:1", "acquired n:2", "acquired m"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/locks/events?prefix=../x", (400, "invalid_request")),
        ("/locks/events?prefix=a&prefix=b", (400, "invalid_request")),
        ("/locks/events?prefix=" + "a" * 129, (400, "invalid_request")),
        ("/locks/.bad/events", (400, "invalid_lock_key")),
        ("/locks//events", (400, "invalid_lock_key")),
        ("/locks/a/b/events", (404, "not_found")),
        ("/locks/a/events/", (404, "not_found")),
    ],
)
async def test_what_cannot_be_watched_is_an_ordinary_refusal(
    house: House, path: str, expected: tuple[int, str]
) -> None:
    """EVENT-1, HTTP-7, HTTP-13."""
    assert problem(await house.ask("GET", path)) == expected
    assert house.server.service.hub.subscriber_count == 0


async def test_streams_are_judged_like_every_request(house: House) -> None:
    """EVENT-1, HTTP-13, HTTP-15: method, credential, quota, permission, request id, in this order."""
    wrong = await house.ask("POST", "/locks/a/events")
    assert (problem(wrong), wrong.headers["allow"]) == ((405, "method_not_allowed"), "GET")
    assert problem(await house.ask("GET", "/locks/a/events", key=None)) == (401, "invalid_credentials")
    bad_id = {"X-Volcano-Request-Id": "x"}
    assert problem(await house.ask("GET", "/locks/a/events", headers=bad_id)) == (400, "invalid_request_id")
    reader = await house.new_key(permissions=["locks.read"])
    async with listening(house, "/locks/a/events", authorization=f"Bearer {reader['key_value']}") as ear:
        assert ear.status == 200
    await house.set_quota(1)
    assert problem(await house.ask("GET", "/locks/a/events")) == (429, "lock_rate_limited")


async def test_a_stream_resumes_without_a_gap_or_says_so(house: House) -> None:
    """EVENT-5."""
    async with listening(house, "/locks/a/events") as ear:
        await house.acquire("a", token := new_token())
        await turns()
        ((last, _, _),) = ear.news()
    await house.renew("a", token)
    await house.release("a", token)
    async with listening(house, "/locks/a/events", last_event_id=last) as again:
        assert f"id: {last}\n" in again.raw.decode()
        assert again.names() == ["renewed a", "released a"]
        await house.acquire("a", new_token())
        await turns()
        assert again.names() == ["acquired a"]
    for unknown in ("nonsense", "0" * 5_000, "\xe9"):
        async with listening(house, "/locks/a/events", last_event_id=unknown) as reset:
            ((id_, name, data),) = reset.news()
            assert (name, data) == ("reset", {"at": "2026-07-20T14:00:00.000Z", "why": "unknown_id"})
            assert f"\nid: {id_}\n" in reset.raw.decode()


async def test_a_comment_comes_at_least_every_15_seconds(house: House) -> None:
    """EVENT-7: also while events come."""
    assert event_stream.PING_MS <= 15_000
    async with listening(house, "/locks/a/events") as ear:
        for _ in range(3):
            before = ear.raw
            house.clock.advance(event_stream.PING_MS)
            await house.acquire("a", new_token())
            await turns()
            assert ear.raw[len(before) :].startswith((b":\n\n", b"id"))
            assert b":\n\n" in ear.raw[len(before) :]


async def test_a_revoked_key_ends_its_stream_within_15_seconds(house: House) -> None:
    """EVENT-7, ADMIN-9: wherever it was revoked; other keys' streams go on."""
    made = await house.new_key()
    key = f"Bearer {made['key_value']}"
    async with listening(house, "/locks/a/events", authorization=key) as ear, listening(house, "/locks/a/events") as on:
        registry = house.server.store.registry
        await registry.delete_service_key(house.project_id, made["id"])  # as another node would
        await moved(house, event_stream.PING_MS)
        await moved(house, 15_000 - event_stream.PING_MS)
        await asyncio.wait_for(ear.listening, 30)
        assert (ear.whole, on.whole) == (True, False)


async def test_an_expired_key_ends_its_stream(house: House) -> None:
    """EVENT-7, ADMIN-7."""
    made = await house.new_key(expires_at="2026-07-20T14:00:10Z")
    async with listening(house, "/locks/a/events", authorization=f"Bearer {made['key_value']}") as ear:
        await moved(house, event_stream.PING_MS)
        assert not ear.whole
        await moved(house, event_stream.PING_MS)
        assert ear.whole


async def test_a_key_that_cannot_be_looked_up_ends_its_stream(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7: what cannot be found out is not good."""

    async def credential(_digest: bytes) -> Credential | None:
        raise StoreUnavailableError("store_error", "broken")

    async with listening(house, "/locks/a/events") as ear:
        monkeypatch.setattr(house.server.store.registry, "credential", credential)
        await moved(house, event_stream.PING_MS)
        assert ear.whole


async def test_streams_are_bounded_and_leave_their_place(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVENT-7: a client that hangs up makes room; nothing of it stays."""
    monkeypatch.setattr(hub, "SUBSCRIBERS_MAX", 1)
    async with listening(house, "/locks/a/events") as ear:
        assert "\nvolcano_locks_watchers 1.0\n" in (await house.ask("GET", "/metrics")).text
        full = await house.ask("GET", "/locks/b/events")
        assert (problem(full), full.headers["retry-after"]) == ((503, "lock_service_unavailable"), "1")
        await ear.hang_up()
        async with listening(house, "/locks/b/events") as second:
            assert second.status == 200
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "stream-disconnect" not in names


async def test_a_slow_reader_loses_its_stream_and_costs_the_others_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-7."""
    monkeypatch.setattr(subscriber, "QUEUE_MAX", 3)
    async with listening(house, "/locks/events", "prefix=") as slow, listening(house, "/locks/events", "prefix=") as on:
        gate = asyncio.Event()
        send = slow._send

        async def blocked(message: Any) -> None:
            await gate.wait()
            await send(message)

        slow.listening.cancel()
        await asyncio.wait([slow.listening])
        slow.listening = asyncio.create_task(house.server.app(slow.scope, slow._receive, blocked))
        await turns()
        for number in range(6):
            await house.acquire(f"a{number}", new_token())
            await turns()
        gate.set()
        await asyncio.wait_for(slow.listening, 30)
        assert slow.whole
        assert len(on.names()) == 6


async def test_a_stop_ends_every_stream_at_once(house: House) -> None:
    """EVENT-7, HTTP-23: and it is not held up by them."""
    async with listening(house, "/locks/a/events") as ear:
        assert await asyncio.wait_for(house.server.app.drain(15), 12)
        await turns()
        assert ear.whole
        assert problem(await house.ask("GET", "/locks/a/events")) == (503, "lock_service_unavailable")


# --- over a socket ------------------------------------------------------------------------------------------------


async def read_until(reader: asyncio.StreamReader, true: Callable[[bytes], bool]) -> bytes:
    read = b""
    async with asyncio.timeout(30):
        while not true(read):
            part = await reader.read(65_536)
            read += part
            if not part:
                break
    return read


def request(running: RunningServer, version: str = "1.1") -> bytes:
    head = f"GET /locks/a/events HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {running.service_key}\r\n\r\n"
    return head.encode()


async def connected(running: RunningServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = running.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def acquire(running: RunningServer, lock: str = "a") -> None:
    headers = {"Authorization": f"Bearer {running.service_key}", "X-Volcano-Lock-Token": new_token()}
    async with httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
        assert (await client.post(f"/locks/{lock}/lease", json={"ttl_seconds": 30})).status_code == 201


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_a_stream_comes_over_a_socket_as_it_happens(version: str) -> None:
    """EVENT-1: in chunks, or for HTTP/1.0 until the connection ends; a stop ends it whole."""
    async with running_server_async(clock=ManualClock()) as running:
        reader, writer = await connected(running)
        writer.write(request(running, version))
        begun = await read_until(reader, lambda read: b": watching" in read)
        assert begun.startswith(b"HTTP/1.1 200 OK\r\n")
        assert (b"transfer-encoding: chunked" in begun) is (version == "1.1")
        await acquire(running)
        assert b"event: acquired" in await read_until(reader, lambda read: b"data: " in read and b"\n\n" in read)
        stopping = asyncio.create_task(running.server.close())
        rest = await read_until(reader, lambda _read: False)
        assert (b"0\r\n\r\n" in rest) is (version == "1.1")
        await asyncio.wait_for(stopping, 12)
        writer.close()


async def test_a_connection_is_of_use_after_a_refused_stream() -> None:
    """EVENT-1, HTTP-25."""
    async with running_server_async(clock=ManualClock()) as running:
        headers = {"Authorization": f"Bearer {running.service_key}"}
        async with httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
            for path in ("/locks/.bad/events", "/locks/a"):
                await client.get(path)
            async with client.stream("GET", "/locks/a/events") as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        break
            assert (await client.get("/locks/a")).json() == {"held": False}


@pytest.mark.real_time
async def test_a_client_that_hangs_up_leaves_nothing() -> None:
    """EVENT-7, HTTP-24: an ordinary end or a torn connection."""
    async with running_server_async(clock=ManualClock()) as running:
        watched = running.server.service.hub
        for torn in (False, True):
            reader, writer = await connected(running)
            writer.write(request(running))
            await read_until(reader, lambda read: b": watching" in read)
            assert watched.subscriber_count == 1
            if torn:
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
                )
            writer.close()
            async with asyncio.timeout(30):
                while watched.subscriber_count:
                    await asyncio.sleep(0.002)


@pytest.mark.real_time
async def test_a_stop_is_not_held_up_by_a_reader_that_stalls() -> None:
    """EVENT-7, HTTP-23."""
    async with running_server_async(clock=ManualClock()) as running:
        reader, writer = await connected(running)
        writer.write(request(running))
        await read_until(reader, lambda read: b": watching" in read)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        watched = running.server.service.hub
        (watcher,) = watched._feeds[running.project_id].subscribers
        told = hub.LockEvent("waiting", hub.RecordKey(running.project_id, LockKey("a")), None, "h" * 128, 1, "held")
        for _ in range(40):
            watched.publish([told] * 1_000)
            await turns(3)
        assert watcher.ended or watched.subscriber_count
        async with asyncio.timeout(30):
            await running.server.close()
        writer.close()
