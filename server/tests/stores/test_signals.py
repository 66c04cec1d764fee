"""Messages between nodes, on every store with several nodes and on the in-memory bus of tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from testsupport.server_ports import MemorySignals, SignalBus

from volcano_locks_server.ports.signals import SIGNAL_BYTES_MAX, Signals
from volcano_locks_server.stores import open_store
from volcano_locks_server.stores.signal_packets import SIGNALS_QUEUED_MAX
from volcano_locks_server.testing import ManualClock

from .conftest import url_of
from .signal_recorder import SignalRecorder

Opener = Callable[[], Awaitable[Signals]]


@pytest.fixture(params=["memory", "postgres", "etcd"])
async def opened(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Opener]:
    """Opens the signals of one more node of a service."""
    bus, url, stores = SignalBus(), url_of(request.param, request), []

    async def one() -> Signals:
        if request.param == "memory":
            return MemorySignals(bus)
        stores.append(await open_store(url, clock))
        signals = stores[-1].signals
        assert signals is not None
        return signals

    yield one
    for store in stores:
        await store.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def recorder(opened: Opener) -> SignalRecorder:
    """A node that receives."""
    made = SignalRecorder(await opened())
    await made.until_working()
    return made


async def test_every_node_receives_every_message_in_order_including_its_own(opened: Opener) -> None:
    """WAIT-10."""
    one, other = await recorder(opened), await recorder(opened)
    sent = [b"%d" % number for number in range(2_000)]
    for message in sent[:1_000]:
        one.signals.publish(message)
    await other.until_received(*sent[:1_000])
    for message in sent[1_000:]:
        one.signals.publish(message)
        await asyncio.sleep(0)
    other.signals.publish(b"back")
    await other.until_received(*sent)
    await one.until_received(*sent)
    await one.until_received(b"back")
    await other.until_received(b"back")


async def test_a_message_arrives_unchanged(opened: Opener) -> None:
    """Any bytes but a newline."""
    one, other = await recorder(opened), await recorder(opened)
    every = bytes(code for code in range(256) if code != 0x0A)
    sent = [every, b"", "'; DROP TABLE lock; -- %27 \\ é €".encode(), b'{"key":"a"}', b"x" * SIGNAL_BYTES_MAX]
    sent += [b"\xff" * SIGNAL_BYTES_MAX, b"'" * SIGNAL_BYTES_MAX]
    for message in sent:
        one.signals.publish(message)
    await other.until_received(*sent)
    assert other.received == sent


async def test_invalid_messages_are_refused(opened: Opener) -> None:
    signals = await opened()
    with pytest.raises(ValueError, match=f"up to {SIGNAL_BYTES_MAX} bytes; got {SIGNAL_BYTES_MAX + 1}$"):
        signals.publish(b"x" * (SIGNAL_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="newline"):
        signals.publish(b"a\nb")
    await signals.close()


async def test_messages_queued_before_the_start_are_sent(opened: Opener) -> None:
    other = await recorder(opened)
    signals = await opened()
    signals.publish(b"early")
    assert not signals.working
    one = SignalRecorder(signals)
    await one.until_received(b"early")
    await other.until_received(b"early")


async def test_a_full_queue_drops_the_oldest_and_every_node_learns_of_it(opened: Opener) -> None:
    one, other = await recorder(opened), await recorder(opened)
    before = one.missed, other.missed
    sent = [b"%d" % number for number in range(SIGNALS_QUEUED_MAX + 5)]
    for message in sent:
        one.signals.publish(message)
    for each in (one, other):
        await each.until_received(*sent[5:])
        assert each.received == sent[5:]
    assert one.missed > before[0]
    assert other.missed > before[1]


async def test_the_start_reports_a_gap(opened: Opener) -> None:
    made = SignalRecorder(await opened())
    await made.until(lambda: made.signals.working and made.missed > 0)


async def test_close_sends_the_queue_and_ends_every_task(opened: Opener) -> None:
    one, other = await recorder(opened), await recorder(opened)
    one.signals.publish(b"last")
    await one.signals.close()
    await one.signals.close()
    await other.until_received(b"last")
    received = len(one.received)
    one.signals.publish(b"after")
    other.signals.publish(b"to the other nodes")
    await other.until_received(b"to the other nodes")
    assert len(one.received) == received
    assert not one.signals.working


async def test_close_works_at_once_and_without_a_start(opened: Opener) -> None:
    never = await opened()
    await never.close()
    soon = SignalRecorder(await opened())
    await soon.signals.close()
    later = SignalRecorder(await opened())
    await asyncio.sleep(0)
    await later.signals.close()
    assert not soon.signals.working
    assert not later.signals.working


async def test_a_cancelled_close_can_be_repeated(opened: Opener) -> None:
    """The next close finishes it."""
    one = await recorder(opened)
    closing = asyncio.create_task(one.signals.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await one.signals.close()
