"""The short way of lease requests: it shows the same as the way through ASGI, and breaks alone (HTTP-24, HTTP-26)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from volcano_locks_server.http.credential_cache import CREDENTIAL_SECONDS_MAX
from volcano_locks_server.http.server.connection_context import ConnectionContext
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.testing import START_MS

from .conftest import HttpHarness
from .memory_connection import MemoryConnection, Response, responses
from .test_damaged_records import DAMAGED, spoil

TOKEN = "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10"
OTHER = "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f11"
REQUEST_ID = "6d1c3f43-6f3c-4b53-9d3b-0c8f2a1f7f12"
TURNS = 12  # of the event loop: enough for a command to be committed and answered


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Ways:
    """Connections to one server, and how many of their requests took the way through ASGI."""

    def __init__(self, harness: HttpHarness) -> None:
        self.harness = harness
        self.through_asgi = 0
        app = harness.server.app

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            self.through_asgi += 1
            await app(scope, receive, send)

        self._context = ConnectionContext(counted, app.lease_requests, harness.server.listener.limits)

    def connection(self) -> MemoryConnection:
        return MemoryConnection(self._context)

    def request(self, method: str, path: str, *fields: str, token: str = TOKEN, body: str = "") -> bytes:
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.harness.service_key}", *fields]
        lines += [f"X-Volcano-Lock-Token: {token}", f"X-Volcano-Request-Id: {REQUEST_ID}"]
        lines += [f"Content-Length: {len(body)}", "", body] if body else ["", ""]
        return "\r\n".join(lines).encode()

    def acquire(self, key: str = "a", token: str = TOKEN, ttl: object = 30) -> bytes:
        return self.request("POST", f"/locks/{key}/lease", token=token, body=json.dumps({"ttl_seconds": ttl}))


@pytest.fixture
def over_socket() -> bool:
    return True


@pytest.fixture
async def ways(harness: HttpHarness) -> AsyncIterator[Ways]:
    await harness.read("warm-up")  # the service key is cached from here on
    yield Ways(harness)
    for connection in list(harness.server.listener.limits.open):
        connection.transport.close()
        harness.server.listener.limits.remove(connection)


SHORT: dict[str, Callable[[Ways], bytes]] = {
    "acquire": lambda ways: ways.acquire(),
    "acquire again": lambda ways: ways.acquire(),
    "acquire what is held": lambda ways: ways.acquire(token=OTHER),
    "renew": lambda ways: ways.request("PATCH", "/locks/a/lease", body='{"ttl_seconds":60}'),
    "renew with a holder": lambda ways: ways.request(
        "PATCH", "/locks/a/lease", "X-Volcano-Lock-Holder: host/1", body='{"ttl_seconds":60}'
    ),
    "renew what another holds": lambda ways: ways.request(
        "PATCH", "/locks/a/lease", token=OTHER, body='{"ttl_seconds":60}'
    ),
    "read": lambda ways: ways.request("GET", "/locks/a"),
    "a wait of no time": lambda ways: ways.request(
        "POST", "/locks/a/lease", body='{"ttl_seconds":30,"wait_seconds":0}'
    ),
    "release what another holds": lambda ways: ways.request("DELETE", "/locks/a/lease", token=OTHER),
    "release": lambda ways: ways.request("DELETE", "/locks/a/lease"),
    "release again": lambda ways: ways.request("DELETE", "/locks/a/lease"),
    "read what is free": lambda ways: ways.request("GET", "/locks/a"),
    "a lock named events": lambda ways: ways.request("GET", "/locks/events"),
    "a retired token": lambda ways: ways.acquire(),
}
LONG: dict[str, Callable[[Ways], bytes]] = {
    "force release": lambda ways: ways.request("DELETE", "/locks/a"),
    "a list": lambda ways: ways.request("GET", "/locks"),
    "a query": lambda ways: ways.request("GET", "/locks/a?view=full"),
    "an unknown credential": lambda ways: ways.acquire().replace(b"Bearer sk-", b"Bearer sk-x"),
    "no credential": lambda ways: ways.acquire().replace(b"Authorization", b"X-Other"),
    "an invalid key": lambda ways: ways.acquire(".a"),
    "an invalid token": lambda ways: ways.acquire(token="1"),
    "an invalid TTL": lambda ways: ways.acquire(ttl=1),
    "an invalid request id": lambda ways: ways.acquire().replace(REQUEST_ID.encode(), b"1"),
    "an unknown address": lambda ways: ways.request("GET", "/locks/a/b"),
    "another method": lambda ways: ways.request("PUT", "/locks/a/lease", body="{}"),
    "an expectation": lambda ways: ways.request("GET", "/locks/a", "Expect: 100-continue"),
    "the last request": lambda ways: ways.request("GET", "/locks/a", "Connection: close"),
    "HTTP/1.0": lambda ways: ways.request("GET", "/locks/a").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "chunks": lambda ways: (
        ways.request("POST", "/locks/a/lease", "Transfer-Encoding: chunked") + b'12\r\n{"ttl_seconds":30}\r\n0\r\n\r\n'
    ),
    "a wait": lambda ways: ways.request("POST", "/locks/b/lease", body='{"ttl_seconds":30,"wait_seconds":0.5}'),
}


@pytest.mark.parametrize(("way", "requests"), [(0, SHORT), (1, LONG)], ids=["short", "through ASGI"])
async def test_which_way_a_request_takes(ways: Ways, way: int, requests: dict[str, Callable[[Ways], bytes]]) -> None:
    """HTTP-24: only requests that need no wait before their command take the short way."""
    for name, request in requests.items():
        before = ways.through_asgi
        connection = ways.connection()
        connection.feed(request(ways))
        await turn()
        assert ways.through_asgi - before == way, name
        assert len(responses(connection.transport.written, b"GET")) == 1, name


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/metrics"), ("GET", "/projects"), ("GET", "/sevenup"), ("POST", "/projecta/lease"), ("GET", "/locksXa")],
)
async def test_an_address_of_another_kind_is_no_lock(ways: Ways, method: str, path: str) -> None:
    """HTTP-6: its end was taken for a key, so that an address which a proxy permits could reach every lock."""
    connection = ways.connection()
    connection.feed(ways.request(method, path, body='{"ttl_seconds":30}' if method == "POST" else ""))
    await turn()
    assert ways.through_asgi == 1
    (response,) = responses(connection.transport.written, method.encode())
    assert response.status == {"/metrics": 200, "/projects": 403}.get(path, 404)
    assert not (await ways.harness.read("a"))["held"]


async def answered(ways: Ways, sent: list[bytes]) -> list[Response]:
    found = []
    for one in sent:
        connection = ways.connection()
        connection.feed(one)
        await turn()
        found += responses(connection.transport.written, b"GET")
    return found


async def test_both_ways_show_the_same(ways: Ways) -> None:
    """HTTP-1, HTTP-3, HTTP-9, HTTP-28, QUOTA-3, OPS-3, OPS-6: responses, counts and log lines are the same."""
    harness = ways.harness
    await harness.set_quota(1_000)
    await harness.read("warm-up")
    shown = []
    for key, is_enabled in (("a", True), ("b", False)):
        harness.server.app.lease_requests.enabled = is_enabled
        harness.server.metrics.requests.clear()
        logged = len(harness.log.getvalue())
        before = ways.through_asgi
        sent = [request(ways).replace(b"/locks/a", b"/locks/" + key.encode()) for request in SHORT.values()]
        got = await answered(ways, sent)
        assert ways.through_asgi - before == (0 if is_enabled else len(sent))
        for response in got:
            assert response.fields.pop(b"date")
            left = int(response.fields.pop(b"x-ratelimit-remaining"))
            assert 1_000 - 2 * len(SHORT) - 3 <= left < 1_000
        await until_logged(harness, logged, sum(not one.startswith(b"GET") for one in sent))  # reads are not logged
        logged_lines = [json.loads(line) for line in harness.log.getvalue()[logged:].splitlines()]
        lines = [line for line in logged_lines if "operation" in line]
        for line in lines:
            del line["at"]
            assert line.pop("key") in {key, "events"}
        counts = dict(harness.server.metrics.requests)
        shown.append((got, counts, lines))
    short, through_asgi = shown
    assert short == through_asgi
    assert {response.status for response in short[0]} == {200, 201, 204, 409}


async def test_both_ways_show_the_same_of_a_damaged_record(ways: Ways) -> None:
    """LEASE-18, OPS-6: the response, the count and the log line."""
    harness = ways.harness
    spoil(harness, "a")
    shown = []
    for is_enabled in (True, False):
        harness.server.app.lease_requests.enabled = is_enabled
        harness.server.metrics.requests.clear()
        logged, before = len(harness.log.getvalue()), ways.through_asgi
        names = ("acquire", "renew", "read", "release")
        got = await answered(ways, [SHORT[name](ways) for name in names])
        assert ways.through_asgi - before == (0 if is_enabled else len(names))
        for response in got:
            assert response.fields.pop(b"date")
            assert response.fields.pop(b"x-ratelimit-remaining")
        await until_logged(harness, logged, len(names))
        lines = [json.loads(line) for line in harness.log.getvalue()[logged:].splitlines()]
        for line in lines:
            del line["at"]
        shown.append((got, dict(harness.server.metrics.requests), lines))
    short, through_asgi = shown
    assert short == through_asgi
    assert [(response.status, json.loads(response.body)["code"]) for response in short[0]] == [DAMAGED] * 4
    assert [line["event"] for line in short[2]] == ["record_damaged"] * 4


async def until_logged(harness: HttpHarness, begin: int, count: int) -> None:
    async with asyncio.timeout(30):
        while harness.log.getvalue()[begin:].count('"operation"') < count:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("pause", [True, False], ids=["in turn", "at once"])
async def test_each_split_of_lease_requests_gets_the_same_responses(ways: Ways, *, pause: bool) -> None:
    """HTTP-26: acquire, renew, read and release in one segment, cut at each byte."""
    renew = ways.request("PATCH", "/locks/KEY/lease", body='{"ttl_seconds":60}')
    sent = ways.acquire("KEY") + renew + ways.request("GET", "/locks/KEY") + ways.request("DELETE", "/locks/KEY/lease")
    await ways.harness.set_quota(0)
    await ways.harness.read("warm-up")
    for first in range(0, len(sent), 64):
        cuts = range(first, min(first + 64, len(sent)))
        opened = [(cut, ways.connection(), sent.replace(b"KEY", b"%03d" % cut)) for cut in cuts]
        for cut, connection, data in opened:
            connection.feed(data[:cut])
        if pause:
            await turn()
        for cut, connection, data in opened:
            connection.feed(data[cut:])
        for _ in range(8):
            await turn()
        for cut, connection, _data in opened:
            found = responses(connection.transport.written, b"POST")
            assert [one.status for one in found] == [201, 200, 200, 204], cut
            assert json.loads(found[2].body)["expires_at"] == json.loads(found[1].body)["expires_at"], cut
            assert not connection.transport.closed
    assert ways.through_asgi == 0


async def test_a_body_that_arrives_in_parts_is_no_part_of_the_next_one(ways: Ways) -> None:
    """HTTP-26: a refused request left the first part of its body for the next request on a shared connection."""
    connection = ways.connection()
    refused = ways.acquire().replace(b"Bearer sk-", b"Bearer sk-x")
    connection.feed(refused[:-5])
    await turn()
    connection.feed(refused[-5:] + ways.acquire())
    await turn()
    assert [one.status for one in responses(connection.transport.written, b"POST")] == [401, 201]


async def test_a_broken_connection_does_not_reach_group_commit(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-24: an error while one response is written ends that connection alone; all others get theirs."""
    broken, *others = [ways.connection() for _ in range(3)]

    def fail(_data: bytes) -> None:
        raise RuntimeError("the transport failed")

    monkeypatch.setattr(broken.transport, "write", fail)
    for number, connection in enumerate((broken, *others)):
        connection.feed(ways.acquire(f"k{number}"))
    await turn()
    assert broken.transport.closed
    for connection in others:
        assert [one.status for one in responses(connection.transport.written, b"POST")] == [201]
    connection = ways.connection()
    connection.feed(ways.request("DELETE", "/locks/k0/lease"))
    await turn()
    assert [one.status for one in responses(connection.transport.written, b"DELETE")] == [204]
    assert ways.harness.server.app.is_idle_but_for(0)


async def test_a_disconnect_before_the_outcome_harms_nothing(ways: Ways) -> None:
    """HTTP-24: the command takes effect, and nothing is written to the closed connection."""
    gone, other = ways.connection(), ways.connection()
    gone.feed(ways.acquire("gone"))
    other.feed(ways.acquire("other"))
    gone.transport.close()
    gone.protocol.connection_lost(None)
    await turn()
    assert gone.transport.written == b""
    assert [one.status for one in responses(other.transport.written, b"POST")] == [201]
    assert (await ways.harness.read("gone"))["held"]
    assert ways.harness.server.app.is_idle_but_for(0)


async def test_a_store_that_fails_is_503_with_quota_headers(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-20, QUOTA-3: also if the command is refused at once."""
    store = ways.harness.server.store.locks

    async def fail(*_arguments: object) -> object:
        raise StoreUnavailableError("disk_full", "no space")

    monkeypatch.setattr(store, "update", fail)
    ways.harness.server.budgets.commands_pending.limit = 1
    first, second = ways.connection(), ways.connection()
    first.feed(ways.acquire("a"))
    second.feed(ways.acquire("b"))
    await turn()
    for connection, cause in ((first, "disk_full"), (second, "overloaded")):
        (response,) = responses(connection.transport.written, b"POST")
        assert response.status == 503
        assert json.loads(response.body)["code"] == "lock_service_unavailable"
        assert response.fields[b"retry-after"] == b"1"
        assert b"x-ratelimit-remaining" in response.fields
        assert ways.harness.server.metrics.store_errors[cause] == 1
    assert ways.through_asgi == 0


async def test_a_request_past_its_projects_share_is_429(ways: Ways) -> None:
    """HTTP-32: it has changed nothing, and its response shows the quota."""
    ways.harness.server.budgets.commands_pending.limit = 2
    first, second = ways.connection(), ways.connection()
    first.feed(ways.acquire("a"))
    second.feed(ways.acquire("b"))
    await turn()
    (response,) = responses(second.transport.written, b"POST")
    assert (response.status, json.loads(response.body)["code"]) == (429, "too_many_requests")
    assert response.fields[b"retry-after"] == b"1"
    assert b"x-ratelimit-remaining" in response.fields
    assert [one.status for one in responses(first.transport.written, b"POST")] == [201]
    assert not (await ways.harness.read("b"))["held"]
    assert ways.through_asgi == 0


@pytest.mark.real_time
async def test_a_commit_that_ends_after_its_503_writes_no_second_response(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-12, HTTP-26: else the next request on that connection would get the outcome of another one."""
    store, commit = ways.harness.server.store.locks, ways.harness.server.service._commit
    update, gate = store.update, asyncio.Event()

    async def hang(*arguments: Any) -> Any:
        results = await update(*arguments)
        await gate.wait()
        return results

    monkeypatch.setattr(store, "update", hang)
    monkeypatch.setattr(commit, "_commit_seconds_max", 0.05)
    monkeypatch.setattr(commit, "_watchdog_seconds", 0.02)
    connection = ways.connection()
    connection.feed(ways.acquire("late"))
    async with asyncio.timeout(10):
        while not connection.transport.written:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # the watchdog runs again
    gate.set()
    await turn()
    connection.feed(ways.request("GET", "/locks/late"))
    await turn()
    late, read = responses(connection.transport.written, b"POST")
    assert (late.status, read.status) == (503, 200)
    assert json.loads(read.body)["held"], "the outcome was unknown: the commit took effect"
    assert ways.harness.server.app.is_idle_but_for(0)
    assert ways.through_asgi == 0


async def test_a_revoked_key_is_refused_at_once_on_a_connection_that_used_it(ways: Ways) -> None:
    """ADMIN-9: a connection forgets its principal with the key."""
    harness = ways.harness
    made = await harness.new_key("short-lived")
    await harness.read("warm-up", key=made["key_value"])
    connection = ways.connection()
    request = ways.acquire().replace(harness.service_key.encode(), made["key_value"].encode())
    connection.feed(request)
    await turn()
    deleted = await harness.admin("DELETE", f"/projects/{harness.project_id}/service-keys/{made['id']}")
    assert deleted.status_code == 204
    connection.feed(request)
    await turn()
    assert [one.status for one in responses(connection.transport.written, b"POST")] == [201, 401]


async def test_a_key_that_expires_is_refused_on_a_connection_that_used_it(ways: Ways) -> None:
    """ADMIN-7."""
    harness = ways.harness
    made = await harness.new_key("short-lived", expires_at="2026-07-20T14:00:02Z")
    await harness.read("warm-up", key=made["key_value"])
    connection = ways.connection()
    request = ways.acquire().replace(harness.service_key.encode(), made["key_value"].encode())
    connection.feed(request)
    await turn()
    harness.clock.set(START_MS + 2_000)
    connection.feed(request)
    await turn()
    assert [one.status for one in responses(connection.transport.written, b"POST")] == [201, 401]


async def test_a_key_that_was_looked_up_again_takes_the_short_way_again(ways: Ways) -> None:
    """HTTP-24: a lookup is due every few seconds; only the request that makes it takes the other way."""
    connection = ways.connection()
    for _ in range(2):
        connection.feed(ways.acquire())
        await turn()
    assert ways.through_asgi == 0
    ways.harness.clock.advance(CREDENTIAL_SECONDS_MAX * 1_000)
    for _ in range(3):
        connection.feed(ways.acquire())
        await turn()
    assert ways.through_asgi == 1
    assert [one.status for one in responses(connection.transport.written, b"POST")] == [201] * 5


async def test_two_keys_on_one_connection_are_two_principals(ways: Ways) -> None:
    """HTTP-2: as behind a proxy that shares its connections."""
    harness = ways.harness
    project = (await harness.admin("POST", "/projects", json={"name": "other"})).json()
    made = await harness.admin("POST", f"/projects/{project['id']}/service-keys", json={"name": "k"})
    other = made.json()["key_value"]
    await harness.read("warm-up", key=other)
    connection = ways.connection()
    request = ways.acquire()
    for _ in range(2):
        connection.feed(request)
        connection.feed(request.replace(harness.service_key.encode(), other.encode()).replace(b"7f10", b"7f55"))
        for _ in range(3):
            await turn()
    assert [one.status for one in responses(connection.transport.written, b"POST")] == [201] * 4
    assert ways.through_asgi == 0


async def test_draining_lets_a_committing_request_complete(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-23: on both ways; a request whose body is not complete is refused."""
    store = ways.harness.server.store.locks
    gate, update = asyncio.Event(), store.update

    async def wait(*arguments: Any) -> Any:
        await gate.wait()
        return await update(*arguments)

    monkeypatch.setattr(store, "update", wait)
    committing, half = ways.connection(), ways.connection()
    committing.feed(ways.acquire("a"))
    half.feed(ways.acquire("b")[:-4])
    await turn()
    drained = asyncio.ensure_future(ways.harness.server.app.drain(10))
    await turn()
    half.feed(ways.acquire("b")[-4:])
    await turn()
    assert not drained.done()
    gate.set()
    assert await drained
    assert [one.status for one in responses(committing.transport.written, b"POST")] == [201]
    assert [one.status for one in responses(half.transport.written, b"POST")] == [503]


async def test_the_connection_reads_no_further_while_its_client_does_not_read(ways: Ways) -> None:
    """HTTP-24, case 59: what is sent ahead is bounded, and the connection counts as idle."""
    connection = ways.connection()
    connection.feed(ways.acquire("a"))
    await turn()
    connection.protocol.pause_writing()
    sent = ways.request("GET", "/locks/a")
    for _ in range(100):
        if not connection.transport.is_paused:
            connection.feed(sent)
    await turn()
    assert connection.transport.is_paused
    assert connection.protocol.is_idle()
    assert len(responses(connection.transport.written, b"POST")) == 1
    connection.protocol.resume_writing()
    for _ in range(100):
        await turn()
    assert not connection.transport.is_paused
    assert len(responses(connection.transport.written, b"POST")) > 10
