"""TLS connections: hostile and unfinished handshakes, versions, and plain HTTP on the port (HTTP-24, HTTP-31)."""

import asyncio
import contextlib
import io
import json
import socket
import ssl
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from testsupport.certificates import CertificateFiles, new_certificate
from testsupport.service_requests import perform

from volcano_locks_server.http.server import acceptor as acceptor_module
from volcano_locks_server.http.server import connection_limits, http1
from volcano_locks_server.rules.lease import Release
from volcano_locks_server.rules.values import LockKey, parse_owner_token
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import RunningServer, running_server_async

from .raw_connection import lock_request

SMALL_GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
FIRST_BYTE = b"\x16"


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return new_certificate(tmp_path)


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
async def running(files: CertificateFiles, log: io.StringIO) -> AsyncIterator[RunningServer]:
    settings = Settings(store="memory://", port=0, tls_certificate=files.certificate, tls_key=files.key)
    async with running_server_async(settings, log_stream=log) as running:
        yield running


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Streams]]


@pytest.fixture
async def connect(running: RunningServer) -> AsyncIterator[Connect]:
    """Opens connections, over TLS if a context is given, which are closed at the end of the test."""
    opened: list[asyncio.StreamWriter] = []

    async def connected(
        context: ssl.SSLContext | None = None, *, sent: bytes = b"", local_address: tuple[str, int] | None = None
    ) -> Streams:
        port = int(running.url.rsplit(":", 1)[1])
        streams = await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=local_address)
        opened.append(streams[1])
        streams[1].write(sent)
        return streams

    yield connected
    for writer in opened:
        writer.close()
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


async def counted(running: RunningServer, count: int) -> None:
    """Return when the server has so many connections."""
    async with asyncio.timeout(30):
        while running.server.listener.connections != count:
            await asyncio.sleep(0.001)


async def is_served(connect: Connect, context: ssl.SSLContext) -> bool:
    reader, _ = await connect(context, sent=SMALL_GET)
    return await asyncio.wait_for(reader.readline(), 30) == b"HTTP/1.1 200 OK\r\n"


async def is_closed(streams: Streams) -> bool:
    """Whether the server closes the connection without sending more."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(streams[0].read(1), 30) == b""
    return True


async def test_a_turn_starts_few_handshakes(
    running: RunningServer, connect: Connect, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: hundreds of clients that begin one at once would otherwise stop all others meanwhile."""
    acceptor = running.server.listener._acceptor
    assert acceptor is not None
    connect_socket, started, turn = acceptor._connect, [], 0

    def noted(*given: Any, **more: Any) -> asyncio.Task[Any]:
        started.append(turn)
        return connect_socket(*given, **more)

    monkeypatch.setattr(acceptor, "_connect", noted)
    silent = [await connect() for _ in range(40)]
    await counted(running, 40)
    for _, writer in silent:
        writer.write(FIRST_BYTE)
    async with asyncio.timeout(30):
        while len(started) < 40:
            turn += 1
            await asyncio.sleep(0)
    assert max(Counter(started).values()) <= acceptor_module.HANDSHAKES_PER_TURN
    assert await is_served(connect, files.trusting_context())


async def test_handshakes_start_in_turns_of_client_addresses(
    running: RunningServer, connect: Connect, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: hundreds that wait from one address hold up no other."""
    acceptor = running.server.listener._acceptor
    assert acceptor is not None
    connect_socket, started = acceptor._connect, []

    def noted(accepted: socket.socket, *given: Any, **more: Any) -> asyncio.Task[Any]:
        started.append(accepted.getpeername()[0])
        return connect_socket(accepted, *given, **more)

    monkeypatch.setattr(acceptor, "_connect", noted)
    monkeypatch.setattr(acceptor_module, "HANDSHAKES_PER_TURN", 0)
    for _ in range(40):
        await connect(sent=FIRST_BYTE)
    await connect(sent=FIRST_BYTE, local_address=("127.0.0.2", 0))
    async with asyncio.timeout(30):
        while sum(map(len, acceptor._handshakes._by_network.values())) < 41:
            await asyncio.sleep(0.001)
    monkeypatch.setattr(acceptor_module, "HANDSHAKES_PER_TURN", 8)
    assert await is_served(connect, files.trusting_context())
    assert started.index("127.0.0.2") == 1


async def test_a_handshake_that_waits_can_be_aborted(
    running: RunningServer, connect: Connect, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: to make room, before it has started."""
    monkeypatch.setattr(acceptor_module, "HANDSHAKES_PER_TURN", 0)
    waiting = await connect(sent=FIRST_BYTE)
    await counted(running, 1)
    acceptor = running.server.listener._acceptor
    assert acceptor is not None
    async with asyncio.timeout(30):
        while not acceptor._handshakes:
            await asyncio.sleep(0.001)
    running.server.listener.limits.abort_handshakes()
    assert await is_closed(waiting)
    monkeypatch.undo()
    assert await is_served(connect, files.trusting_context())


@pytest.mark.real_time
async def test_a_response_before_the_end_of_the_chunks_arrives(connect: Connect, files: CertificateFiles) -> None:
    """HTTP-21, HTTP-26: also if the client goes on sending, which a reset of the connection would answer."""
    head = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(5):
        reader, writer = await connect(files.trusting_context(), sent=head + b"1\r\na\r\n" * 3_000)
        for _ in range(5):
            writer.write(b"1\r\na\r\n" * 500)
            await asyncio.sleep(0.01)
        response = await asyncio.wait_for(reader.readuntil(b"}"), 30)
        assert response.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nconnection: close\r\n" in response


def logged(running: RunningServer, log: io.StringIO, event: str) -> list[dict[str, str]]:
    """The lines of that event; later ones are not written."""
    running.server.log.writer.close()
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == event]


@pytest.mark.parametrize("sent", [b"", FIRST_BYTE], ids=["silent", "broken off"])
async def test_slow_handshakes_make_room_before_idle_connections(
    running: RunningServer,
    connect: Connect,
    files: CertificateFiles,
    monkeypatch: pytest.MonkeyPatch,
    sent: bytes,
) -> None:
    """HTTP-24, case 59: unfinished handshakes count, and are closed first to make room."""
    limits = running.server.listener.limits
    monkeypatch.setattr(limits, "limit", 4)
    monkeypatch.setattr(connection_limits, "HANDSHAKE_SECONDS_USUAL", -1.0)
    trusting = files.trusting_context()
    idle = await connect(trusting)
    slow = [await connect(sent=sent) for _ in range(3)]
    await counted(running, 4)
    assert len(limits.open) == 1
    assert await is_served(connect, trusting)
    assert await is_closed(slow[0])
    idle[1].write(SMALL_GET)
    assert await asyncio.wait_for(idle[0].readline(), 30) == b"HTTP/1.1 200 OK\r\n"


async def test_idle_connections_make_room_before_handshakes_of_usual_length(
    running: RunningServer, connect: Connect, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: clients that connect at the same time do not close each other's handshakes."""
    limits = running.server.listener.limits
    monkeypatch.setattr(limits, "limit", 2)
    monkeypatch.setattr(connection_limits, "HANDSHAKE_SECONDS_USUAL", 60.0)
    trusting = files.trusting_context()
    idle = await connect(trusting)
    beginning = await connect(sent=FIRST_BYTE)
    await counted(running, 2)
    assert await is_served(connect, trusting)
    assert await is_closed(idle)
    assert not beginning[0].at_eof()


@pytest.mark.real_time
async def test_over_the_limit_a_connection_is_closed_without_a_response(
    running: RunningServer, connect: Connect, files: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-24: requests in flight are never displaced; a refusal costs no handshake."""
    limits = running.server.listener.limits
    monkeypatch.setattr(limits, "limit", 1)
    holder, waiter = str(uuid.uuid4()), str(uuid.uuid4())
    waits = lock_request(running, "POST", "/locks/a/lease", waiter, '{"ttl_seconds":30,"wait_seconds":60}')
    taken = lock_request(running, "POST", "/locks/a/lease", holder, '{"ttl_seconds":30}')
    reader, writer = await connect(files.trusting_context(), sent=taken)
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    writer.write(waits)
    async with asyncio.timeout(30):
        while any(one.is_idle() for one in limits.open):
            await asyncio.sleep(0.001)
    assert await is_closed(await connect())
    release = Release(parse_owner_token(holder.encode()))
    await perform(running.server.service, running.project_id, 0, LockKey("a"), release)
    assert b"HTTP/1.1 201 Created\r\n" in await asyncio.wait_for(reader.readuntil(b" Created\r\n"), 30)


@pytest.mark.parametrize("sent", [b"", FIRST_BYTE], ids=["silent", "broken off"])
async def test_an_unfinished_handshake_is_closed(running: RunningServer, connect: Connect, sent: bytes) -> None:
    """HTTP-24, case 59: after ten seconds, also if it never began."""
    streams = await connect(sent=sent)
    await counted(running, 1)
    limits = running.server.listener.limits
    now = asyncio.get_running_loop().time()
    limits.close_overdue(now + 9)
    assert limits.count == 1
    limits.close_overdue(now + 11)
    assert limits.count == 0
    assert await is_closed(streams)


async def test_a_stop_closes_unfinished_handshakes(running: RunningServer, connect: Connect) -> None:
    """HTTP-23, HTTP-24: no handshake outlives the server."""
    unfinished = [await connect(sent=sent) for sent in (b"", FIRST_BYTE)]
    await counted(running, 2)
    await running.server.close()
    for streams in unfinished:
        assert await is_closed(streams)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert "connect" not in names


async def test_plain_http_gets_an_explanation(running: RunningServer, connect: Connect, log: io.StringIO) -> None:
    """HTTP-31: the response names the scheme to use; the log names the client."""
    reader, _ = await connect(sent=SMALL_GET)
    response = await asyncio.wait_for(reader.read(), 30)
    assert response.startswith(b"HTTP/1.1 400 ")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["code"] == "invalid_request"
    assert b"https://" in response
    (refused,) = logged(running, log, "plain_http_refused")
    assert refused["address"] == "127.0.0.1"
    assert running.server.listener.connections == 0


async def test_tls_1_1_is_refused(
    running: RunningServer, connect: Connect, files: CertificateFiles, log: io.StringIO
) -> None:
    """HTTP-31: clients have to speak TLS 1.2 or 1.3; the log has the reason of a failed handshake."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = files.trusting_context()
        context.minimum_version = context.maximum_version = version
        assert await is_served(connect, context)
    old = files.trusting_context()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect(old)
    await counted(running, 2)
    (failed,) = logged(running, log, "tls_handshake_failed")
    assert (failed["address"], failed["reason"]) == ("127.0.0.1", "UNSUPPORTED_PROTOCOL")


async def test_a_connection_that_sends_nothing_and_closes_is_forgotten(running: RunningServer) -> None:
    """HTTP-24: as health checks of load balancers do; it leaves no line in the log."""
    with socket.create_connection(("127.0.0.1", int(running.url.rsplit(":", 1)[1]))):
        await counted(running, 1)
    await counted(running, 0)


async def test_a_closed_connection_is_dropped_if_its_client_goes_on(
    running: RunningServer, files: CertificateFiles
) -> None:
    """HTTP-24: without `close_notify` from the client, the server would read and decrypt for 30 seconds more."""
    port = int(running.url.rsplit(":", 1)[1])

    def refused() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        client = files.trusting_context().wrap_socket(plain, server_hostname="127.0.0.1")
        client.sendall(b"BREW / HTTP/1.1\r\n\r\n")
        assert client.recv(65_536).startswith(b"HTTP/1.1 400 ")
        return client

    client = await asyncio.to_thread(refused)
    with client:
        assert running.server.listener.connections == 1
        running.server.listener.limits.close_overdue(asyncio.get_running_loop().time() + http1.LINGER_SECONDS_MAX + 1)
        async with asyncio.timeout(5):
            await counted(running, 0)
