"""Sends messages between nodes: each node writes packets to a key of its own, and all nodes watch these keys.

A node's packets overwrite each other; the watch still reports each of them. While one packet is in flight, messages
collect in the next one, because each packet costs the cluster a write to its disks.

The watch itself is checked. The node requests a progress report every PROBE_SECONDS. It abandons the watch if none
arrives within SILENCE_SECONDS_MAX, or if its own packet does not come back; a member that loses the others cancels the
watch. Then the node calls `on_missed`, goes to another member, and watches what is written from then on. It does the
same if etcd compacted revisions that the watch had not reported yet.

A node deletes its key in `close`; other nodes delete the key of a node that is gone (see `clock_skew`).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Final

import grpc

from ...rules.errors import StoreUnavailableError
from ..signal_packets import PacketSignals
from .endpoints import Endpoints
from .layout import Layout, end_of
from .transactions import Delete, Put
from .watch_messages import WATCH, decode_watch_response, encode_progress_request, encode_watch

PACKET_BYTES_MAX: Final = 32_768
PROBE_SECONDS: Final = 1.5
SILENCE_SECONDS_MAX: Final = 4.0
PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 2.0
CLOSE_SECONDS_MAX: Final = 1.0


class EtcdSignals(PacketSignals):
    """The Signals of one node, which writes its packets to `key`. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout, key: bytes) -> None:
        super().__init__(PACKET_BYTES_MAX)
        self._endpoints: Final = endpoints
        self._layout: Final = layout
        self._key: Final = key
        self._came_back: Final = asyncio.Event()
        self._tried: Final = asyncio.Event()  # a watch was tried; before that a first packet cannot come back
        self._silence: asyncio.Timeout | None = None  # set while the watch works
        self._sending: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None

    @property
    def working(self) -> bool:
        return self._silence is not None

    def start(self, on_message: Callable[[bytes], None], on_missed: Callable[[], None]) -> None:
        self._on_message, self._on_missed = on_message, on_missed
        self._receiving = asyncio.create_task(self._receive(), name="etcd-signals-receive")
        self._sending = asyncio.create_task(self._send(), name="etcd-signals-send")

    async def close(self) -> None:
        self._is_closed = True
        self._wake.set()
        self._tried.set()
        if self._sending is None or self._receiving is None:
            return
        await asyncio.wait([self._sending], timeout=CLOSE_SECONDS_MAX)
        for task in (self._sending, self._receiving):
            task.cancel()
        await asyncio.wait([self._sending, self._receiving])
        with contextlib.suppress(StoreUnavailableError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await self._endpoints.write((), [Delete(self._key)])
        self._sending = self._receiving = None

    async def _receive(self) -> None:
        """Watch until the watch ends, then again after a growing pause."""
        pause_seconds = PAUSE_SECONDS_MIN
        while True:
            began_at = asyncio.get_running_loop().time()
            with contextlib.suppress(StoreUnavailableError):
                async with self._endpoints.stream(WATCH) as stream:
                    await self._follow(stream)
            self._tried.set()
            self._on_missed()
            if asyncio.get_running_loop().time() - began_at > PAUSE_SECONDS_MAX:
                pause_seconds = PAUSE_SECONDS_MIN
            await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
            pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)

    async def _follow(self, stream: grpc.aio.StreamStreamCall) -> None:
        """Return when the watch is cancelled. Raises TimeoutError when it is silent."""
        loop = asyncio.get_running_loop()
        await stream.write(encode_watch(self._layout.signals, end_of(self._layout.signals)))
        probing = asyncio.create_task(_probe(stream), name="etcd-signals-probe")
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX) as silence:
                while (message := await stream.read()) is not grpc.aio.EOF:
                    silence.reschedule(loop.time() + SILENCE_SECONDS_MAX)
                    response = decode_watch_response(message)
                    if response.is_cancelled:
                        return
                    if response.is_created:
                        self._silence = silence
                        self._tried.set()
                        self._on_missed()
                    for value in response.values:
                        self._deliver(value.decode("ascii", "replace"), self._came_back)
        finally:
            self._silence = None
            self._came_back.set()
            probing.cancel()
            await asyncio.wait([probing])

    async def _send(self) -> None:
        """Send the queued messages; after `close`, until the queue is empty."""
        pause_seconds = PAUSE_SECONDS_MIN
        await self._tried.wait()
        while self._outbox or not self._is_closed:
            if not self._outbox:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self._endpoints.write((), [Put(self._key, self._outbox.packet().encode("ascii"))])
            except StoreUnavailableError:
                self._outbox.lose()
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))  # noqa: S311
                pause_seconds = min(PAUSE_SECONDS_MAX, 2 * pause_seconds)
            else:
                pause_seconds = PAUSE_SECONDS_MIN
                await self._echo()

    async def _echo(self) -> None:
        """Wait until the latest packet came back; abandon the watch if it does not."""
        watching = self._silence
        try:
            async with asyncio.timeout(SILENCE_SECONDS_MAX):
                while watching is not None and watching is self._silence and self._echoed < self._outbox.number:
                    self._came_back.clear()
                    await self._came_back.wait()
        except TimeoutError:
            if self._silence is not None:
                self._silence.reschedule(asyncio.get_running_loop().time())


async def _probe(stream: grpc.aio.StreamStreamCall) -> None:
    """Request progress reports until the stream fails; its reader sees the failure too."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            await stream.write(encode_progress_request())
