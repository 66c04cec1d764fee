"""Rare moments between threads: a renewal and the end of its block, and a cancelled call."""

import threading
from collections.abc import Callable
from math import inf

import pytest

from volcano_locks import Client
from volcano_locks.clock import SystemClock, Wakeup
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.sync.call import Call
from volcano_locks.sync.pool import SocketPool
from volcano_locks.testing import FaultyTransport, ManualClock

from ..socket_server import FREED, ServerConnection, socket_server

GET = OutgoingRequest("GET", "/locks/k", [])


def test_a_renewal_that_begins_as_its_block_is_left_is_not_sent(
    client: Client, network: FaultyTransport, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5: otherwise it could arrive after the release, or shorten the hold of `hold_at_least`."""
    begins, left = threading.Event(), threading.Event()

    class HeldUp(Call):
        def __init__(self, clock: ManualClock) -> None:
            begins.set()
            assert left.wait(20)
            super().__init__(clock)

    monkeypatch.setattr("volcano_locks.sync.renewals.Call", HeldUp)
    with client.locks.with_lock("k", ttl=30):
        clock.jump(11)
        assert begins.wait(20)
    left.set()
    clock.settle()
    assert [seen.method for seen in network.seen] == ["POST", "DELETE"]


def test_the_connection_of_a_cancelled_call_is_not_reused() -> None:
    """The thread that cancels interrupts the connection a moment later, which may then serve another call."""

    class CancelledAtItsEnd(Call):
        def interruptible(self, until: float, wakeup: Wakeup, *, asleep: bool = False) -> Callable[[], None]:
            end = super().interruptible(until, wakeup, asleep=asleep)

            def end_late() -> None:
                self.cancelled = True
                end()

            return end_late

    connections: list[int] = []

    def serve(connection: ServerConnection, number: int) -> None:
        while connection.request():
            connections.append(number)
            connection.respond(FREED)

    clock = SystemClock()
    with socket_server(serve) as url:
        pool = SocketPool(Address.of(url), None, clock)
        for call in (Call(clock), CancelledAtItsEnd(clock), Call(clock)):
            pool.exchange(GET, inf, call)
        pool.close()
    assert connections == [0, 0, 1]
