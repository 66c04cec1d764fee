"""A model of a PostgreSQL database, under the product's own PostgreSQL store.

What is modelled: transactions with row locks that are taken in the statement's order and released at the end, the
clock of the database, commits whose response is lost, sessions that vanish and hold their rows until the server
notices, and a fail-over after which every session is gone and the clock is another machine's. The statements are those
of the product; the model knows each of them by its text.
"""

from collections import deque
from typing import Any, Final, cast

from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.ports.lock_store import StoreCounts
from volcano_locks_server.stores import OpenStore
from volcano_locks_server.stores.postgres.clock import DatabaseClock
from volcano_locks_server.stores.postgres.locks import PostgresStore
from volcano_locks_server.stores.postgres.quotas import PostgresQuotas

from ..clocks import Machine
from ..loop import ProcessLoop
from ..world import World
from .observed import OnCommit
from .postgres_server import Row, ServerTransaction
from .postgres_session import ModelConnections
from .signals import ModelSignals, SignalChannel
from .wire import StoreWire


class ModelDatabase:
    """The database. `machine` has its clock; `down_until`: a fail-over ends then."""

    def __init__(
        self, world: World, wire: StoreWire, channel: SignalChannel, machine: Machine, on_commit: OnCommit
    ) -> None:
        self.down_until = 0.0
        self.generation = 0
        self.machine = machine
        self.world: Final = world
        self.wire: Final = wire
        self.channel: Final = channel
        self.on_commit: Final = on_commit
        self.rows: Final[dict[tuple[str, str], Row]] = {}
        self.newest: Row = (0, 0, "", 0, False, 0, 0, 0, 0, 0)  # now, mark, boot, boot_ms, synchronised, history
        self.taken: Final[dict[tuple[int, str], int]] = {}
        self.locked: Final[dict[object, ServerTransaction]] = {}
        self.waiting: Final[dict[object, deque[ServerTransaction]]] = {}

    async def open(self, node: str, clock: Clock, loop: ProcessLoop) -> OpenStore:
        """Open the store in a new process. Raises StoreUnavailableError as the product does."""
        connections = cast("Any", ModelConnections(self, node, loop))
        database_clock = DatabaseClock(connections, clock, None)
        await database_clock.begin()
        return OpenStore(
            PostgresStore(connections, StoreCounts(), database_clock),
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            quotas=PostgresQuotas(connections),
            batches_in_flight=2,
            signals=ModelSignals(self.channel, node, loop),
        )

    def fail_over(self, seconds: float, machine: Machine) -> None:
        """The primary is gone, with all its sessions; what was committed is on its successor."""
        self.generation += 1
        self.down_until = self.world.now + seconds
        self.machine = machine
        for transaction in list(self.locked.values()):
            transaction.end()
        self.locked.clear()
        self.waiting.clear()

    def clock_ms(self) -> int:
        return self.machine.date_ms()
