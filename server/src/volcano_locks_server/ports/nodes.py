"""The port of what a store knows about the nodes that share it, for `GET /nodes`."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class OtherNode(NamedTuple):
    """Another node: its id, the latest instant that it wrote, and whether it wrote a moment ago."""

    id: str
    written_at_ms: int
    is_live: bool


class NodeView(Protocol):
    """What one node knows, as of its latest calls of the store. Never waits."""

    @property
    def node_id(self) -> str: ...
    def clock_difference_ms(self) -> int | None:
        """How far the store's clock is ahead of this node's; None if the store has none of its own."""
        ...

    def other_nodes(self) -> Sequence[OtherNode]: ...
