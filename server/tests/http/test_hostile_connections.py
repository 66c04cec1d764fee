"""What the connection protocol refuses, closes and survives, over a real socket (HTTP-21, HTTP-22, HTTP-24)."""

import asyncio
import fcntl
import json
import resource
import struct
import termios
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest
import uvloop

from volcano_locks_server.http.codec import BODY_BYTES_MAX, QUERY_BYTES_MAX, TARGET_BYTES_MAX
from volcano_locks_server.http.server import connection_limits, http1
from volcano_locks_server.http.server.listener import SEND_BUFFER_BYTES
from volcano_locks_server.rules.values import FENCING_TOKEN_MAX, KEY_LENGTH_MAX
from volcano_locks_server.testing import ManualClock, RunningServer, running_server_async

from .raw_connection import RawConnection, lock_request

Connect = Callable[[], Awaitable[RawConnection]]

HALF_BODY = (
    b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\nAuthorization: KEY\r\n"
    b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n{"
)
SMALL_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def running() -> AsyncIterator[RunningServer]:
    """With asyncio's own loop, all requests take the way through ASGI."""
    async with running_server_async(clock=ManualClock()) as running:
        running.server.app.lease_requests.enabled = isinstance(asyncio.get_running_loop(), uvloop.Loop)
        yield running


@pytest.fixture
async def connect(running: RunningServer) -> AsyncIterator[Connect]:
    """Opens connections, which are closed at the end of the test."""
    opened: list[RawConnection] = []

    async def connected() -> RawConnection:
        opened.append(await RawConnection.open(running))
        return opened[-1]

    yield connected
    for connection in opened:
        await connection.close()


async def final_response(connect: Connect, sent: bytes) -> tuple[int, str, bool]:
    """Status and code of the response to `sent`, and whether the connection was closed after it."""
    connection = await connect()
    connection.send(sent)
    status, code = await connection.problem()
    return status, code, await connection.is_closed()


async def still_serves(connect: Connect) -> bool:
    connection = await connect()
    connection.send(SMALL_GET)
    return await connection.status() == 200


@pytest.mark.parametrize("address", [b"*metrics", b"*healthz", b"*"])
async def test_an_address_begins_with_a_slash(connect: Connect, address: bytes) -> None:
    """HTTP-6: proxies compare the whole path, so that one with another first character would pass what they close."""
    connection = await connect()
    connection.send(b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % address)
    assert await connection.problem() == (404, "not_found")


async def test_ten_thousand_headers_are_refused(connect: Connect) -> None:
    """HTTP-22."""
    head = b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % n for n in range(10_000)) + b"\r\n"
    assert await final_response(connect, head) == (431, "headers_too_large", True)
    few = b"GET /healthz HTTP/1.1\r\n" + b"x: 1\r\n" * (http1.HEADERS_MAX + 1) + b"\r\n"
    assert await final_response(connect, few) == (431, "headers_too_large", True)
    assert await still_serves(connect)


async def test_as_many_headers_as_are_allowed_are_served(connect: Connect) -> None:
    """HTTP-22."""
    head = b"GET /healthz HTTP/1.1\r\n" + b"x: 1\r\n" * http1.HEADERS_MAX + b"\r\n"
    connection = await connect()
    connection.send(head)
    assert await connection.status() == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + (b"x: " + b"a" * 4_000 + b"\r\n") * 8 + b"x: " + b"a" * 2_000 + b"\r\n\r\n",
    ],
    ids=["one long field", "long together"],
)
async def test_long_heads_are_refused(connect: Connect, head: bytes) -> None:
    """HTTP-22: the bytes of a head are bounded, in each part of it."""
    assert await final_response(connect, head) == (431, "headers_too_large", True)


async def test_an_endless_field_is_refused(connect: Connect) -> None:
    """HTTP-22: a header field without an end is bounded too."""
    connection = await connect()
    connection.send(b"GET /healthz HTTP/1.1\r\nx: ")
    for _ in range(200):
        connection.send(b"a" * 1_000)
        await asyncio.sleep(0)
    assert await connection.problem() == (431, "headers_too_large")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"NONSENSE\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"BREW /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["TLS", "nonsense", "two lengths", "a negative length", "an unknown method", "HTTP/2"],
)
async def test_input_that_is_not_http_is_400(connect: Connect, sent: bytes) -> None:
    """HTTP-22: and the connection is closed."""
    assert await final_response(connect, sent) == (400, "invalid_request", True)
    assert await still_serves(connect)


async def test_connect_is_refused(connect: Connect) -> None:
    """HTTP-26: CONNECT is 405 and ends the connection, so that no tunnelled bytes are a request."""
    sent = b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n" + SMALL_GET
    assert await final_response(connect, sent) == (405, "method_not_allowed", True)
    assert await still_serves(connect)


async def test_an_error_response_follows_the_responses_before_it(connect: Connect) -> None:
    """HTTP-24: nonsense behind a good request does not swallow the good request's response."""
    connection = await connect()
    connection.send(SMALL_GET + SMALL_GET + b"NONSENSE\r\n\r\n")
    assert [await connection.status() for _ in range(3)] == [200, 200, 400]
    assert await connection.is_closed()


async def test_a_broken_body_of_a_pipelined_request_is_refused_in_order(connect: Connect) -> None:
    """HTTP-24: the 400 follows the response before it, and the connection ends."""
    broken = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nNOCHUNK\r\n"
    connection = await connect()
    connection.send(SMALL_GET + broken + SMALL_GET)
    assert [await connection.status() for _ in range(2)] == [200, 400]
    assert await connection.is_closed()


async def test_pipelined_requests_are_answered_in_order(connect: Connect) -> None:
    """HTTP-24: many requests in one packet each get a response, and the connection stays open."""
    connection = await connect()
    connection.send((SMALL_GET + SMALL_GET.replace(b"healthz", b"nowhere")) * 50)
    assert [await connection.status() for _ in range(100)] == [200, 404] * 50
    connection.send(SMALL_GET)
    assert await connection.status() == 200


async def test_an_offer_to_upgrade_is_ignored(connect: Connect) -> None:
    """HTTP-26: clients that offer HTTP/2 or a websocket get an ordinary response on a connection that stays open."""
    offer = SMALL_GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    connection = await connect()
    connection.send(offer + SMALL_GET)
    assert [await connection.status() for _ in range(2)] == [200, 200]
    connection.send(offer)
    assert await connection.status() == 200


async def test_the_body_after_an_offer_to_upgrade_is_read(running: RunningServer, connect: Connect) -> None:
    """HTTP-26, HTTP-22: a client that offers h2c acquires like any other, even with the maximum of fields."""
    body = b'{"ttl_seconds":30}'
    head = b"POST /locks/a/lease HTTP/1.1\r\nAuthorization: Bearer %b\r\n" % running.service_key.encode()
    head += b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\nContent-Length: %d\r\n" % len(body)
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    head += b"x: 1\r\n" * (http1.HEADERS_MAX - 6)
    connection = await connect()
    connection.send(head + b"\r\n" + body + SMALL_GET)
    status, lease = await connection.response()
    assert (status, json.loads(lease)["fencing_token"] > 0) == (201, True)
    assert await connection.status() == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/healthz", 200),
        (b"http://x:1/healthz?a=b", 200),
        (b"http://x/locks/a", 401),
        (b"http://x", 404),
        (b"http://x?/healthz", 404),
        (b"//healthz", 404),
        (b"/%68ealthz", 404),
        (b"*", 404),
    ],
)
async def test_each_form_of_a_request_target_is_parsed(connect: Connect, target: bytes, status: int) -> None:
    """HTTP-6: the address is the same in each form that a proxy may send, and is not decoded."""
    connection = await connect()
    connection.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await connection.status() == status


@pytest.mark.parametrize("target", [b"/metrics#x", b"/healthz?a=b#c", b"http://x/healthz#", b"/locks/a#x", b"#"])
async def test_an_address_has_no_fragment(running: RunningServer, connect: Connect, target: bytes) -> None:
    """HTTP-6: a proxy that closes `/metrics` may pass on `/metrics#x`."""
    sent = b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
    assert await final_response(connect, sent % running.service_key.encode()) == (400, "invalid_request", True)


LONGEST_KEY = b"%61" * KEY_LENGTH_MAX
LONGEST_QUERY = b"?x=" + b"a" * (QUERY_BYTES_MAX - 2)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        (b"GET", b"/locks/" + LONGEST_KEY, 200),
        (b"POST", b"/locks/" + LONGEST_KEY + b"/lease", 201),
        (b"DELETE", b"/locks/" + LONGEST_KEY + b"/leases/%d" % FENCING_TOKEN_MAX, 409),
        (b"GET", b"/locks/" + LONGEST_KEY + b"/history", 200),
        (b"POST", b"/projects/" + b"a" * 255 + b"/service-keys/" + b"b" * 255 + b"/regenerate", 403),
    ],
    ids=["read", "lease", "force release", "history", "service key"],
)
async def test_the_longest_addresses_are_served(
    running: RunningServer, connect: Connect, method: bytes, target: bytes, status: int
) -> None:
    """HTTP-27, HTTP-7: with the longest query, in both forms."""
    key, body = running.service_key.encode(), b'{"ttl_seconds":30}'
    for form in (b"", b"https://" + b"h" * 253 + b":65535"):
        head = b"%b %b%b%b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % (
            method,
            form,
            target,
            LONGEST_QUERY,
            key,
        )
        head += b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n"
        connection = await connect()
        connection.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + SMALL_GET)
        assert [await connection.status() for _ in range(2)] == [status, 200]


@pytest.mark.parametrize("size", [TARGET_BYTES_MAX + 1, 32_000, 100_000])
@pytest.mark.parametrize("pieces", [1, 2, 7])
async def test_a_longer_address_is_414(connect: Connect, size: int, pieces: int) -> None:
    """HTTP-27: before method and credential, and it closes the connection, because the rest is not parsed."""
    for method in (b"GET", b"UNSUBSCRIBE", b"CONNECT"):
        sent = b"%b /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (method, b"a" * (size - 1))
        connection = await connect()
        for begin in range(0, len(sent), -(-len(sent) // pieces)):
            connection.send(sent[begin : begin - (-len(sent) // pieces)])
            await asyncio.sleep(0)
        assert await connection.problem() == (414, "uri_too_long")
        assert await connection.is_closed()


async def test_a_refused_address_with_a_legal_body_gets_its_response(connect: Connect) -> None:
    """HTTP-24: the client sends the whole request before it reads."""
    head = b"POST /%b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (b"a" * 30_000, BODY_BYTES_MAX)
    assert await final_response(connect, head + b"x" * BODY_BYTES_MAX) == (414, "uri_too_long", True)


async def test_an_address_within_the_limit_is_looked_up(connect: Connect) -> None:
    """HTTP-27."""
    connection = await connect()
    connection.send(b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * (TARGET_BYTES_MAX - 1)) + SMALL_GET)
    assert [await connection.status() for _ in range(2)] == [404, 200]


async def test_two_megabytes_are_refused_and_the_connection_goes_on(connect: Connect) -> None:
    """HTTP-21: a declared long body is 413 before it is read; the connection stays open even if it is sent."""
    length = 2_000_000
    connection = await connect()
    connection.send(b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
    assert await connection.problem() == (413, "request_too_large")
    connection.send(b"x" * length + SMALL_GET)
    assert await connection.status() == 200


async def test_an_undeclared_long_body_is_refused(running: RunningServer, connect: Connect) -> None:
    """HTTP-21: a chunked body is 413 as soon as it is too long; an endless one gets its connection closed."""
    connection = await connect()
    head = "POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {running.service_key}\r\n"
    head += "X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n"
    connection.send(head.encode())
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    connection.send(chunk * 2)
    assert await connection.problem() == (413, "request_too_large")

    async def without_end() -> None:
        while True:
            connection.send(chunk)
            await connection.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(without_end(), 30)


async def test_trailers_are_not_header_fields(running: RunningServer, connect: Connect) -> None:
    """HTTP-14: a trailer with a credential, which a proxy may not check, is ignored."""
    connection = await connect()
    head = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    trailers = f"Authorization: Bearer {running.service_key}\r\nX-Last: 1\r\n\r\n".encode()
    connection.send(head + trailers + SMALL_GET)
    assert [await connection.status() for _ in range(2)] == [401, 200]


@pytest.mark.real_time
async def test_a_body_that_breaks_off_is_400(running: RunningServer, connect: Connect) -> None:
    """HTTP-22: broken chunks end the request that waits for them."""
    head = "POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {running.service_key}\r\n"
    head += "X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n5\r\n{"
    connection = await connect()
    connection.send(head.encode())
    await asyncio.sleep(0.01)
    connection.send(b"xxxxxxNOCHUNK\r\n")
    assert await connection.problem() == (400, "invalid_request")
    assert await connection.is_closed()


async def test_a_client_that_disconnects_within_its_body_has_no_effect(
    running: RunningServer, connect: Connect
) -> None:
    """HTTP-24: an incomplete request has no effect, and other requests are served."""
    connection = await connect()
    head = (
        f"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\nAuthorization: Bearer {running.service_key}"
    )
    connection.send(head.encode() + b"\r\nX-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n{")
    await connection.writer.drain()
    await connection.close()
    assert await still_serves(connect)
    metrics = await text(connect, "/metrics")
    assert "volcano_locks_requests" in metrics
    assert "volcano_locks_requests_total{" not in metrics


async def test_a_spent_quota_is_refused_before_the_body_arrives(running: RunningServer, connect: Connect) -> None:
    """HTTP-13: the quota is checked before the input."""
    registry = running.server.store.registry
    await registry.change_project(running.project_id, name=None, requests_per_minute=1)
    connection = await connect()
    half = HALF_BODY.replace(b"KEY", b"Bearer " + running.service_key.encode())
    connection.send(half.replace(b"POST", b"DELETE") + b"x" * 19 + half)
    assert await connection.status() == 204
    assert await connection.problem() == (429, "lock_rate_limited")


async def test_a_refusal_before_the_body_of_expect_continue_closes_the_connection(connect: Connect) -> None:
    """HTTP-26: after `Expect: 100-continue` and a refusal, the body may or may not follow, so the connection ends."""
    connection = await connect()
    head = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n"
    connection.send(head)
    response = await asyncio.wait_for(connection.reader.read(), 30)
    assert response.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in response


@pytest.mark.real_time
@pytest.mark.parametrize(
    "head",
    [
        b"POST /locks/a/lease HTTP/1.1\r\nExpect: 100-continue\r\n",
        b"POST /locks/a/lease HTTP/1.1\r\nConnection: close\r\n",
        b"POST /locks/a/lease HTTP/1.0\r\n",
    ],
    ids=["held back", "close", "HTTP/1.0"],
)
async def test_a_refusal_reaches_a_client_that_sends_on(connect: Connect, head: bytes) -> None:
    """HTTP-21: the response to a long body ends the connection, and reaches a client that is still sending it."""
    connection = await connect()
    connection.send(head + b"Content-Length: 4000000\r\n\r\n")
    await asyncio.sleep(0.05)
    connection.send(b"x" * 4_000_000)
    status, body = await connection.response()
    assert (status, json.loads(body)["code"]) == (413, "request_too_large")
    assert await connection.is_closed()


async def text(connect: Connect, path: str) -> str:
    connection = await connect()
    connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    _, body = await connection.response()
    return body.decode()


# --- time-outs: the test sweeps at a later time of the loop instead of waiting ---


def open_after_sweep(running: RunningServer, seconds: float) -> int:
    """Sweep as if `seconds` had passed; returns how many connections are left."""
    listener = running.server.listener
    now = asyncio.get_running_loop().time() + seconds
    for one in list(listener.limits.open):
        one.close_if_overdue(now)
    return sum(not one.transport.is_closing() for one in listener.limits.open)


async def settled(running: RunningServer, count: int) -> None:
    listener = running.server.listener
    async with asyncio.timeout(30):
        while listener.connections != count:
            await asyncio.sleep(0.001)


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"", http1.KEEP_ALIVE_SECONDS),
        (b"GET /healthz HTT", http1.HEAD_SECONDS_MAX),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", http1.HEAD_SECONDS_MAX),
        (HALF_BODY, http1.BODY_SECONDS_MAX),
        (SMALL_GET, http1.KEEP_ALIVE_SECONDS),
    ],
    ids=["nothing sent", "half an address", "half a head", "half a body", "served, then idle"],
)
async def test_each_kind_of_silent_connection_is_closed(
    running: RunningServer, connect: Connect, sent: bytes, limit: float
) -> None:
    """HTTP-24, HTTP-25, case 32: a half-sent request is dropped soon; an idle connection lives beyond 75 seconds."""
    connection = await connect()
    connection.send(sent.replace(b"KEY", b"Bearer " + running.service_key.encode()))
    if sent == SMALL_GET:
        assert await connection.status() == 200
    await settled(running, 1)
    listener = running.server.listener
    (one,) = listener.limits.open
    async with asyncio.timeout(30):
        while sent and one.state is http1.State.IDLE and sent != SMALL_GET:
            await asyncio.sleep(0.001)
    assert open_after_sweep(running, limit - 1) == 1
    assert open_after_sweep(running, limit + 1) == 0
    assert await connection.is_closed()


def test_idle_connections_are_kept_longer_than_clients_keep_them() -> None:
    """HTTP-25, case 32."""
    assert http1.KEEP_ALIVE_SECONDS >= 75


async def test_idle_connections_are_closed_for_new_ones(
    running: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: at the limit of connections, idle ones are closed and a new one is served."""
    listener = running.server.listener
    monkeypatch.setattr(listener.limits, "limit", 8)
    for _ in range(8):
        await connect()
    await settled(running, 8)
    assert await still_serves(connect)
    assert listener.connections <= 8


@pytest.mark.real_time
async def test_the_kernel_keeps_little_for_a_client_that_does_not_read(
    running: RunningServer, connect: Connect
) -> None:
    """HTTP-24, case 59: 1,300 bytes without a credential occupied up to 4 MB of the host's memory for TCP."""
    connection = await connect()
    cast(asyncio.Transport, connection.writer.transport).pause_reading()
    connection.send(b"GET /openapi.json HTTP/1.1\r\n\r\n" * 200)
    await settled(running, 1)
    async with asyncio.timeout(30):
        while not running.server.listener.limits.open:
            await asyncio.sleep(0.001)
    (served,) = running.server.listener.limits.open
    sizes = [0] * 20
    async with asyncio.timeout(30):
        while not sizes[0] or len(set(sizes)) > 1:
            await asyncio.sleep(0.02)
            queued = fcntl.ioctl(served.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
            sizes = [struct.unpack("i", queued)[0], *sizes[:-1]]
    assert sizes[0] <= 4 * SEND_BUFFER_BYTES  # the kernel doubles it and rounds up


@pytest.mark.real_time
async def test_a_connection_over_the_limit_gets_503(
    running: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: requests in flight are never displaced; new ones get lock_service_unavailable."""
    listener = running.server.listener
    monkeypatch.setattr(listener.limits, "limit", 2)
    busy = [await connect() for _ in range(2)]
    busy[0].send(lock_request(running, "POST", "/locks/a/lease", str(uuid.uuid4()), '{"ttl_seconds":30}'))
    assert await busy[0].status() == 201
    for connection in busy:
        wait = '{"ttl_seconds":30,"wait_seconds":60}'
        connection.send(lock_request(running, "POST", "/locks/a/lease", str(uuid.uuid4()), wait))
    async with asyncio.timeout(30):
        while any(one.is_idle() for one in listener.limits.open) or listener.connections < 2:
            await asyncio.sleep(0.001)
    assert await final_response(connect, b"") == (503, "lock_service_unavailable", True)


@pytest.mark.real_time
async def test_half_sent_bodies_do_not_keep_others_out(
    running: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24, case 59: one key could otherwise take all connections with a byte of body each, at no cost of quota."""
    listener = running.server.listener
    monkeypatch.setattr(listener.limits, "limit", 2)
    half = HALF_BODY.replace(b"KEY", b"Bearer " + running.service_key.encode())
    for _ in range(2):
        (await connect()).send(half)
    async with asyncio.timeout(30):
        while sum(one.state is http1.State.BODY for one in listener.limits.open) < 2:
            await asyncio.sleep(0.001)
    assert await still_serves(connect)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (2_000, 2_000 - connection_limits.FILES_RESERVED),
        (400, 300),
        (1_000_000, connection_limits.CONNECTIONS_MAX),
        (resource.RLIM_INFINITY, connection_limits.CONNECTIONS_MAX),
    ],
)
def test_the_limit_leaves_files_for_the_store(monkeypatch: pytest.MonkeyPatch, files: int, limit: int) -> None:
    """HTTP-24: connections do not use up what the process may open."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    assert connection_limits._limit() == limit
