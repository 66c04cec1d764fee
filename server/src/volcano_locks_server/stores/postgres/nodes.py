"""What a node over PostgreSQL knows about nodes: its own clock against the database's. It does not know the others."""

from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from ...ports.nodes import OtherNode
from .clock import DatabaseClock


class PostgresNodes:
    """The NodeView. Made by `PostgresDatabase`."""

    def __init__(self, clock: DatabaseClock) -> None:
        self.node_id: Final = uuid4().hex
        self._clock: Final = clock

    def clock_difference_ms(self) -> int | None:
        return self._clock.ahead_of_node_ms()

    def other_nodes(self) -> Sequence[OtherNode]:
        return ()
