"""What the protocol refuses, closes and survives, said byte by byte over a real socket (HTTP-21, HTTP-22, HTTP-24)."""

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from volcano_locks_server.http.server import connection_limits, http1
from volcano_locks_server.testing import ManualClock, RunningServer, running_server_async

HALF_BODY = (
    b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\nAuthorization: KEY\r\n"
    b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n{"
)
SMALL_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
async def running() -> AsyncIterator[RunningServer]:
    async with running_server_async(clock=ManualClock()) as running:
        yield running
        for wire in Wire.opened:
            wire.hang_up()
            with contextlib.suppress(ConnectionError):
                await wire.writer.wait_closed()
        Wire.opened.clear()


class Wire:
    """A connection as a client sees it. The fixture hangs up on those that the test leaves open."""

    opened: ClassVar[list["Wire"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.opened.append(self)

    @classmethod
    async def open(cls, running: RunningServer) -> "Wire":
        host, port = running.url.removeprefix("http://").rsplit(":", 1)
        return cls(*await asyncio.open_connection(host, int(port)))

    async def answer(self) -> tuple[int, bytes]:
        """The next answer's status and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await self.reader.readexactly(int(length[0].split(b":")[1])) if length else b""
        return status, body

    async def closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    def hang_up(self) -> None:
        self.writer.close()


async def said(running: RunningServer, sent: bytes) -> tuple[int, str, bool]:
    """Status and code of the answer to `sent`, and whether the connection was closed after it."""
    wire = await Wire.open(running)
    wire.writer.write(sent)
    status, body = await wire.answer()
    closed = await asyncio.wait_for(wire.closed(), 30)
    return status, json.loads(body)["code"], closed


async def still_serves(running: RunningServer) -> bool:
    wire = await Wire.open(running)
    wire.writer.write(SMALL_GET)
    status, _ = await asyncio.wait_for(wire.answer(), 30)
    return status == 200


async def test_ten_thousand_headers_are_refused(running: RunningServer) -> None:
    """HTTP-22: the count of header fields is bounded."""
    head = b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: 1\r\n" % n for n in range(10_000)) + b"\r\n"
    assert await said(running, head) == (431, "headers_too_large", True)
    few = b"GET /healthz HTTP/1.1\r\n" + b"x: 1\r\n" * (http1.HEADERS_MAX + 1) + b"\r\n"
    assert await said(running, few) == (431, "headers_too_large", True)
    assert await still_serves(running)


async def test_as_many_headers_as_are_allowed_are_served(running: RunningServer) -> None:
    """HTTP-22: the limit itself is within the limits."""
    head = b"GET /healthz HTTP/1.1\r\n" + b"x: 1\r\n" * http1.HEADERS_MAX + b"\r\n"
    wire = await Wire.open(running)
    wire.writer.write(head)
    assert (await wire.answer())[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + (b"x: " + b"a" * 4_000 + b"\r\n") * 8 + b"x: " + b"a" * 2_000 + b"\r\n\r\n",
    ],
    ids=["one long field", "a long address", "long together"],
)
async def test_long_heads_are_refused(running: RunningServer, head: bytes) -> None:
    """HTTP-22: the bytes of a head are bounded, whichever part of it they are in."""
    assert await said(running, head) == (431, "headers_too_large", True)


async def test_a_field_without_end_is_refused(running: RunningServer) -> None:
    """HTTP-22: a header whose end never comes is bounded too."""
    wire = await Wire.open(running)
    wire.writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
    for _ in range(200):
        wire.writer.write(b"a" * 1_000)
        await asyncio.sleep(0)
    status, body = await asyncio.wait_for(wire.answer(), 30)
    assert (status, json.loads(body)["code"]) == (431, "headers_too_large")


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
async def test_what_is_no_request_is_answered_400(running: RunningServer, sent: bytes) -> None:
    """HTTP-22: what the parser cannot read is 400, then the connection is closed."""
    assert await said(running, sent) == (400, "invalid_request", True)
    assert await still_serves(running)


async def test_a_tunnel_is_refused(running: RunningServer) -> None:
    """HTTP-26: CONNECT is 405 and ends the connection, so that nothing in the tunnel is a request."""
    sent = b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n" + SMALL_GET
    assert await said(running, sent) == (405, "method_not_allowed", True)
    assert await still_serves(running)


async def test_a_refusal_waits_for_the_answers_before_it(running: RunningServer) -> None:
    """HTTP-24: nonsense behind a good request does not swallow the good request's answer."""
    wire = await Wire.open(running)
    wire.writer.write(SMALL_GET + SMALL_GET + b"NONSENSE\r\n\r\n")
    assert [(await wire.answer())[0] for _ in range(3)] == [200, 200, 400]
    assert await wire.closed()


async def test_a_broken_body_in_the_queue_is_refused_in_its_turn(running: RunningServer) -> None:
    """HTTP-24: the request before it is answered, itself is 400, and the connection ends."""
    broken = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nNOCHUNK\r\n"
    wire = await Wire.open(running)
    wire.writer.write(SMALL_GET + broken + SMALL_GET)
    assert [(await asyncio.wait_for(wire.answer(), 30))[0] for _ in range(2)] == [200, 400]
    assert await wire.closed()


async def test_pipelined_requests_are_answered_in_order(running: RunningServer) -> None:
    """HTTP-24: many requests in one packet, each answered, the connection kept."""
    wire = await Wire.open(running)
    wire.writer.write((SMALL_GET + SMALL_GET.replace(b"healthz", b"nowhere")) * 50)
    assert [(await wire.answer())[0] for _ in range(100)] == [200, 404] * 50
    wire.writer.write(SMALL_GET)
    assert (await wire.answer())[0] == 200


async def test_an_offer_to_upgrade_is_passed_over(running: RunningServer) -> None:
    """HTTP-26: clients that offer HTTP/2 or a websocket get an ordinary answer on a connection that goes on."""
    offer = SMALL_GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    wire = await Wire.open(running)
    wire.writer.write(offer + SMALL_GET)
    assert [(await wire.answer())[0] for _ in range(2)] == [200, 200]
    wire.writer.write(offer)
    assert (await wire.answer())[0] == 200


async def test_a_body_beside_an_offer_is_read(running: RunningServer) -> None:
    """HTTP-26, HTTP-22: a client that offers h2c acquires as any other, also with as many fields as there may be."""
    body = b'{"ttl_seconds":30}'
    head = b"POST /locks/a/lease HTTP/1.1\r\nAuthorization: Bearer %b\r\n" % running.service_key.encode()
    head += b"X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\nContent-Length: %d\r\n" % len(body)
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    head += b"x: 1\r\n" * (http1.HEADERS_MAX - 6)
    wire = await Wire.open(running)
    wire.writer.write(head + b"\r\n" + body + SMALL_GET)
    status, lease = await wire.answer()
    assert (status, json.loads(lease)["fencing_token"] > 0) == (201, True)
    assert (await wire.answer())[0] == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"/healthz", 200),
        (b"/healthz?a=b#c", 200),
        (b"/healthz#c?a=b", 200),
        (b"http://x:1/healthz?a=b", 200),
        (b"http://x/locks/a", 401),
        (b"http://x", 404),
        (b"http://x?/healthz", 404),
        (b"//healthz", 404),
        (b"/%68ealthz", 404),
        (b"*", 404),
    ],
)
async def test_each_form_of_an_address_is_read(running: RunningServer, target: bytes, status: int) -> None:
    """HTTP-6: what an address is does not depend on the form that a proxy gives it, and it is not decoded."""
    wire = await Wire.open(running)
    wire.writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await wire.answer())[0] == status


async def test_two_megabytes_are_refused_and_the_connection_goes_on(running: RunningServer) -> None:
    """HTTP-21: an announced long body is 413 before it is read; a client that sends it all the same may go on."""
    length = 2_000_000
    wire = await Wire.open(running)
    wire.writer.write(b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length)
    status, body = await wire.answer()
    assert (status, json.loads(body)["code"]) == (413, "request_too_large")
    wire.writer.write(b"x" * length + SMALL_GET)
    assert (await asyncio.wait_for(wire.answer(), 30))[0] == 200


async def test_an_unannounced_long_body_is_refused(running: RunningServer) -> None:
    """HTTP-21: a chunked body is 413 as soon as it is too long, and one without end is hung up on."""
    wire = await Wire.open(running)
    head = "POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {running.service_key}\r\n"
    head += "X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n"
    wire.writer.write(head.encode())
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    wire.writer.write(chunk * 2)
    status, body = await asyncio.wait_for(wire.answer(), 30)
    assert (status, json.loads(body)["code"]) == (413, "request_too_large")

    async def without_end() -> None:
        while True:
            wire.writer.write(chunk)
            await wire.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(without_end(), 30)


async def test_what_stands_behind_a_body_is_no_header(running: RunningServer) -> None:
    """HTTP-14: a trailer brings no credential past a proxy that looks at headers; it is read over."""
    wire = await Wire.open(running)
    head = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    trailers = f"Authorization: Bearer {running.service_key}\r\nX-Last: 1\r\n\r\n".encode()
    wire.writer.write(head + trailers + SMALL_GET)
    assert [(await wire.answer())[0] for _ in range(2)] == [401, 200]


@pytest.mark.real_time
async def test_a_body_that_breaks_off_is_400(running: RunningServer) -> None:
    """HTTP-22: broken chunks end the request that waits for them."""
    head = "POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    head += f"Authorization: Bearer {running.service_key}\r\n"
    head += "X-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n5\r\n{"
    wire = await Wire.open(running)
    wire.writer.write(head.encode())
    await asyncio.sleep(0.01)
    wire.writer.write(b"xxxxxxNOCHUNK\r\n")
    status, body = await asyncio.wait_for(wire.answer(), 30)
    assert (status, json.loads(body)["code"]) == (400, "invalid_request")
    assert await wire.closed()


async def test_a_client_that_hangs_up_in_its_body_leaves_no_trace(running: RunningServer) -> None:
    """HTTP-24: a request that never becomes whole does nothing, and nothing else suffers."""
    wire = await Wire.open(running)
    head = (
        f"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\nAuthorization: Bearer {running.service_key}"
    )
    wire.writer.write(head.encode() + b"\r\nX-Volcano-Lock-Token: 5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10\r\n\r\n{")
    await wire.writer.drain()
    wire.hang_up()
    assert await still_serves(running)
    told = await text(running, "/metrics")
    assert "volcano_locks_requests" in told
    assert "volcano_locks_requests_total{" not in told


async def test_a_spent_quota_waits_for_no_body(running: RunningServer) -> None:
    """HTTP-13: the quota is looked at before the input."""
    registry = running.server.store.registry
    await registry.change_project(running.project_id, name=None, requests_per_minute=1)
    wire = await Wire.open(running)
    half = HALF_BODY.replace(b"KEY", b"Bearer " + running.service_key.encode())
    wire.writer.write(half.replace(b"POST", b"DELETE") + b"x" * 19 + half)
    assert (await wire.answer())[0] == 204
    status, body = await asyncio.wait_for(wire.answer(), 30)
    assert (status, json.loads(body)["code"]) == (429, "lock_rate_limited")


async def test_a_refused_body_that_was_held_back_ends_the_connection(running: RunningServer) -> None:
    """HTTP-26: after `Expect: 100-continue` and a refusal, the body may or may not come: the response ends it."""
    wire = await Wire.open(running)
    head = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20\r\n\r\n"
    wire.writer.write(head)
    response = await asyncio.wait_for(wire.reader.read(), 30)
    assert response.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in response


@pytest.mark.parametrize(
    "head",
    [
        b"POST /locks/a/lease HTTP/1.1\r\nExpect: 100-continue\r\n",
        b"POST /locks/a/lease HTTP/1.1\r\nConnection: close\r\n",
        b"POST /locks/a/lease HTTP/1.0\r\n",
    ],
    ids=["held back", "close", "HTTP/1.0"],
)
async def test_a_refusal_reaches_a_client_that_sends_on(running: RunningServer, head: bytes) -> None:
    """HTTP-21: the response to a long body ends the connection, and is not lost to the body that is under way."""
    wire = await Wire.open(running)
    wire.writer.write(head + b"Content-Length: 4000000\r\n\r\n")
    await asyncio.sleep(0.05)
    wire.writer.write(b"x" * 4_000_000)
    await wire.writer.drain()
    status, body = await wire.answer()
    assert (status, json.loads(body)["code"]) == (413, "request_too_large")
    assert await wire.closed()


async def text(running: RunningServer, path: str) -> str:
    wire = await Wire.open(running)
    wire.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    _, body = await wire.answer()
    return body.decode()


# --- what keeps the server waiting: a sweep at a later time of the loop, instead of waiting for it ---


def sweep_later(running: RunningServer, seconds: float) -> int:
    """Look at all connections as if `seconds` had passed; how many are left."""
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
async def test_each_kind_of_silence_ends(running: RunningServer, sent: bytes, limit: float) -> None:
    """HTTP-24, HTTP-25, case 32: a half-sent request is dropped soon; an idle connection lives beyond 75 seconds."""
    wire = await Wire.open(running)
    wire.writer.write(sent.replace(b"KEY", b"Bearer " + running.service_key.encode()))
    if sent == SMALL_GET:
        assert (await wire.answer())[0] == 200
    await settled(running, 1)
    listener = running.server.listener
    (one,) = listener.limits.open
    async with asyncio.timeout(30):
        while sent and not one._in_head and one.cycle is None:
            await asyncio.sleep(0.001)
    assert sweep_later(running, limit - 1) == 1
    assert sweep_later(running, limit + 1) == 0
    assert await asyncio.wait_for(wire.closed(), 30)


def test_idle_connections_outlive_those_of_clients() -> None:
    """HTTP-25, case 32."""
    assert http1.KEEP_ALIVE_SECONDS >= 75


async def test_those_that_wait_make_room_for_those_that_come(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: where there are too many connections, idle ones are closed, and a new one is served."""
    listener = running.server.listener
    monkeypatch.setattr(listener.limits, "limit", 8)
    for _ in range(8):
        await Wire.open(running)
    await settled(running, 8)
    assert await still_serves(running)
    assert listener.connections <= 8


@pytest.mark.real_time
async def test_a_connection_there_is_no_room_for_is_told_so(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: requests in flight are never thrown out for new ones; those hear lock_service_unavailable."""
    listener = running.server.listener
    monkeypatch.setattr(listener.limits, "limit", 2)
    half = HALF_BODY.replace(b"KEY", b"Bearer " + running.service_key.encode())
    busy = [await Wire.open(running) for _ in range(2)]
    for wire in busy:
        wire.writer.write(half)
    async with asyncio.timeout(30):
        while any(one.is_idle() for one in listener.limits.open) or listener.connections < 2:
            await asyncio.sleep(0.001)
    assert await said(running, b"") == (503, "lock_service_unavailable", True)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        (1_000, 1_000 - connection_limits.FILES_RESERVED),
        (1_000_000, connection_limits.CONNECTIONS_MAX),
        (resource.RLIM_INFINITY, connection_limits.CONNECTIONS_MAX),
    ],
)
def test_the_limit_leaves_files_for_the_store(monkeypatch: pytest.MonkeyPatch, files: int, limit: int) -> None:
    """HTTP-24: connections do not use up what the process may open."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    assert connection_limits._limit() == limit
