"""What a request and a connection used is freed when it is over, without the garbage collector."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from testsupport.certificates import CertificateFiles, new_certificate

from volcano_locks_server.http.codec import Receive, Scope, Send
from volcano_locks_server.http.request_head import HTTP_1_1, RequestHead
from volcano_locks_server.http.server.asgi_request import AsgiRequest, asgi_scope
from volcano_locks_server.http.server.connection_context import ConnectionContext
from volcano_locks_server.http.server.http1 import Http1Connection
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import RunningServer, running_server_async


class _Connection:
    def is_closing(self) -> bool:
        return False

    def write(self, _data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def body_taken(self) -> None: ...
    def response_complete(self) -> None: ...
    def abort(self) -> None: ...


async def _app(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(autouse=True)
def collector_is_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_request_and_its_connection_are_freed_after_its_response() -> None:
    connection = _Connection()
    reference = weakref.ref(connection)
    head = RequestHead(b"GET", HTTP_1_1, {}, keep_alive=True)
    request = AsgiRequest(connection, asgi_scope(head, b"/locks/a", client=None, is_tls=False), head)
    await request.run(_app)
    del request, connection
    assert reference() is None


@pytest.fixture(params=["TLS", "plain"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> CertificateFiles | None:
    return new_certificate(tmp_path) if request.param == "TLS" else None


@pytest.fixture
async def running(tls: CertificateFiles | None) -> AsyncIterator[RunningServer]:
    settings = Settings(store="memory://", port=0)
    if tls is not None:
        settings = replace(settings, tls_certificate=tls.certificate, tls_key=tls.key)
    async with running_server_async(settings) as running:
        yield running


@pytest.mark.real_time
@pytest.mark.parametrize(
    "sent",
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 30_000, b""),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b'"ok"}'),
        (b"POST /locks/a/lease HTTP/1.1\r\nContent-Length: 16000\r\n\r\n{", b""),
        (b"POST /locks/a/lease HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b"401"),
        (b"NONSENSE\r\n\r\n", b"400"),
    ],
    ids=["nothing", "half a head", "a request", "half a body", "chunks", "not HTTP"],
)
@pytest.mark.parametrize("ends", ["abort", "close"])
async def test_a_connection_is_freed_when_it_is_lost(
    running: RunningServer,
    tls: CertificateFiles | None,
    monkeypatch: pytest.MonkeyPatch,
    sent: tuple[bytes, bytes],
    ends: str,
) -> None:
    """HTTP-24: clients without a credential could fill the memory with lost connections, 70 KB for each over TLS."""
    lost: list[weakref.ref[Http1Connection]] = []
    connection_made = Http1Connection.connection_made

    def noted(self: Http1Connection, transport: asyncio.BaseTransport) -> None:
        lost.append(weakref.ref(self))
        connection_made(self, transport)

    monkeypatch.setattr(Http1Connection, "connection_made", noted)
    context = None if tls is None else tls.trusting_context()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]), ssl=context)
    data, answer = sent
    writer.write(data)
    if answer:
        await asyncio.wait_for(reader.readuntil(answer), 30)
    else:
        await asyncio.sleep(0.05)
    getattr(writer.transport, ends)()
    async with asyncio.timeout(30):
        while not lost or lost[0]() is not None:
            await asyncio.sleep(0.01)


@pytest.mark.real_time
@pytest.mark.parametrize("tls", ["TLS"], indirect=True)
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\x01x", b"GET / HTTP/1.1\r\n\r\n"])
async def test_a_connection_is_freed_when_its_handshake_fails(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """HTTP-24."""
    made: list[weakref.ref[Http1Connection]] = []
    initialise = Http1Connection.__init__

    def noted(self: Http1Connection, context: ConnectionContext) -> None:
        made.append(weakref.ref(self))
        initialise(self, context)

    monkeypatch.setattr(Http1Connection, "__init__", noted)
    _reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
    writer.write(sent)
    await asyncio.sleep(0.05)
    writer.transport.abort()
    async with asyncio.timeout(30):
        while not made or made[0]() is not None:
            await asyncio.sleep(0.01)
