"""Messages between nodes, by a key of each node that all of them watch.

A node writes its packets over each other under its own key; a watch tells every one of them, also those that were
written over. While one packet is on its way the next one gathers, because each costs the cluster a write to its disks.

The watch is watched. It is asked for a sign of life every PROBE_SECONDS, and left where none comes within
SILENCE_SECONDS_MAX, or where a packet of this node does not come back; a member that loses the others ends it by
itself. Then `missed` is told, another member is asked, and the watch begins anew with what is written from then on:
what was told meanwhile is not made up for. The same goes for a watch that came so late that what it had still to tell
was compacted away.

The keys go with the nodes: at `close`, else with what else nodes leave behind that are gone (see `clocks`).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

import grpc

from ...rules.errors import StoreUnavailableError
from ..signal_packets import Outbox, unpacked
from .endpoints import Members
from .layout import Layout, end_of
from .transactions import Delete, Put
from .watch import WATCH, ask_for_life, watch, watch_answer

PACKET_BYTES_MAX: Final = 32_768
PROBE_SECONDS: Final = 1.5
SILENCE_SECONDS_MAX: Final = 4.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
CLOSE_SECONDS_MAX: Final = 1.0


class EtcdSignals:
    """The Signals of one node, whose packets are written under `key`. Made by `EtcdCluster`."""

    def __init__(self, members: Members, layout: Layout, key: bytes) -> None:
        self._members: Final = members
        self._layout: Final = layout
        self._key: Final = key
        self._outbox: Final = Outbox(PACKET_BYTES_MAX)
        self._wake: Final = asyncio.Event()
        self._came_back: Final = asyncio.Event()
        self._tried: Final = asyncio.Event()  # to watch: only then what is told first can come back
        self._echoed = 0
        self._silence: asyncio.Timeout | None = None  # of the watch that works
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._heard: Callable[[bytes], None]
        self._missed: Callable[[], None]
        self._is_closed = False

    @property
    def working(self) -> bool:
        return self._silence is not None

    def start(self, heard: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        self._heard, self._missed = heard, missed
        self._listening = asyncio.create_task(self._listen(), name="etcd-signals-heard")
        self._sending = asyncio.create_task(self._send(), name="etcd-signals-told")

    def tell(self, message: bytes) -> None:
        if not self._is_closed:
            self._outbox.put(message)
            self._wake.set()

    async def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        self._tried.set()
        if self._sending is None or self._listening is None:
            return
        await asyncio.wait([self._sending], timeout=CLOSE_SECONDS_MAX)
        for task in (self._sending, self._listening):
            task.cancel()
        await asyncio.wait([self._sending, self._listening])
        with contextlib.suppress(StoreUnavailableError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._members.write((), [Delete(self._key)])
        self._sending = self._listening = None

    async def _listen(self) -> None:
        """Watch for as long as it goes; then again after a growing pause."""
        pause_seconds = PAUSE_SECONDS_MIN
        while True:
            began_at = asyncio.get_running_loop().time()
            with contextlib.suppress(StoreUnavailableError):
                async with self._members.stream(WATCH) as stream:
                    await self._follow(stream)
            self._tried.set()
            self._missed()
            if asyncio.get_running_loop().time() - began_at > PAUSE_SECONDS_MAX:
                pause_seconds = PAUSE_SECONDS_MIN
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)

    async def _follow(self, stream: grpc.aio.StreamStreamCall) -> None:
        """Return when the watch is over; TimeoutError when it is silent."""
        loop = asyncio.get_running_loop()
        await stream.write(watch(self._layout.signals, end_of(self._layout.signals)))
        asking = asyncio.create_task(_ask(stream), name="etcd-signals-asks")
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX) as silence:
                while (wire := await stream.read()) is not grpc.aio.EOF:
                    silence.reschedule(loop.time() + SILENCE_SECONDS_MAX)
                    answer = watch_answer(wire)
                    if answer.is_over:
                        return
                    if answer.begins:
                        self._silence = silence
                        self._tried.set()
                        self._missed()
                    for value in answer.values:
                        self._on_packet(value)
        finally:
            self._silence = None
            self._came_back.set()
            asking.cancel()
            await asyncio.wait([asking])

    def _on_packet(self, value: bytes) -> None:
        packet = unpacked(value.decode("ascii", "replace"))
        if packet is None:
            return
        if packet.node == self._outbox.node:
            self._echoed = packet.number
            self._came_back.set()
        if not self._is_closed:
            packet.deliver(self._heard, self._missed)

    async def _send(self) -> None:
        """Send what there is to send; after `close`, until nothing is left."""
        pause_seconds = PAUSE_SECONDS_MIN
        await self._tried.wait()
        while self._outbox or not self._is_closed:
            if not self._outbox:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._members.write((), [Put(self._key, self._outbox.packet().encode("ascii"))])
            except StoreUnavailableError:
                self._outbox.lose()
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
                pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)
            else:
                pause_seconds = PAUSE_SECONDS_MIN
                await self._echo()

    async def _echo(self) -> None:
        """Wait until the last packet came back; if it does not, the watch is given up."""
        watching = self._silence
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                while watching is not None and watching is self._silence and self._echoed < self._outbox.number:
                    self._came_back.clear()
                    await self._came_back.wait()
        except TimeoutError:
            if self._silence is not None:
                self._silence.reschedule(asyncio.get_running_loop().time())


async def _ask(stream: grpc.aio.StreamStreamCall) -> None:
    """Ask for signs of life, until the stream fails: its reader learns of that too."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            await stream.write(ask_for_life())
