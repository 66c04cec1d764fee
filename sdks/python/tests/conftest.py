"""Fixtures: a clock, a fake server, a faulty network, and clients over it."""

import contextlib
import gc
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from volcano_locks import AsyncClient, Client
from volcano_locks.clock import SystemClock
from volcano_locks.http.address import OutgoingRequest
from volcano_locks.sync.call import Call
from volcano_locks.testing import FakeLocks, FaultyTransport, ManualClock

from .client_targets import AsyncTarget, SyncTarget, Target
from .operation_driver import OperationDriver


@pytest.fixture
def driver() -> OperationDriver:
    return OperationDriver()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_seconds=1000.0)


@pytest.fixture
def server(clock: ManualClock) -> FakeLocks:
    return FakeLocks(clock)


@pytest.fixture
def network(server: FakeLocks, clock: ManualClock) -> FaultyTransport:
    return FaultyTransport(server, clock)


@pytest.fixture
def client(server: FakeLocks, network: FaultyTransport) -> Iterator[Client]:
    with server.client(transport=network) as client:
        yield client


@pytest.fixture
async def async_client(server: FakeLocks, network: FaultyTransport) -> AsyncIterator[AsyncClient]:
    async with server.async_client(transport=network) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
async def target(request: pytest.FixtureRequest, server: FakeLocks, network: FaultyTransport) -> AsyncIterator[Target]:
    """The threaded and the asyncio client over the faulty network."""
    if request.param == "sync":
        target: Target = SyncTarget(server.client(transport=network))
    else:
        target = AsyncTarget(server.async_client(transport=network))
    yield target
    await target.close()


@pytest.fixture
async def rival(server: FakeLocks) -> AsyncIterator[AsyncClient]:
    """Another holder, on a network without faults."""
    async with server.async_client() as client:
        yield client


@contextlib.contextmanager
def serve_http(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve HTTP with `handler` in this process; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def handler_of(server: FakeLocks) -> type[BaseHTTPRequestHandler]:
    """Serves the fake's locks over real sockets."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
            clock = SystemClock()
            outgoing = OutgoingRequest(self.command, self.path, headers, body)
            response = server.connections(clock).exchange(outgoing, clock.now() + 20, Call(clock))
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            if response.status != 204:
                self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)

        do_GET = do_POST = do_PATCH = do_DELETE = serve  # noqa: N815 - the standard library's names

        def log_message(self, *_: object) -> None: ...

    return Handler


@pytest.fixture
def server_url(server: FakeLocks) -> Iterator[str]:
    """The URL of the fake's locks over real sockets."""
    with serve_http(handler_of(server)) as url:
        yield url


@pytest.fixture
def dropped_sockets() -> Iterator[None]:
    """Collect what the test drops without closing it, by an interrupt or a loop's end, here and not in a later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
