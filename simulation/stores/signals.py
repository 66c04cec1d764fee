"""A model of the messages between nodes over PostgreSQL or etcd, under the product's own packets.

Packets arrive in one order at all nodes, each node at its own delay. A session that is lost loses the packets of that
time, and its node learns of the loss when it has a new session. Behind a pooler a node only sends.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from volcano_locks_server.stores.signal_packets import PacketSignals, parse_packet

from ..loop import ProcessLoop
from ..world import World
from .wire import StoreWire

PACKET_BYTES_MAX: Final = 7_900
POLL_SECONDS: Final = 2.0


class SignalChannel:
    """What all nodes listen to. `is_pooled`: no node can listen. `slow_until`, by node: true time until which it
    receives each packet up to SLOW_SECONDS late.
    """

    SLOW_SECONDS: Final = 3.0

    def __init__(self, world: World, wire: StoreWire, random: Random, *, is_pooled: bool) -> None:
        self.world: Final = world
        self.wire: Final = wire
        self.random: Final = random
        self.is_pooled: Final = is_pooled
        self.sessions: Final[dict[ModelSignals, None]] = {}
        self.slow_until: Final[dict[str, float]] = {}

    def delay(self, node: str) -> float:
        """Of one packet on its way to that node."""
        is_slow = self.world.now < self.slow_until.get(node, 0.0)
        return self.wire.delay() + (self.random.random() * self.SLOW_SECONDS if is_slow else 0.0)

    def send(self, text: str) -> None:
        for session in list(self.sessions):
            session.receive_later(text)

    def lose_session(self, node: str) -> None:
        for session in list(self.sessions):
            if session.node == node:
                session.lose()


class ModelSignals(PacketSignals):
    """The `Signals` of one process."""

    def __init__(self, channel: SignalChannel, node: str, loop: ProcessLoop) -> None:
        super().__init__(PACKET_BYTES_MAX)
        self.node: Final = node
        self._channel: Final = channel
        self._loop: Final = loop
        self._is_sending = False
        self._arrives_at = 0.0
        self._session_number = 0

    @property
    def working(self) -> bool:
        return self in self._channel.sessions

    def start(self, on_message: Callable[[bytes], None], on_missed: Callable[[], None]) -> None:
        self._on_message, self._on_missed = on_message, on_missed
        self._connect()
        self._wake_sender()

    def publish(self, message: bytes) -> None:
        super().publish(message)
        self._wake_sender()

    async def close(self) -> None:
        self._is_closed = True
        self._channel.sessions.pop(self, None)

    def lose(self) -> None:
        """The session ends; the node connects again after a while."""
        self._channel.sessions.pop(self, None)
        self._session_number += 1
        self._loop.call_soon(self._loop.call_later, 0.05 + 2 * self._channel.random.random(), self._connect)

    def receive_later(self, text: str) -> None:
        wire, world = self._channel.wire, self._channel.world
        if self._loop.is_killed:
            self._channel.sessions.pop(self, None)
            return
        if wire.is_cut(self.node):
            self.lose()
            return
        self._arrives_at = max(self._arrives_at, world.now + self._channel.delay(self.node))
        world.at(self._arrives_at, self._arrive, text, self._session_number)

    def _connect(self) -> None:
        if self._is_closed:
            return
        if self._channel.is_pooled:
            self._loop.call_later(POLL_SECONDS, self._connect)
        elif self._channel.wire.is_cut(self.node):
            self._loop.call_later(0.5, self._connect)
        else:
            self._channel.sessions[self] = None
        self._on_missed()

    def _wake_sender(self) -> None:
        if not self._is_sending and self._outbox and not self._is_closed:
            self._is_sending = True
            self._channel.world.after(self._channel.wire.delay(), self._send)

    def _send(self) -> None:
        """The packet reaches the engine; the next one is sent when this process has learned of that."""
        if self._loop.is_killed:
            self._channel.sessions.pop(self, None)
            return
        if self._channel.wire.is_cut(self.node):
            self._outbox.lose()
            self._channel.world.after(0.5, self._send)
            return
        packet = self._outbox.packet()
        self._channel.send(packet)
        self._loop.call_soon(self._sent)

    def _sent(self) -> None:
        self._is_sending = False
        self._wake_sender()

    def _arrive(self, text: str, session_number: int) -> None:
        if session_number == self._session_number and not self._loop.is_killed:
            self._loop.call_soon(self._received, text, session_number)

    def _received(self, text: str, session_number: int) -> None:
        packet = parse_packet(text)
        if packet is not None and session_number == self._session_number:
            self._deliver_packet(packet, self._wake)
