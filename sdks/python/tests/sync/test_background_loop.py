# ruff: noqa: PT012, SIM117 - a block is entered, used and left in one statement
"""The background thread of a threaded client: start, idle end, closing, failures (SDK-6)."""

import asyncio
import gc
import threading
import time
from collections.abc import Coroutine
from typing import Any

import httpx2
import pytest

from volcano_locks import Client, LockOwnershipLostError, VolcanoError
from volcano_locks.holding.hold import Hold
from volcano_locks.sync.background_loop import BackgroundLoop
from volcano_locks.testing import DropBeforeSend, FakeLocks, FaultyTransport, Hang, ManualClock

from ..helpers import client_threads, eventually


def test_one_thread_renews_every_lock_of_a_client(client: Client, clock: ManualClock) -> None:
    """SDK-6: started by the first request, a daemon, ended by `close`."""
    assert not client_threads()
    blocks = [client.locks.with_lock(f"k{n}", ttl=30) for n in range(30)]
    guards = [block.__enter__() for block in blocks]
    assert [thread.daemon for thread in client_threads()] == [True]
    clock.advance(200)
    assert not any(guard.lost for guard in guards)
    for block in blocks:
        block.__exit__(None, None, None)
    client.close()
    assert not client_threads()
    with pytest.raises(VolcanoError, match="this client is closed"):
        client.locks.get("k0")


@pytest.mark.real_time
def test_an_idle_client_ends_its_thread_and_starts_another(server: FakeLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: an unused client keeps no thread; a held lock counts as use."""
    monkeypatch.setattr("volcano_locks.sync.background_loop.IDLE_SECONDS_MAX", 0.01)
    with server.client() as client:
        with client.locks.with_lock("k", ttl=30):
            eventually(lambda: len(client_threads()) == 1)
            time.sleep(0.05)
            assert len(client_threads()) == 1
        eventually(lambda: not client_threads())
        assert not client.locks.get("k").held
        eventually(lambda: not client_threads())


def test_a_client_may_be_shared_by_threads(client: Client) -> None:
    won: list[int] = []

    def compete() -> None:
        for _ in range(20):
            try:
                with client.locks.with_lock("k", ttl=30) as guard:
                    won.append(guard.fencing_token)
            except VolcanoError:
                continue

    workers = [threading.Thread(target=compete) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert won
    assert won == sorted(set(won)), "two holders, or a fencing token twice"
    assert len(client_threads()) == 1


def test_a_loss_wakes_a_thread_that_waits_for_it(client: Client, clock: ManualClock, network: FaultyTransport) -> None:
    """case 6: at the deadline, while the renewal still hangs."""
    results: list[bool] = []
    with pytest.raises(LockOwnershipLostError):
        with client.locks.with_lock("k", ttl=5) as guard:
            network.otherwise = Hang()
            waiter = threading.Thread(target=lambda: results.append(guard.wait_lost()))
            waiter.start()
            clock.jump(4.9)
            assert not results
            clock.jump(0.1)
            waiter.join(10)
            assert results == [True]
            network.otherwise = DropBeforeSend()


def test_closing_a_client_under_an_open_block_ends_its_renewal(
    server: FakeLocks, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The guard reports the missing release; no thread waits without end."""
    client = server.client()
    with client.locks.with_lock("k", ttl=30) as guard:
        client.close()
        clock.jump(29)
        assert guard.wait_lost() is False
    assert isinstance(guard.release_error, VolcanoError)
    assert "lock k was not released" in caplog.text


def test_closing_a_client_lets_a_running_release_finish(
    client: Client, server: FakeLocks, network: FaultyTransport
) -> None:
    """SDK-5: the lock need not wait for its expiry."""
    releasing = threading.Event()
    may_continue = threading.Event()
    serve = network.handle_async_request

    async def slowly(request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            releasing.set()
            await asyncio.to_thread(may_continue.wait, 10)
        return await serve(request)

    network.handle_async_request = slowly  # type: ignore[method-assign]
    block = client.locks.with_lock("k", ttl=30)
    guard = block.__enter__()
    leaver = threading.Thread(target=block.__exit__, args=(None, None, None))
    leaver.start()
    assert releasing.wait(10)
    closer = threading.Thread(target=client.close)
    closer.start()
    eventually(lambda: client.locks._background._loop is None)
    may_continue.set()
    leaver.join(60)
    closer.join(10)
    assert guard.release_error is None
    assert not client_threads()
    with server.client() as another:
        assert not another.locks.get("k").held


def test_closing_a_client_does_not_wait_for_a_hanging_release(
    client: Client, network: FaultyTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6: bounded; the guard reports the missing release."""
    monkeypatch.setattr("volcano_locks.sync.background_loop.SHIELDED_SECONDS_MAX", 0.05)
    block = client.locks.with_lock("k", ttl=30)
    guard = block.__enter__()
    network.otherwise = Hang()
    leaver = threading.Thread(target=block.__exit__, args=(None, None, None))
    leaver.start()
    eventually(lambda: len(network.seen) == 2)
    client.close()
    leaver.join(60)
    assert not leaver.is_alive()
    assert isinstance(guard.release_error, VolcanoError)
    assert not client_threads()


def test_work_that_cannot_start_raises_in_its_caller() -> None:
    """SDK-6: the caller does not wait without end, and the thread continues."""
    results: list[object] = []

    def impossible() -> Coroutine[Any, Any, None]:
        raise ZeroDivisionError("a bug")

    async def possible() -> str:
        return "done"

    async def on_end() -> None: ...

    background = BackgroundLoop("volcano-locks", on_end)

    def run_both() -> None:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            background.run(impossible)
        results.append(background.run(possible))

    asking = threading.Thread(target=run_both, daemon=True)
    asking.start()
    asking.join(5)
    background.close()
    assert results == ["done"]


def test_a_dropped_block_is_not_renewed(client: Client, clock: ManualClock, network: FaultyTransport) -> None:
    """An interrupt between entering and the body leaves no renewer behind."""
    client.locks.with_lock("k", ttl=30).__enter__()
    gc.collect()
    clock.advance(100)
    assert [seen.method for seen in network.seen] == ["POST"]
    assert not client.locks.get("k").held


def test_a_block_that_was_left_has_no_pending_finalizer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """case 17: Python ignores a Ctrl-C inside a finalizer, so none may be pending."""
    leave = Hold.leave
    calls: list[Hold] = []

    def counted(hold: Hold) -> None:
        calls.append(hold)
        leave(hold)

    monkeypatch.setattr(Hold, "leave", counted)
    block = client.locks.with_lock("k", ttl=30)
    with block:
        pass
    while_leaving = len(calls)
    del block
    gc.collect()
    assert len(calls) == while_leaving > 0


def test_a_failure_to_create_the_loop_raises_in_the_caller(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: for example without free file descriptors; the client works again later."""

    def fail() -> asyncio.AbstractEventLoop:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as short:
        short.setattr(asyncio, "new_event_loop", fail)
        with pytest.raises(OSError, match="too many open files"):
            client.locks.acquire("k", ttl=30)
    assert client.locks.acquire("k", ttl=30).fencing_token
