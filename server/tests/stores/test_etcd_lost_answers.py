"""An answer of etcd that does not come leaves unknown what became of the batch, and is not made up for in silence."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from testsupport.engines import etcd
from testsupport.engines.processes import BUSY_SECONDS

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import Records, Stepped
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores import open_store
from volcano_locks_server.stores.etcd.endpoints import CALL_SECONDS_MAX

from .deeds import counted, key, serves_soon

pytestmark = pytest.mark.real_time


class Wire:
    """A way to a member on which answers can be held back."""

    def __init__(self, member: etcd.Member) -> None:
        self._host, _, self._port = member.host.partition(":")
        self.passes_answers = True
        self.port = 0
        self._server: asyncio.Server | None = None
        self._ways: set[asyncio.Task[None]] = set()
        self._ends: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for way in self._ways:
            way.cancel()
        for end in self._ends:
            end.transport.abort()
        await asyncio.gather(*self._ways, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, int(self._port))
        self._ends += [writer, back]
        for source, sink, is_answer in ((reader, back, False), (there, writer, True)):
            way = asyncio.create_task(self._carry(source, sink, is_answer))
            self._ways.add(way)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while part := await source.read(65_536):
                while is_answer and not self.passes_answers:
                    await asyncio.sleep(0.02)
                sink.write(part)
        finally:
            sink.close()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    opened = Wire(etcd.shared().members[0])
    await opened.open()
    yield opened
    await opened.close()


async def test_a_batch_whose_answer_is_lost_is_unavailable_and_done_once(wire: Wire) -> None:
    """LEASE-16: it took effect; nobody is told so, and nothing is done a second time."""
    prefix = etcd.new_prefix()
    through = await open_store(f"etcd://127.0.0.1:{wire.port}/{prefix}", SystemClock())
    assert await counted(through.locks, key("a")) == 1
    steps = 0

    def step(records: Records, now_ms: int) -> Stepped:
        nonlocal steps
        steps += 1
        wire.passes_answers = False  # from here on, so that the reading was answered and the writing is not
        record = records[key("a")]
        assert record is not None
        return Stepped({key("a"): Free(record.fencing_token + 1, now_ms)}, [None])

    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as caught:
        await through.locks.update([key("a")], step)
    assert caught.value.cause_code == "etcd_late"
    assert time.monotonic() - began < CALL_SECONDS_MAX + BUSY_SECONDS
    assert steps == 1
    wire.passes_answers = True
    await serves_soon(through)
    assert await counted(through.locks, key("a")) == 3
    await through.close()
