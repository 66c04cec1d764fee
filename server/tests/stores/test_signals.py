"""What nodes tell each other, over every store that has nodes, and over the bus that tests put in its place."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from volcano_locks_server.ports.signals import SIGNAL_BYTES_MAX, Signals
from volcano_locks_server.stores import open_store
from volcano_locks_server.stores.signal_packets import SIGNALS_QUEUED_MAX
from volcano_locks_server.testing import ManualClock, MemorySignals, SignalBus

from .conftest import url_of
from .ears import Ear

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


async def ear(opened: Opener) -> Ear:
    """A node that listens."""
    made = Ear(await opened())
    await made.listens()
    return made


async def test_every_node_hears_every_message_in_order_also_its_own(opened: Opener) -> None:
    """WAIT-10."""
    one, other = await ear(opened), await ear(opened)
    told = [b"%d" % number for number in range(2_000)]
    for message in told[:1_000]:
        one.signals.tell(message)
    await other.hears(*told[:1_000])
    for message in told[1_000:]:
        one.signals.tell(message)
        await asyncio.sleep(0)
    other.signals.tell(b"back")
    await other.hears(*told)
    await one.hears(*told)
    await one.hears(b"back")
    await other.hears(b"back")


async def test_a_message_arrives_as_it_is(opened: Opener) -> None:
    """Whatever is in it, but a newline."""
    one, other = await ear(opened), await ear(opened)
    every = bytes(code for code in range(256) if code != 0x0A)
    told = [every, b"", "'; DROP TABLE lock; -- %27 \\ é €".encode(), b'{"key":"a"}', b"x" * SIGNAL_BYTES_MAX]
    told += [b"\xff" * SIGNAL_BYTES_MAX, b"'" * SIGNAL_BYTES_MAX]
    for message in told:
        one.signals.tell(message)
    await other.hears(*told)
    assert other.heard == told


async def test_what_is_no_message_is_refused(opened: Opener) -> None:
    signals = await opened()
    with pytest.raises(ValueError, match=f"up to {SIGNAL_BYTES_MAX} bytes; got {SIGNAL_BYTES_MAX + 1}$"):
        signals.tell(b"x" * (SIGNAL_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="newline"):
        signals.tell(b"a\nb")
    await signals.close()


async def test_what_was_told_before_the_start_is_heard(opened: Opener) -> None:
    other = await ear(opened)
    signals = await opened()
    signals.tell(b"early")
    assert not signals.working
    one = Ear(signals)
    await one.hears(b"early")
    await other.hears(b"early")


async def test_a_full_queue_loses_the_oldest_and_says_so_to_everybody(opened: Opener) -> None:
    one, other = await ear(opened), await ear(opened)
    before = one.missed, other.missed
    told = [b"%d" % number for number in range(SIGNALS_QUEUED_MAX + 5)]
    for message in told:
        one.signals.tell(message)
    for each in (one, other):
        await each.hears(*told[5:])
        assert each.heard == told[5:]
    assert one.missed > before[0]
    assert other.missed > before[1]


async def test_the_begin_is_missed_because_others_may_have_told_something_before(opened: Opener) -> None:
    made = Ear(await opened())
    await made.until(lambda: made.signals.working and made.missed > 0)


async def test_closing_sends_what_is_queued_and_ends_every_task(opened: Opener) -> None:
    one, other = await ear(opened), await ear(opened)
    one.signals.tell(b"last")
    await one.signals.close()
    await one.signals.close()
    await other.hears(b"last")
    heard = len(one.heard)
    one.signals.tell(b"after")
    other.signals.tell(b"to those who are there")
    await other.hears(b"to those who are there")
    assert len(one.heard) == heard
    assert not one.signals.working


async def test_closing_at_once_and_closing_what_never_started(opened: Opener) -> None:
    never = await opened()
    await never.close()
    soon = Ear(await opened())
    await soon.signals.close()
    later = Ear(await opened())
    await asyncio.sleep(0)
    await later.signals.close()
    assert not soon.signals.working
    assert not later.signals.working


async def test_whoever_closes_may_be_cancelled(opened: Opener) -> None:
    """The next one to close finishes it."""
    one = await ear(opened)
    closing = asyncio.create_task(one.signals.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await one.signals.close()
