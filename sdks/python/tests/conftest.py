"""Both faces of the client behind one set of awaited verbs, so that each promise is tested on both."""

import asyncio
import contextlib
import os
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar

import httpx2
import pytest

from volcano_locks import AsyncClient, Client, Leadership, LockView
from volcano_locks.holding.guard import LockGuard
from volcano_locks.testing import FakeLocks, FlakyTransport, ManualClock

from .stage import Stage

T = TypeVar("T")


class SyncFace:
    """A threaded client, called from worker threads."""

    name = "sync"

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self.client.locks, verb)

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call

    def hold(self, key: str, ttl: int = 30, **options: Any) -> "SyncHold":
        return SyncHold(self.client, key, ttl, **options)

    async def iterated(self, items: Iterator[T]) -> AsyncIterator[T]:
        while True:
            one = await asyncio.to_thread(next, items, None)
            if one is None:
                return
            yield one

    def watched(self, key: str) -> AsyncIterator[Leadership]:
        return self.iterated(self.client.locks.watch(key))

    def listed(self, *args: Any, **options: Any) -> AsyncIterator[LockView]:
        return self.iterated(self.client.locks.list(*args, **options))

    async def wait_lost(self, guard: Any, timeout: float | None = None) -> bool:
        lost: bool = await asyncio.to_thread(guard.wait_lost, timeout)
        return lost

    async def close(self) -> None:
        await asyncio.to_thread(self.client.close)


class SyncHold:
    """`with client.locks.with_lock(…)`, entered and left in worker threads."""

    def __init__(self, client: Client, key: str, ttl: int, **options: Any) -> None:
        self.block = client.locks.with_lock(key, ttl=ttl, **options)

    async def __aenter__(self) -> LockGuard:
        return await asyncio.to_thread(self.block.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.block.__exit__, kind, error, trace)


class AsyncFace:
    """An asyncio client."""

    name = "async"

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.client.locks, verb)

    def hold(self, key: str, ttl: int = 30, **options: Any) -> Any:
        return self.client.locks.with_lock(key, ttl=ttl, **options)

    def watched(self, key: str) -> AsyncIterator[Leadership]:
        return self.client.locks.watch(key)

    def listed(self, *args: Any, **options: Any) -> AsyncIterator[LockView]:
        return self.client.locks.list(*args, **options)

    async def wait_lost(self, guard: Any, timeout: float | None = None) -> bool:
        lost: bool = await guard.wait_lost(timeout)
        return lost

    async def close(self) -> None:
        await self.client.close()


Face = SyncFace | AsyncFace


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(start_seconds=1000.0)


@pytest.fixture
def server(clock: ManualClock) -> FakeLocks:
    return FakeLocks(clock)


@pytest.fixture
def net(server: FakeLocks, clock: ManualClock) -> FlakyTransport:
    return FlakyTransport(server, clock)


@pytest.fixture
def client(server: FakeLocks, net: FlakyTransport) -> Iterator[Client]:
    with server.client(transport=net) as client:
        yield client


@pytest.fixture
async def async_client(server: FakeLocks, net: FlakyTransport) -> AsyncIterator[AsyncClient]:
    async with server.async_client(transport=net) as client:
        yield client


@pytest.fixture(params=["sync", "async"])
async def face(request: pytest.FixtureRequest, server: FakeLocks, net: FlakyTransport) -> AsyncIterator[Face]:
    """The threaded and the asyncio client over the flaky network."""
    if request.param == "sync":
        face: Face = SyncFace(server.client(transport=net))
    else:
        face = AsyncFace(server.async_client(transport=net))
    yield face
    await face.close()


@pytest.fixture
async def rival(server: FakeLocks) -> AsyncIterator[AsyncClient]:
    """Another holder, on a network without faults."""
    async with server.async_client() as client:
        yield client


async def until(true: Callable[[], bool]) -> None:
    """Let the others run until that is so. (Their clock stands still.)"""
    give_up = time.monotonic() + 20
    while not true():
        assert time.monotonic() < give_up, "it never came to be"
        await asyncio.sleep(0.001)


@contextlib.contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a real HTTP server in this process."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def wire_url(server: FakeLocks) -> Iterator[str]:
    """The fake's locks behind real sockets."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = httpx2.Request(self.command, f"http://fake{self.path}", headers=dict(self.headers), content=body)
            answer = asyncio.run(server.handle_async_request(request))
            self.send_response(answer.status_code)
            if answer.status_code != 204:
                self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = do_PATCH = do_DELETE = serve  # noqa: N815 - the standard library's names

        def log_message(self, *_: object) -> None: ...

    with served(Door) as url:
        yield url


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            told = work()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told_by_child:
        told = told_by_child.read()
    os.waitpid(child, 0)
    return told
