# ruff: noqa: PT012, SIM117 - a block is entered, used and left in one statement
"""Ctrl-C while a threaded client acquires, holds or releases (SDK-2, SDK-5, SDK-6)."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import httpx2
import pytest

from volcano_locks import Client
from volcano_locks.sync.background_loop import CLEAN_UP_SECONDS_MAX
from volcano_locks.testing import FakeLocks, ManualClock

from ..helpers import client_threads, eventually


class InterruptingTransport(httpx2.AsyncBaseTransport):
    """Sends the main thread a Ctrl-C when it has served a POST, and then responds at once or not at all."""

    def __init__(self, inner: FakeLocks, *, responds: bool) -> None:
        self.inner = inner
        self.responds = responds
        self.methods: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.methods.append(request.method)
        response = await self.inner.handle_async_request(request)
        if request.method == "POST":
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            if not self.responds:
                await asyncio.sleep(60)
        return response


@pytest.fixture
def late_interrupts() -> Iterator[None]:
    """Delay the interrupt a little, so that a pending response has arrived by then."""

    def handler(*_: object) -> None:
        time.sleep(0.1)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.real_time
@pytest.mark.usefixtures("late_interrupts")
@pytest.mark.parametrize("responds", [False, True])
def test_ctrl_c_during_an_acquire_releases_the_lock(server: FakeLocks, responds: bool) -> None:
    """SDK-2, case 13, case 17: whether the response had arrived or not."""
    transport = InterruptingTransport(server, responds=responds)
    with server.client(transport=transport) as client:
        with pytest.raises(KeyboardInterrupt):
            client.locks.acquire("k", ttl=30)
        assert transport.methods == ["POST", "DELETE"]
        assert not client.locks.get("k").held


@pytest.mark.real_time
@pytest.mark.usefixtures("late_interrupts")
@pytest.mark.parametrize("responds", [False, True])
def test_ctrl_c_on_entering_a_block_leaves_nothing_held(server: FakeLocks, responds: bool) -> None:
    """SDK-2, case 17."""
    transport = InterruptingTransport(server, responds=responds)
    with server.client(transport=transport) as client:
        with pytest.raises(KeyboardInterrupt), client.locks.with_lock("k", ttl=30):
            pytest.fail("entered")
        assert transport.methods == ["POST", "DELETE"]
        assert not client.locks.get("k").held


class InterruptingClock(ManualClock):
    """When armed, interrupts the main thread at its next look at the clock."""

    armed = False

    def now(self) -> float:
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            raise KeyboardInterrupt
        return super().now()


def test_ctrl_c_while_a_block_is_being_left_still_releases(server_url: str) -> None:
    """SDK-5, case 17: after the body, before anything was sent."""
    clock = InterruptingClock()
    with Client(server_url, "sk-x", clock=clock) as client:
        with pytest.raises(KeyboardInterrupt):
            with client.locks.with_lock("k", ttl=30):
                clock.armed = True
        assert not clock.armed
        assert not client.locks.get("k").held


@pytest.mark.real_time
def test_ctrl_c_before_the_release_starts_still_releases(server_url: str, clock: ManualClock) -> None:
    """SDK-5, case 17: the background thread is busy, so the release is still queued."""
    main = threading.main_thread().ident
    assert main is not None
    with Client(server_url, "sk-x", clock=clock) as client:
        background = client.locks._background

        def busy() -> None:
            time.sleep(0.1)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.1)

        with pytest.raises(KeyboardInterrupt):
            with client.locks.with_lock("k", ttl=30):
                assert background._loop is not None
                background._loop.call_soon_threadsafe(busy)
        assert not client.locks.get("k").held


def test_ctrl_c_before_the_body_begins_still_releases(
    server_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5, case 17, case 18: the lease exists, its guard does not yet."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Client(server_url, "sk-x", clock=clock) as client:
        monkeypatch.setattr("volcano_locks.sync.block.LockGuard", interrupted)
        with pytest.raises(KeyboardInterrupt), client.locks.with_lock("k", ttl=30):
            pytest.fail("entered")
        assert not client.locks.get("k").held


def test_ctrl_c_while_the_thread_starts_leaves_no_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6, case 17: closing is immediate, and no thread stays behind."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.locks.acquire("k", ttl=30)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < CLEAN_UP_SECONDS_MAX
    eventually(lambda: not client_threads())


def test_loops_are_not_created_in_the_main_thread(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6, case 17: interrupts go to the main thread, so no loop is created there."""
    created_in: list[threading.Thread] = []
    new_event_loop = asyncio.new_event_loop

    def recorded() -> asyncio.AbstractEventLoop:
        created_in.append(threading.current_thread())
        return new_event_loop()

    monkeypatch.setattr(asyncio, "new_event_loop", recorded)
    client.locks.acquire("k", ttl=30)
    assert created_in
    assert threading.main_thread() not in created_in
