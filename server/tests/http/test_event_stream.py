"""Event streams over HTTP: how they begin, what they send, what ends them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import httpx2
import pytest

from volcano_locks_server.events import hub, subscriber
from volcano_locks_server.http import event_stream
from volcano_locks_server.ports.registry import Credential
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import GRACE_MS
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.testing import ManualClock, RunningServer, running_server_async

from .conftest import HttpHarness, new_token, problem


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class StreamClient:
    """An in-process client of one stream. Setting `gone` disconnects it."""

    def __init__(self, harness: HttpHarness, path: str, query: str = "", **headers: str) -> None:
        sent = {"authorization": f"Bearer {harness.service_key}", **headers}
        self.scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "http_version": "1.1",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items() if value],
        }  # fmt: skip
        self.gone = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.raw = b""
        self.whole = False
        self._taken = 0
        self.task = asyncio.create_task(harness.server.app(self.scope, self._receive, self._send))

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
        """Id, name and data of the events received since the last call."""
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
        await asyncio.wait_for(self.task, 30)


@asynccontextmanager
async def watching(harness: HttpHarness, path: str, query: str = "", **headers: str) -> AsyncIterator[StreamClient]:
    stream = StreamClient(harness, path, query, **headers)
    await turns()
    yield stream
    await stream.hang_up()


async def advance(harness: HttpHarness, ms: int) -> None:
    harness.clock.advance(ms)
    await turns()


async def test_every_kind_of_event_is_sent_once_with_its_fields(harness: HttpHarness) -> None:
    """EVENT-1, EVENT-2, EVENT-3, LEASE-15: over the life of a lock, without tokens and digests."""
    first, second = new_token(), new_token()
    labelled = {"X-Volcano-Lock-Holder": 'host/"1"'}
    async with watching(harness, "/locks/job%3A1/events") as stream:
        lease = (await harness.acquire("job:1", first, headers=labelled)).json()
        await harness.acquire("job:1", first, 20)
        await harness.acquire("job:1", second)
        await harness.renew("job:1", first, 5)
        await harness.acquire("elsewhere", first)
        await advance(harness, 5_000 + GRACE_MS)
        taken = (await harness.acquire("job:1", second, 60)).json()
        await harness.release("job:1", second)
        await harness.acquire("job:1", first)
        await harness.acquire("job:1", new_token(), 60)
        await harness.acquire("job:1", new_token(), 60)
        await harness.request("DELETE", "/locks/job:1")
        await turns()
        received = stream.news()
    token, later = lease["fencing_token"], taken["fencing_token"]
    at, over = "2026-07-20T14:00:00.000Z", "2026-07-20T14:00:06.000Z"
    about = {"key": "job:1", "fencing_token": token, "holder": 'host/"1"', "at": at}
    after = {"key": "job:1", "fencing_token": later, "holder": None, "at": over}
    assert [(name, data) for _, name, data in received[:6]] == [
        ("acquired", about | {"why": "free", "expires_at": "2026-07-20T14:00:30.000Z"}),
        ("renewed", about | {"why": "repeated", "expires_at": "2026-07-20T14:00:20.000Z"}),
        ("renewed", about | {"why": "renewed", "expires_at": "2026-07-20T14:00:05.000Z"}),
        ("expired", about | {"why": "not_renewed", "at": over}),
        ("acquired", after | {"why": "free", "expires_at": "2026-07-20T14:01:06.000Z"} | {"why": "taken_over"}),
        ("released", after | {"why": "released"}),
    ]
    assert [name for _, name, _ in received[6:]] == ["acquired", "force_released"]
    assert received[-1][2]["why"] == "forced"
    assert len({id_ for id_, _, _ in received}) == len(received)
    for secret in (first, second):
        assert secret not in stream.raw.decode()
        assert sha256(secret.encode()).hexdigest() not in stream.raw.decode()


async def test_a_stream_begins_with_an_id_and_counts_once(harness: HttpHarness) -> None:
    """EVENT-1, EVENT-5, EVENT-7, QUOTA-3, HTTP-9."""
    async with watching(harness, "/locks/a/events") as stream:
        assert (stream.status, stream.headers["content-type"]) == (200, "text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        assert len(stream.headers["x-volcano-request-id"]) == 36
        assert stream.headers["x-ratelimit-remaining"] == "599"
        first, rest = stream.raw.decode().split("\n\n")
        assert rest == ""
        retry, id_, comment = first.split("\n")
        assert (retry, id_[:4], comment[0]) == ("retry: 1000", "id: ", ":")
        for _ in range(5):
            await advance(harness, event_stream.PING_MS)
        response = await harness.request("GET", "/locks/a")
        assert response.headers["x-ratelimit-remaining"] == "598"


async def test_events_without_a_prefix_is_a_lock_like_any_other(harness: HttpHarness) -> None:
    """EVENT-1: the lock is named `events`, and the stream of its events is `/locks/events/events`."""
    token = new_token()
    async with watching(harness, "/locks/events/events") as stream:
        assert (await harness.acquire("events", token)).status_code == 201
        assert (await harness.read("events"))["held"] is True
        assert (await harness.request("GET", "/locks/events?other=prefix")).json()["held"] is True
        assert (await harness.request("GET", "/locks/events?view=full")).json()["key"] == "events"
        assert (await harness.release("events", token)).status_code == 204
        assert (await harness.request("DELETE", "/locks/events?prefix=")).status_code == 204
        await turns()
        assert stream.names() == ["acquired events", "released events"]


async def test_all_locks_with_a_prefix_are_watched(harness: HttpHarness) -> None:
    """EVENT-1."""
    async with (
        watching(harness, "/locks/events", "prefix=n%3A&x=1") as some,
        watching(harness, "/locks/events", "prefix") as all_,
    ):
        for lock in ("n:1", "n:2", "m"):
            await harness.acquire(lock, new_token())
        await turns()
        assert some.names() == ["acquired n:1", "acquired n:2"]
        assert all_.names() == ["acquired n:1", "acquired n:2", "acquired m"]


async def test_a_stream_has_only_the_events_it_names(harness: HttpHarness) -> None:
    """EVENT-11: for one lock and for all, also after it resumed."""
    token, new = new_token(), new_token()
    async with (
        watching(harness, "/locks/a/events", "events=acquired,released") as one,
        watching(harness, "/locks/events", "prefix=&events=renewed") as all_,
    ):
        await harness.acquire("a", token)
        await harness.renew("a", token)
        await harness.release("a", token)
        await turns()
        seen = one.news()
        assert [name for _, name, _ in seen] == ["acquired", "released"]
        assert all_.names() == ["renewed a"]
        await harness.acquire("a", new)
        await harness.renew("a", new)
    async with watching(harness, "/locks/a/events", "events=renewed", last_event_id=seen[-1][0]) as resumed:
        assert resumed.names() == ["renewed a"]


@pytest.mark.parametrize("events", ["", "acquired,", "Acquired", "all", "acquired&events=renewed"])
async def test_an_unknown_event_is_refused(harness: HttpHarness, events: str) -> None:
    """EVENT-11."""
    for path in ("/locks/a/events?", "/locks/events?prefix=&"):
        assert problem(await harness.request("GET", f"{path}events={events}")) == (400, "invalid_request")


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
async def test_an_invalid_stream_request_gets_an_error_response(
    harness: HttpHarness, path: str, expected: tuple[int, str]
) -> None:
    """EVENT-1, HTTP-7, HTTP-13."""
    assert problem(await harness.request("GET", path)) == expected
    assert harness.server.service.hub.subscriber_count == 0


async def test_streams_are_checked_like_every_request(harness: HttpHarness) -> None:
    """EVENT-1, HTTP-13, HTTP-15: method, credential, quota, permission, request id, in this order."""
    wrong = await harness.request("POST", "/locks/a/events")
    assert (problem(wrong), wrong.headers["allow"]) == ((405, "method_not_allowed"), "GET")
    assert problem(await harness.request("GET", "/locks/a/events", key=None)) == (401, "invalid_credentials")
    bad_id = {"X-Volcano-Request-Id": "x"}
    assert problem(await harness.request("GET", "/locks/a/events", headers=bad_id)) == (400, "invalid_request_id")
    reader = await harness.new_key(permissions=["locks.read"])
    async with watching(harness, "/locks/a/events", authorization=f"Bearer {reader['key_value']}") as stream:
        assert stream.status == 200
    await harness.set_quota(1)
    assert problem(await harness.request("GET", "/locks/a/events")) == (429, "lock_rate_limited")


async def test_a_stream_resumes_without_a_gap_or_sends_a_reset(harness: HttpHarness) -> None:
    """EVENT-5."""
    async with watching(harness, "/locks/a/events") as stream:
        await harness.acquire("a", token := new_token())
        await turns()
        ((last, _, _),) = stream.news()
    await harness.renew("a", token)
    await harness.release("a", token)
    async with watching(harness, "/locks/a/events", last_event_id=last) as again:
        assert f"id: {last}\n" in again.raw.decode()
        assert again.names() == ["renewed a", "released a"]
        await harness.acquire("a", new_token())
        await turns()
        assert again.names() == ["acquired a"]
    for unknown in ("nonsense", "0" * 5_000, "\xe9"):
        async with watching(harness, "/locks/a/events", last_event_id=unknown) as reset:
            ((id_, name, data),) = reset.news()
            assert (name, data) == ("reset", {"at": "2026-07-20T14:00:00.000Z", "why": "unknown_id"})
            assert f"\nid: {id_}\n" in reset.raw.decode()


async def test_a_comment_comes_at_least_every_15_seconds(harness: HttpHarness) -> None:
    """EVENT-7: also while events are sent."""
    assert event_stream.PING_MS <= 15_000
    async with watching(harness, "/locks/a/events") as stream:
        for _ in range(3):
            before = stream.raw
            harness.clock.advance(event_stream.PING_MS)
            await harness.acquire("a", new_token())
            await turns()
            assert stream.raw[len(before) :].startswith((b":\n\n", b"id"))
            assert b":\n\n" in stream.raw[len(before) :]


async def test_a_revoked_key_ends_its_stream_within_15_seconds(harness: HttpHarness) -> None:
    """EVENT-7, ADMIN-9: no matter on which node it was revoked; streams of other keys continue."""
    made = await harness.new_key()
    key = f"Bearer {made['key_value']}"
    async with (
        watching(harness, "/locks/a/events", authorization=key) as stream,
        watching(harness, "/locks/a/events") as on,
    ):
        registry = harness.server.store.registry
        await registry.delete_service_key(harness.project_id, made["id"])  # as another node would
        await advance(harness, event_stream.PING_MS)
        await advance(harness, 15_000 - event_stream.PING_MS)
        await asyncio.wait_for(stream.task, 30)
        assert (stream.whole, on.whole) == (True, False)


async def test_an_expired_key_ends_its_stream(harness: HttpHarness) -> None:
    """EVENT-7, ADMIN-7."""
    made = await harness.new_key(expires_at="2026-07-20T14:00:10Z")
    async with watching(harness, "/locks/a/events", authorization=f"Bearer {made['key_value']}") as stream:
        await advance(harness, event_stream.PING_MS)
        assert not stream.whole
        await advance(harness, event_stream.PING_MS)
        assert stream.whole


async def test_a_key_that_cannot_be_looked_up_ends_its_stream(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-7: a failed lookup counts as invalid."""

    async def credential(_digest: bytes) -> Credential | None:
        raise StoreUnavailableError("store_error", "broken")

    async with watching(harness, "/locks/a/events") as stream:
        monkeypatch.setattr(harness.server.store.registry, "credential", credential)
        await advance(harness, event_stream.PING_MS)
        assert stream.whole


async def test_the_number_of_streams_is_bounded(harness: HttpHarness) -> None:
    """EVENT-7: a client that disconnects makes room for another and leaves no task."""
    harness.server.budgets.streams.limit = 1
    async with watching(harness, "/locks/a/events") as stream:
        assert "\nvolcano_locks_watchers 1.0\n" in (await harness.request("GET", "/metrics")).text
        full = await harness.request("GET", "/locks/b/events")
        assert (problem(full), full.headers["retry-after"]) == ((503, "lock_service_unavailable"), "1")
        await stream.hang_up()
        async with watching(harness, "/locks/b/events") as second:
            assert second.status == 200
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "stream-disconnect" not in names


async def test_a_slow_reader_loses_its_stream_and_does_not_affect_others(
    harness: HttpHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVENT-7."""
    monkeypatch.setattr(subscriber, "QUEUE_MAX", 3)
    async with (
        watching(harness, "/locks/events", "prefix=") as slow,
        watching(harness, "/locks/events", "prefix=") as on,
    ):
        gate = asyncio.Event()
        send = slow._send

        async def blocked(message: Any) -> None:
            await gate.wait()
            await send(message)

        slow.task.cancel()
        await asyncio.wait([slow.task])
        slow.task = asyncio.create_task(harness.server.app(slow.scope, slow._receive, blocked))
        await turns()
        for number in range(6):
            await harness.acquire(f"a{number}", new_token())
            await turns()
        gate.set()
        await asyncio.wait_for(slow.task, 30)
        assert slow.whole
        assert len(on.names()) == 6


async def test_a_stop_ends_every_stream_at_once(harness: HttpHarness) -> None:
    """EVENT-7, HTTP-23: the stop does not wait for streams."""
    async with watching(harness, "/locks/a/events") as stream:
        assert await asyncio.wait_for(harness.server.app.drain(15), 12)
        await turns()
        assert stream.whole
        assert problem(await harness.request("GET", "/locks/a/events")) == (503, "lock_service_unavailable")


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
    """EVENT-1: in chunks, or for HTTP/1.0 until the connection ends; a stop completes the response."""
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


async def test_a_connection_can_be_reused_after_a_refused_stream() -> None:
    """EVENT-1, HTTP-25."""
    async with running_server_async(clock=ManualClock()) as running:
        headers = {"Authorization": f"Bearer {running.service_key}"}
        async with httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
            for path in ("/locks/.bad/events", "/locks/a"):
                await client.get(path)
            async with client.stream("GET", "/locks/a/events") as response:
                async for line in response.aiter_lines():
                    if line.startswith("id: "):
                        break
            assert (await client.get("/locks/a")).json() == {"held": False}


@pytest.mark.real_time
async def test_nothing_is_left_of_a_client_that_disconnects() -> None:
    """EVENT-7, HTTP-24: after an ordinary close and after a reset."""
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
async def test_a_stalled_reader_does_not_delay_a_stop() -> None:
    """EVENT-7, HTTP-23."""
    async with running_server_async(clock=ManualClock()) as running:
        reader, writer = await connected(running)
        writer.write(request(running))
        await read_until(reader, lambda read: b": watching" in read)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        watched = running.server.service.hub
        (watcher,) = watched._feeds[running.project_id].subscribers
        event = hub.LockEvent("waiting", hub.RecordKey(running.project_id, LockKey("a")), None, "h" * 128, 1, "held")
        for _ in range(40):
            watched.publish([event] * 1_000)
            await turns(3)
        assert watcher.ended or watched.subscriber_count
        async with asyncio.timeout(30):
            await running.server.close()
        writer.close()
