"""One response per request, for every split of its bytes, and a body that is never read as a request (HTTP-26).

The requests are generated: every method, framing and offer, alone and with a pipelined request. The test's application
echoes the request and, for methods that carry one, the body that it read. So a response shows what the protocol took
for the body.
"""

import asyncio
import itertools

import pytest

from volcano_locks_server.http.codec import Receive, Scope, Send
from volcano_locks_server.http.server.connection_context import ConnectionContext
from volcano_locks_server.http.server.connection_limits import ConnectionLimits
from volcano_locks_server.http.server.http1 import HEAD_BYTES_MAX, METHODS

from .memory_connection import CONTINUE, MemoryConnection, responses

BODY = b"DELETE /hidden HTTP/1.1\r\nHost: x\r\nX-Swallowed: "
FRAMINGS = {
    "no body": (b"\r\n", b""),
    "length": (b"Content-Length: %d\r\n\r\n" % len(BODY), BODY),
    "chunked": (
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (7, BODY[:7], len(BODY) - 7, BODY[7:]),
    ),
}
OFFERS = {
    "none": b"",
    "upgrade": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n",
    "expect": b"Expect: 100-continue\r\n",
}
READS_BODY = frozenset({b"POST", b"PUT", b"PATCH"})
SERVED = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE")
NEXT = b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n"
TURNS = 8  # of the event loop: enough for all that can be answered


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with method, path and body."""
    said = scope["method"].encode() + b" " + scope["raw_path"] + b" "
    if scope["method"].encode() in READS_BODY:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            said += message["body"]
            more = message["more_body"]
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def connection_to_echo() -> MemoryConnection:
    return MemoryConnection(ConnectionContext(echo, None, ConnectionLimits(limit=1)))


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def cut_everywhere(sent: bytes, *, pause: bool = True) -> list[MemoryConnection]:
    """A connection for each split. With a pause, the server responds to what it can before the rest arrives."""
    opened = [connection_to_echo() for _ in range(len(sent))]
    for cut, connection in enumerate(opened):
        connection.feed(sent[:cut])
    if pause:
        await turn()
    for cut, connection in enumerate(opened):
        connection.feed(sent[cut:])
    await turn()
    return opened


@pytest.mark.parametrize("pause", [True, False], ids=["in turn", "at once"])
@pytest.mark.parametrize("then", [b"", NEXT], ids=["alone", "pipelined"])
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("method", SERVED)
async def test_each_request_gets_its_response(
    method: bytes, framing: str, offer: str, then: bytes, *, pause: bool
) -> None:
    """HTTP-26, case 57: the body is read as the body, and the pipelined request gets its own response."""
    fields, body = FRAMINGS[framing]
    head = b"%b /first HTTP/1.1\r\nHost: x\r\n" % method + OFFERS[offer] + fields
    read = BODY if body and method in READS_BODY else b""
    for cut, connection in enumerate(await cut_everywhere(head + body + then, pause=pause)):
        first, *rest = responses(connection.transport.written, method)
        assert first.status == 200
        assert first.body == (b"" if method == b"HEAD" else b"%b /first %b" % (method, read)), cut
        # The client held its body back: it may now leave it out, or its chunks take long to parse.
        held_back = pause and len(head) <= cut < len(head + body)
        is_last = held_back and (offer == "expect" or framing == "chunked") and method not in READS_BODY
        assert (first.fields.get(b"connection") == b"close") == is_last == connection.transport.closed, cut
        assert [one.body for one in rest] == ([b"GET /next "] if then and not is_last else []), cut


@pytest.mark.parametrize("then", [b"", NEXT], ids=["alone", "pipelined"])
@pytest.mark.parametrize(("framing", "offer"), list(itertools.product(FRAMINGS, OFFERS)))
@pytest.mark.parametrize(("line", "status"), [(b"CONNECT x:1", 405), (b"BREW /first", 400)], ids=["CONNECT", "unknown"])
async def test_a_request_that_is_not_served_gets_the_last_response(
    line: bytes, status: int, framing: str, offer: str, then: bytes
) -> None:
    """HTTP-26: CONNECT is 405, an unknown method is 400, and the bytes after either are not parsed."""
    sent = line + b" HTTP/1.1\r\nHost: x\r\n" + OFFERS[offer] + b"".join(FRAMINGS[framing]) + then
    for cut, connection in enumerate(await cut_everywhere(sent)):
        (only,) = responses(connection.transport.written, b"GET")
        assert only.status == status, cut
        assert only.fields[b"connection"] == b"close"
        assert only.fields.get(b"allow") == (METHODS.encode() if status == 405 else None)
        assert connection.transport.closed, cut


@pytest.mark.parametrize(
    "last", [b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n"], ids=["CONNECT", "unknown"]
)
async def test_the_last_response_follows_the_responses_before_it(last: bytes) -> None:
    """HTTP-26, HTTP-22."""
    connection = connection_to_echo()
    connection.feed(NEXT + NEXT + last + NEXT)
    await turn()
    assert [one.status // 100 for one in responses(connection.transport.written, b"GET")] == [2, 2, 4]
    assert connection.transport.closed


@pytest.mark.parametrize("turns", range(TURNS))
async def test_bytes_that_arrive_just_after_a_response_are_read_in_order(turns: int) -> None:
    """HTTP-26: the connection read them before bytes that it held, and answered 400 or nothing."""
    connection = connection_to_echo()
    connection.feed(NEXT + NEXT[:7])
    for _ in range(turns):
        await asyncio.sleep(0)
    connection.feed(NEXT[7:] + NEXT)
    for _ in range(3):
        await turn()
    assert [one.body for one in responses(connection.transport.written, b"GET")] == [b"GET /next "] * 3


async def test_every_pipelined_request_may_offer_an_upgrade() -> None:
    """HTTP-26: also in one segment."""
    fields, body = FRAMINGS["chunked"]
    one = b"POST /first HTTP/1.1\r\n" + OFFERS["upgrade"] + fields + body
    connection = connection_to_echo()
    connection.feed((one + NEXT) * 20)
    for _ in range(20):
        await turn()
    answered = [one.body for one in responses(connection.transport.written, b"POST")]
    assert answered == [b"POST /first " + BODY, b"GET /next "] * 20


@pytest.mark.parametrize(
    "fields",
    [b"Connection: close\r\n", b"Connection: close\r\nUpgrade: h2c\r\nConnection: upgrade\r\n"],
    ids=["close", "close and upgrade"],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_nothing_is_served_after_the_last_request(fields: bytes, version: bytes) -> None:
    """HTTP-26: a request that ends its connection is the last one, and its body is complete."""
    connection = connection_to_echo()
    head = b"POST /first HTTP/%b\r\n%bContent-Length: %d\r\n\r\n" % (version, fields, len(BODY))
    connection.feed(head + BODY + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"POST")
    assert only.body == b"POST /first " + BODY
    assert only.fields[b"connection"] == b"close"
    assert connection.transport.closed


async def test_http_1_0_is_closed_whatever_it_offers() -> None:
    """HTTP-26: with HTTP/1.0, `Upgrade`, `keep-alive` and `Expect` change nothing, and no 100 is sent."""
    connection = connection_to_echo()
    fields = b"Connection: keep-alive, upgrade\r\nUpgrade: h2c\r\nExpect: 100-continue\r\n"
    connection.feed(b"POST /first HTTP/1.0\r\n%bContent-Length: %d\r\n\r\n" % (fields, len(BODY)) + BODY + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"POST")
    assert only.body == b"POST /first " + BODY
    assert CONTINUE not in connection.transport.written
    assert connection.transport.closed


@pytest.mark.parametrize("offer", [b"", OFFERS["upgrade"]], ids=["plain", "upgrade"])
@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Content-Length: 3\r\nContent-Length: 4\r\n",
        b"Content-Length: 3\r\nContent-Length: 3\r\n",
        b"Content-Length: 3, 3\r\n",
        b"Content-Length: +3\r\n",
        b"Content-Length: 0x3\r\n",
        b"Content-Length: 3 3\r\n",
        b"Content-Length: \r\n",
        b"Content-Length : 3\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length: 000000000000000000003\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: chunked;a=b\r\n",
        b"Transfer-Encoding: ,chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer-Encoding: \r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"X: a\r\n Content-Length: 3\r\n",
        b"X: a\r\n\tb\r\n",
        b" X: a\r\n",
        b"X: a\nContent-Length: 3\r\n",
        b"X: a\rContent-Length: 3\r\n",
        b"X: a\x00b\r\n",
        b"X\x00: a\r\n",
        b"X y: a\r\n",
        b": a\r\n",
        b"X\r\n",
    ],
)
async def test_ambiguous_framing_is_refused(fields: bytes, offer: bytes) -> None:
    """HTTP-26: 400 and the end of the connection; neither this request nor the next is carried out."""
    connection = connection_to_echo()
    connection.feed(b"DELETE /first HTTP/1.1\r\nHost: x\r\n" + offer + fields + b"\r\n0\r\n\r\n" + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"DELETE")
    assert (only.status, only.fields[b"connection"]) == (400, b"close")
    assert connection.transport.closed


@pytest.mark.parametrize("line", [b"GET /first HTTP/0.9", b"GET /first HTTP/2.0", b"GET /first"])
async def test_other_versions_are_refused(line: bytes) -> None:
    """HTTP-22: the parser accepts them, but their rules for bodies and connections differ."""
    connection = connection_to_echo()
    connection.feed(line + b"\r\nConnection: keep-alive\r\n\r\n" + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"GET")
    assert (only.status, connection.transport.closed) == (400, True)


async def test_chunks_in_http_1_0_are_refused() -> None:
    """HTTP-26: a program that predates chunks may read their bytes as the next request."""
    connection = connection_to_echo()
    connection.feed(b"POST /first HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"POST")
    assert (only.status, connection.transport.closed) == (400, True)


@pytest.mark.parametrize(
    "chunks",
    [b"5 \r\nhello\r\n", b"-5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"5\nhello\r\n", b"5\r\nhelloXX", b"5;a\nhello\r\n"],
)
@pytest.mark.parametrize("offer", [b"", OFFERS["upgrade"]], ids=["plain", "upgrade"])
async def test_broken_chunks_are_refused(chunks: bytes, offer: bytes) -> None:
    """HTTP-26: one response, and the connection ends."""
    connection = connection_to_echo()
    head = b"POST /first HTTP/1.1\r\n" + offer + b"Transfer-Encoding: chunked\r\n\r\n"
    connection.feed(head + chunks + b"0\r\n\r\n" + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"POST")
    assert (only.status, connection.transport.closed) == (400, True)


@pytest.mark.parametrize(
    "trailer",
    [
        b"Connection: close\r\n",
        b"X: y\r\nProxy-Connection: close\r\nX: y\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    ],
    ids=["close", "proxy close", "upgrade"],
)
@pytest.mark.parametrize("offer", [b"", OFFERS["upgrade"]], ids=["plain", "upgrade"])
async def test_a_trailer_field_does_not_end_the_connection(offer: bytes, trailer: bytes) -> None:
    """HTTP-26, case 57: trailer fields are ignored, so the next request gets its response."""
    head = b"POST /first HTTP/1.1\r\n" + offer + b"Transfer-Encoding: chunked\r\n\r\n"
    for cut, connection in enumerate(await cut_everywhere(head + b"2\r\nhi\r\n0\r\n" + trailer + b"\r\n" + NEXT)):
        answered = [one.body for one in responses(connection.transport.written, b"POST")]
        assert answered == [b"POST /first hi", b"GET /next "], cut
        assert not connection.transport.closed


@pytest.mark.parametrize(
    "endless",
    [b"0\r\nX: ", b"0\r\nX", b"0\r\nX: y\r\n", b"0;", b"5;x="],
    ids=["value", "name", "blanks", "size", "extension"],
)
@pytest.mark.parametrize("offer", [b"", OFFERS["upgrade"]], ids=["plain", "upgrade"])
async def test_what_surrounds_chunks_is_as_long_as_a_head_at_most(offer: bytes, endless: bytes) -> None:
    """HTTP-22: a trailer field or a chunk's extension that does not end is 431, and the connection ends."""
    connection = connection_to_echo()
    connection.feed(b"POST /first HTTP/1.1\r\n" + offer + b"Transfer-Encoding: chunked\r\n\r\n" + endless)
    for _ in range(2 + HEAD_BYTES_MAX // 1_000):
        connection.feed(b"x" * 1_000)
    await turn()
    (only,) = responses(connection.transport.written, b"POST")
    assert (only.status, connection.transport.closed) == (431, True)


@pytest.mark.parametrize("piece", [1, 100, 5_000])
async def test_a_head_may_come_in_pieces(piece: int) -> None:
    """HTTP-22: what counts is the length of the head, however it is sent."""
    connection = connection_to_echo()
    sent = b"GET /first HTTP/1.1\r\n" + b"X: %b\r\n" % (b"y" * 300) * 98
    sent += b"X: " + b"y" * (HEAD_BYTES_MAX - len(sent) - 7) + b"\r\n\r\n"
    assert len(sent) == HEAD_BYTES_MAX
    for start in range(0, len(sent), piece):
        connection.feed(sent[start : start + piece])
    await turn()
    assert [one.status for one in responses(connection.transport.written, b"GET")] == [200]


@pytest.mark.parametrize("offer", [b"", OFFERS["upgrade"]], ids=["plain", "upgrade"])
async def test_a_body_that_breaks_after_its_response_gets_no_second_one(offer: bytes) -> None:
    """HTTP-26: a second response would belong to the client's next request."""
    connection = connection_to_echo()
    connection.feed(b"GET /first HTTP/1.1\r\n" + offer + b"Transfer-Encoding: chunked\r\n\r\n")
    await turn()
    connection.feed(b"NOCHUNK\r\n" + NEXT)
    await turn()
    (only,) = responses(connection.transport.written, b"GET")
    assert (only.status, connection.transport.closed) == (200, True)
