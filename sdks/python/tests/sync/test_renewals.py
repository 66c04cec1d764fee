# ruff: noqa: PT012, SIM117 - a block is entered, used and left in one statement
"""The threads that renew held locks: start, overlap, idle end, closing, failures (SDK-3, SDK-6, SDK-23)."""

import contextlib
import gc
import threading
import time
from collections.abc import Iterator

import pytest

from volcano_locks import Client, LockOwnershipLostError, VolcanoError
from volcano_locks.clock import SystemClock
from volcano_locks.holding.hold import Hold
from volcano_locks.sync import call, renewals
from volcano_locks.testing import DropBeforeSend, FakeLocks, FaultyTransport, Hang, ManualClock
from volcano_locks.testing.in_memory import HttpRequest, NewWakeup, Pause, Serving

from ..helpers import client_threads, eventually, in_a_fork


@pytest.fixture(autouse=True)
def _threads_end(client: Client) -> Iterator[None]:
    """SDK-6: closing the clients ends their threads."""
    yield
    client.close()
    eventually(lambda: not client_threads())


def test_one_thread_renews_every_lock_of_a_client(client: Client, clock: ManualClock) -> None:
    """SDK-6: started by the first block, not by a request; ended by `close`."""
    client.locks.get("k")
    assert not client_threads()
    with contextlib.ExitStack() as blocks:
        guards = [blocks.enter_context(client.locks.with_lock("k0", ttl=30))]
        eventually(lambda: len(client_threads()) == 1)
        guards += [blocks.enter_context(client.locks.with_lock(f"k{n}", ttl=30)) for n in range(1, 30)]
        clock.advance(200)
        assert not any(guard.lost for guard in guards)
        assert len(client_threads()) <= 2  # one waits while the other renews
    client.close()
    eventually(lambda: not client_threads())
    with pytest.raises(VolcanoError, match="this client is closed"):
        client.locks.get("k0")


class HangingNow(FaultyTransport):
    """Every twentieth renewal hangs, and so do all renewals of the keys in `always`."""

    def __init__(self, inner: FakeLocks, clock: ManualClock) -> None:
        super().__init__(inner, clock)
        self.always: set[str] = set()
        self.renewals = 0
        self.hanging: set[int] = set()  # not client_threads(): one that ends is still listed while another one starts
        self.threads_max = 0

    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        if request.method == "PATCH":
            self.renewals += 1
            if self.renewals % 20 == 0 or request.path.split("/")[2] in self.always:
                thread = threading.get_ident()
                self.hanging.add(thread)
                self.threads_max = max(self.threads_max, len(self.hanging))
                try:
                    while True:
                        yield Pause(float("inf"), new_wakeup())
                finally:
                    self.hanging.discard(thread)
        return (yield from self.inner.serve(request, new_wakeup))


def test_1000_locks_of_which_one_renewal_in_twenty_hangs_are_all_kept(server: FakeLocks, clock: ManualClock) -> None:
    """SDK-3: more threads run only while renewals overlap."""
    network = HangingNow(server, clock)
    with server.client(transport=network) as client, contextlib.ExitStack() as blocks:
        guards = [blocks.enter_context(client.locks.with_lock(f"k{n}", ttl=30)) for n in range(1000)]
        clock.advance(35)
        assert [guard.key for guard in guards if guard.lost] == []
        assert network.renewals > 2500
        assert 1 < network.threads_max <= renewals.RENEWAL_THREADS_MAX


def test_a_hanging_renewal_delays_no_other(server: FakeLocks, clock: ManualClock) -> None:
    """SDK-3, case 6."""
    network = HangingNow(server, clock)
    network.always = {"hangs"}
    with server.client(transport=network) as client:
        with client.locks.with_lock("k", ttl=30) as kept:
            with pytest.raises(LockOwnershipLostError):
                with client.locks.with_lock("hangs", ttl=30) as lost:
                    clock.advance(60)
                    assert (kept.lost, lost.lost) == (False, True)
                    assert len(client_threads()) == 2


def test_hanging_renewals_use_no_more_threads_than_the_limit(
    server: FakeLocks, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals, "RENEWAL_THREADS_MAX", 3)
    network = HangingNow(server, clock)
    network.always = {f"k{n}" for n in range(10)}
    with server.client(transport=network) as client, contextlib.suppress(LockOwnershipLostError):
        with contextlib.ExitStack() as blocks:
            for key in network.always:
                blocks.enter_context(client.locks.with_lock(key, ttl=30))
            clock.advance(31)
            assert network.threads_max == 3


@pytest.mark.real_time
def test_idle_threads_end_and_another_one_starts(server: FakeLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: an unused client keeps no thread; a held lock counts as use."""
    monkeypatch.setattr(renewals, "IDLE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(renewals, "INBOX_CHECK_SECONDS", 0.01)
    with server.client(clock=SystemClock()) as client:
        for _ in range(2):
            with client.locks.with_lock("k", ttl=5, renew_every=1):
                eventually(lambda: len(client_threads()) == 1)
                time.sleep(0.1)
                assert len(client_threads()) == 1
            eventually(lambda: not client_threads())


class AddsWhileEnding(set[int]):
    """The threads of some renewals. While the last one ends but is still listed, a block is entered."""

    def __init__(self, client: Client, blocks: contextlib.ExitStack) -> None:
        self.client = client
        self.blocks = blocks

    def discard(self, thread: int) -> None:
        if self.client is not None and thread in self:
            client, self.client = self.client, None  # type: ignore[assignment]
            self.blocks.enter_context(client.locks.with_lock("k", ttl=30))
        super().discard(thread)


@pytest.mark.real_time
def test_a_lock_added_while_the_last_thread_ends_is_renewed(server: FakeLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: the new lock starts no thread, so the ending thread continues."""
    monkeypatch.setattr(renewals, "IDLE_SECONDS_MAX", 0.01)
    monkeypatch.setattr(renewals, "INBOX_CHECK_SECONDS", 0.01)
    with server.client(clock=SystemClock()) as client, contextlib.ExitStack() as blocks:
        client.locks._renewals._threads = threads = AddsWhileEnding(client, blocks)
        with client.locks.with_lock("first", ttl=5, renew_every=1):
            eventually(lambda: len(threads) == 1)
        eventually(lambda: threads.client is None and len(threads) == 1)
        time.sleep(0.1)
        assert len(client_threads()) == 1


def test_a_dropped_block_is_not_renewed(client: Client, clock: ManualClock, network: FaultyTransport) -> None:
    """SDK-23: an interrupt between entering and the body, or as the block is left, leaves no renewal behind."""
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


def no_thread(*_: object) -> int:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_start_raises_in_the_caller(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: the lock is released, and the client works again later."""
    with monkeypatch.context() as full:
        full.setattr(call._thread, "start_new_thread", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            client.locks.with_lock("k", ttl=30).__enter__()
    assert not client.locks.get("k").held
    with client.locks.with_lock("k", ttl=30):
        eventually(lambda: len(client_threads()) == 1)


def test_a_further_thread_that_cannot_start_does_not_end_the_first(
    client: Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-3."""
    with client.locks.with_lock("a", ttl=30) as first, client.locks.with_lock("b", ttl=30) as second:
        eventually(lambda: len(client_threads()) == 1)
        monkeypatch.setattr(call._thread, "start_new_thread", no_thread)
        clock.advance(100)
        assert (first.lost, second.lost) == (False, False)


def test_no_thread_starts_while_the_interpreter_shuts_down(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-23: Python 3.12 and later refuse new threads; the block runs without renewals, so its lease may expire."""

    def refused(*_: object) -> int:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(call._thread, "start_new_thread", refused)
    with client.locks.with_lock("k", ttl=30) as guard:
        assert not guard.lost
    assert not client_threads()


def test_a_child_renews_in_a_thread_of_its_own(server_url: str) -> None:
    """SDK-6, case 36: also if the parent has one."""
    with Client(server_url, "sk-x") as client, client.locks.with_lock("of-the-parent", ttl=30):
        eventually(lambda: len(client_threads()) == 1)

        def child() -> str:
            before = len(client_threads())
            with client.locks.with_lock("of-the-child", ttl=30):
                eventually(lambda: len(client_threads()) == 1)
                return f"{before}, then 1"

        assert in_a_fork(child) == "0, then 1"
