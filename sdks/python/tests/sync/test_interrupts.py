# ruff: noqa: SIM117 - a block is entered, used and left in one statement
"""Ctrl-C while a threaded client acquires, holds or releases (SDK-2, SDK-5, SDK-23)."""

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from volcano_locks import Client
from volcano_locks.sync.renewals import Renewals
from volcano_locks.testing import FakeLocks, FaultyTransport, ManualClock
from volcano_locks.testing.in_memory import HttpRequest, InMemoryTransport, NewWakeup, Pause, Serving

from ..helpers import eventually

pytestmark = pytest.mark.usefixtures("dropped_sockets")


class InterruptingTransport(InMemoryTransport):
    """Sends the main thread a Ctrl-C when it has served a POST, and then responds at once or not at all."""

    def __init__(self, inner: FakeLocks, *, responds: bool) -> None:
        self.inner = inner
        self.responds = responds
        self.methods: list[str] = []

    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        self.methods.append(request.method)
        response = yield from self.inner.serve(request, new_wakeup)
        if request.method == "POST":
            interrupt = threading.Thread(
                target=signal.pthread_kill, args=[threading.main_thread().ident, signal.SIGINT]
            )
            interrupt.start()
            while not self.responds:
                yield Pause(float("inf"), new_wakeup())
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
    """SDK-2, case 13, case 17: whether or not the response has arrived."""
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


def test_ctrl_c_as_the_first_renewal_is_planned_releases(
    client: Client, network: FaultyTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5, SDK-23: the renewing thread may already run; it ends like every other one."""
    start = Renewals._start

    def interrupted(renewals: Renewals) -> None:
        start(renewals)
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(Renewals, "_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.locks.with_lock("k", ttl=30).__enter__()
    assert [seen.method for seen in network.seen] == ["POST", "DELETE"]
    client.close()
    eventually(lambda: not client.locks._renewals._threads)
