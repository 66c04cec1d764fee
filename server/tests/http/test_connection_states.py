"""The states of a connection, row by row of the table in `http1.py` (HTTP-21, HTTP-22, HTTP-24, HTTP-26)."""

import asyncio
from typing import Any

import pytest

from volcano_locks_server.http.auth import Principal
from volcano_locks_server.http.codec import BODY_BYTES_MAX, Receive, Scope, Send
from volcano_locks_server.http.server import connection_limits, http1
from volcano_locks_server.http.server.connection_context import ConnectionContext
from volcano_locks_server.http.server.connection_limits import ConnectionLimits
from volcano_locks_server.http.server.http1 import State
from volcano_locks_server.ports.registry import Credential, Project, ServiceKey

from .memory_connection import CONTINUE, MemoryConnection, responses

GET = b"GET /a HTTP/1.1\r\n\r\n"
LAST = b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n"
HEAD = b"POST /a HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
TINY_CHUNK = b"1\r\na\r\n"
PRINCIPAL = Principal(
    Credential(ServiceKey("k", "p", "key", "sk", (), 0), Project("p", "project", 600, 0), None), b"", 0
)
EARLY = b"GET /a HTTP/1.1\r\nContent-Length: 4\r\n\r\n"  # its response does not wait for the body


class App:
    """Reads the body of a POST, then responds once `may_respond`. Notes the messages that it received."""

    def __init__(self) -> None:
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.messages: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        more = scope["method"] == "POST"
        while more:
            message = await receive()
            self.messages.append(message["type"])
            more = message.get("more_body", False)
        await self.may_respond.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
async def connection(app: App) -> MemoryConnection:
    return MemoryConnection(ConnectionContext(app, None, ConnectionLimits(limit=10)))


async def turn() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


def statuses(connection: MemoryConnection) -> list[int]:
    return [one.status for one in responses(connection.transport.written, b"GET")]


ROWS: dict[str, tuple[list[bytes], State, list[int]]] = {
    "IDLE: nothing": ([], State.IDLE, []),
    "IDLE: line ends before a request": ([b"\r\n\r\n"], State.IDLE, []),
    "IDLE: the first byte of a request": ([b"G"], State.HEAD, []),
    "HEAD: its end, no body": ([GET], State.IDLE, [200]),
    "HEAD: its end, a body to come": ([HEAD], State.BODY, []),
    "HEAD: its end, chunks to come": ([CHUNKED], State.BODY, []),
    "HEAD: of CONNECT": ([b"CONNECT x:1 HTTP/1.1\r\n\r\n"], State.CLOSING, [405]),
    "HEAD: not HTTP": ([b"NONSENSE\r\n\r\n"], State.CLOSING, [400]),
    "HEAD: too many fields": ([b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 102], State.CLOSING, [431]),
    "HEAD: too many bytes": ([b"GET / HTTP/1.1\r\nx: " + b"y" * 32_768], State.CLOSING, [431]),
    "BODY: its last byte": ([HEAD, b"12", b"34"], State.IDLE, [200]),
    "BODY: its last byte after the response": ([EARLY, b"12", b"34"], State.IDLE, [200]),
    "BODY: some bytes after the response": ([EARLY, b"12"], State.BODY, [200]),
    "BODY: broken chunks": ([CHUNKED, b"zz\r\n"], State.CLOSING, [400]),
    "BODY: too many bytes of chunks": ([CHUNKED, *[b"1;" + b"x" * 4_000 + b"\r\na\r\n"] * 9], State.CLOSING, [413]),
    "BODY: chunks to come after the response": ([CHUNKED.replace(b"POST", b"GET")], State.CLOSING, [200]),
    "RESPONSE: complete, the next request": ([GET + GET, GET], State.IDLE, [200, 200, 200]),
    "RESPONSE: complete, it was the last": ([LAST], State.CLOSING, [200]),
    "CLOSING: bytes": ([b"NONSENSE\r\n\r\n", GET], State.CLOSING, [400]),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "state", "expected"), ROWS.values(), ids=ROWS)
async def test_what_each_input_leads_to(
    connection: MemoryConnection, inputs: list[bytes], state: State, expected: list[int]
) -> None:
    for data in inputs:
        connection.feed(data)
        await turn()
    assert (connection.protocol.state, statuses(connection)) == (state, expected)
    assert connection.transport.closed == (state is State.CLOSING)


async def test_bytes_are_held_while_a_response_is_due(connection: MemoryConnection, app: App) -> None:
    """HTTP-24, case 59: they are not parsed; past the limit the connection stops reading, and goes on afterwards."""
    app.may_respond.clear()
    connection.feed(GET)
    await turn()
    assert connection.protocol.state is State.RESPONSE
    count = http1.HELD_BYTES_MAX // len(GET)
    connection.feed(GET * count)
    assert not connection.transport.is_paused
    connection.feed(GET)
    assert connection.transport.is_paused
    assert statuses(connection) == []
    app.may_respond.set()
    for _ in range(count + 2):
        await turn()
    assert statuses(connection) == [200] * (count + 2)
    assert not connection.transport.is_paused


async def test_chunks_are_not_read_ahead(connection: MemoryConnection, app: App) -> None:
    """HTTP-21, HTTP-27: parsing tiny ones takes much time, and needs no credential."""
    app.may_respond.clear()
    connection.feed(b"GET /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + TINY_CHUNK * 2_000)
    await turn()
    assert connection.protocol._chunk_bytes < 2 * http1.CHUNK_BYTES_AHEAD_MAX
    connection.feed(TINY_CHUNK * 2_000)
    assert connection.transport.is_paused
    assert connection.protocol._chunk_bytes < 2 * http1.CHUNK_BYTES_AHEAD_MAX
    app.may_respond.set()
    await turn()
    (response,) = responses(connection.transport.written, b"GET")
    assert response.fields[b"connection"] == b"close"
    assert connection.transport.closed


@pytest.mark.parametrize(
    "chunks",
    [TINY_CHUNK * 4_000, b"4000\r\n" + b"x" * 16_384 + b"\r\n", b"1;" + b"x" * 5_000 + b"\r\na\r\n"],
    ids=["tiny", "the longest body", "a long extension"],
)
async def test_chunks_are_read_as_the_application_takes_them(connection: MemoryConnection, chunks: bytes) -> None:
    """HTTP-12, HTTP-21: in any pieces; the connection then serves the next request."""
    connection.feed(CHUNKED + chunks)
    for _ in range(4):
        await turn()
    connection.feed(b"0\r\n\r\n" + GET)
    for _ in range(8):
        await turn()
    assert statuses(connection) == [200, 200]
    assert not connection.transport.is_paused


@pytest.mark.parametrize("inputs", [[HEAD], [HEAD, b"12"], [CHUNKED]], ids=["head", "half a body", "chunks"])
async def test_a_disconnect_reaches_the_application(
    connection: MemoryConnection, app: App, inputs: list[bytes]
) -> None:
    for data in inputs:
        connection.feed(data)
    await turn()
    connection.transport.close()
    connection.protocol.connection_lost(None)
    await turn()
    assert app.messages[-1] == "http.disconnect"
    assert connection.transport.written == b""
    assert not connection.protocol._context.limits.open


async def test_a_request_that_ended_before_it_began_asks_for_no_body(connection: MemoryConnection) -> None:
    """HTTP-26: 100 Continue after the last response would be a write after the end of writing."""
    connection.transport.can_end = True
    connection.feed(b"POST /a HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    await turn()
    assert CONTINUE not in connection.transport.written
    assert statuses(connection) == [400]


@pytest.mark.parametrize("length", [http1.DISCARDED_BYTES_MAX, http1.DISCARDED_BYTES_MAX + 1])
async def test_a_response_says_whether_the_rest_of_its_body_is_read(connection: MemoryConnection, length: int) -> None:
    """HTTP-26: without `Connection: close`, a proxy would send the next request on a connection that ends."""
    connection.transport.can_end = True
    connection.feed(b"GET /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % length)
    await turn()
    stays_open = length <= http1.DISCARDED_BYTES_MAX
    (response,) = responses(connection.transport.written, b"GET")
    assert response.fields.get(b"connection") == (None if stays_open else b"close")
    piece = b"x" * 16_384
    for _ in range(http1.DISCARDED_BYTES_MAX // len(piece)):
        connection.feed(piece)
    assert not connection.transport.is_paused
    connection.feed(GET if stays_open else piece)
    await turn()
    assert statuses(connection) == ([200, 200] if stays_open else [200])
    assert connection.transport.is_paused == (not stays_open)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 5_000,
        b"BREW / HTTP/1.1\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 102,
        LAST,
    ],
    ids=["a long address", "an unknown method", "CONNECT", "many fields", "the last request"],
)
async def test_little_is_read_after_the_last_response(connection: MemoryConnection, head: bytes) -> None:
    """HTTP-24: the rest of a legal request is read, so that the response is not lost; then reading stops."""
    connection.transport.can_end = True
    connection.feed(head)
    await turn()
    assert connection.protocol.state is State.CLOSING
    connection.feed(b"x" * (http1.HEAD_BYTES_MAX + BODY_BYTES_MAX))
    assert not connection.transport.is_paused
    connection.feed(b"x" * http1.LINGER_BYTES_MAX)
    assert connection.transport.is_paused
    assert not connection.transport.closed
    connection.protocol.close_if_overdue(asyncio.get_running_loop().time() + http1.LINGER_SECONDS_MAX + 1)
    assert connection.transport.closed


@pytest.mark.parametrize(
    ("inputs", "seconds_max"),
    [
        ([], http1.KEEP_ALIVE_SECONDS),
        ([GET], http1.KEEP_ALIVE_SECONDS),
        ([b"G"], http1.HEAD_SECONDS_MAX),
        ([HEAD], http1.BODY_SECONDS_MAX),
        ([EARLY, b"1"], http1.BODY_SECONDS_MAX),
    ],
    ids=["new", "idle", "head", "body", "body after the response"],
)
async def test_each_state_has_its_time_limit(
    connection: MemoryConnection, inputs: list[bytes], seconds_max: float
) -> None:
    """HTTP-24, HTTP-25."""
    now = asyncio.get_running_loop().time()
    for data in inputs:
        connection.feed(data)
        await turn()
    connection.protocol.close_if_overdue(now + seconds_max - 1)
    assert not connection.transport.closed
    connection.protocol.close_if_overdue(now + seconds_max + 1)
    assert connection.transport.closed


async def test_a_response_that_is_due_has_no_time_limit(connection: MemoryConnection, app: App) -> None:
    """WAIT-1: waits last up to a minute, and streams for days."""
    app.may_respond.clear()
    connection.feed(GET)
    await turn()
    connection.protocol.close_if_overdue(asyncio.get_running_loop().time() + 1e6)
    assert not connection.transport.closed
    app.may_respond.set()
    await turn()


async def test_a_client_that_does_not_read_is_closed(connection: MemoryConnection, app: App) -> None:
    """HTTP-24: within WRITE_SECONDS_MAX, in every state; and the application waits for it meanwhile."""
    connection.protocol.pause_writing()
    connection.feed(GET)
    await turn()
    assert connection.transport.written == b""
    now = asyncio.get_running_loop().time()
    connection.protocol.close_if_overdue(now + http1.WRITE_SECONDS_MAX - 1)
    assert not connection.transport.closed
    connection.protocol.close_if_overdue(now + http1.WRITE_SECONDS_MAX + 1)
    assert connection.transport.closed
    connection.protocol.connection_lost(None)
    await turn()


async def test_few_connections_may_leave_responses_unread(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-24: past UNREAD_MAX the longest unread one is closed, those without an accepted service key first."""
    monkeypatch.setattr(connection_limits, "UNREAD_MAX", 3)
    context = ConnectionContext(app, None, ConnectionLimits(limit=10))
    of_key, first, reads, second, last = connections = [MemoryConnection(context) for _ in range(5)]
    of_key.protocol.credential = (b"Bearer key", PRINCIPAL)
    for connection in (of_key, first, reads):
        connection.protocol.pause_writing()
    reads.protocol.resume_writing()
    second.protocol.pause_writing()
    assert not any(connection.transport.closed for connection in connections)
    last.protocol.pause_writing()
    assert [connection for connection in connections if connection.transport.closed] == [first]
    reads.protocol.pause_writing()
    assert [connection for connection in connections if connection.transport.closed] == [first, second]


async def test_an_application_that_fails_ends_the_connection(app: App) -> None:
    """HTTP-26: without a response the client must not wait for one."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a bug")

    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: reported.append(context))
    connection = MemoryConnection(ConnectionContext(fail, None, ConnectionLimits(limit=10)))
    connection.feed(GET)
    await turn()
    assert connection.transport.closed


@pytest.mark.parametrize("inputs", [[], [GET], [b"G"], [HEAD]], ids=["new", "idle", "head", "body"])
async def test_shutdown_closes_what_has_no_response_due(connection: MemoryConnection, inputs: list[bytes]) -> None:
    """HTTP-23: a request in progress is completed first, and its response announces the end."""
    for data in inputs:
        connection.feed(data)
        await turn()
    connection.protocol.shutdown()
    is_busy = inputs == [HEAD]
    assert connection.transport.closed != is_busy
    if is_busy:
        connection.feed(b"1234")
        await turn()
        (response,) = responses(connection.transport.written, b"POST")
        assert response.fields[b"connection"] == b"close"
        assert connection.transport.closed
