"""What a node over etcd knows about nodes: each writes its instant under a key of its own."""

from collections.abc import Sequence
from typing import Final

from ...ports.nodes import OtherNode
from .clock_skew import ClockSkewMonitor
from .layout import Layout


class EtcdNodes:
    """The NodeView. Made by `EtcdCluster`."""

    def __init__(self, skew_monitor: ClockSkewMonitor, layout: Layout) -> None:
        self._skew_monitor: Final = skew_monitor
        self._layout: Final = layout

    @property
    def node_id(self) -> str:
        return self._id(self._skew_monitor.node_key)

    def clock_difference_ms(self) -> int | None:
        return None

    def other_nodes(self) -> Sequence[OtherNode]:
        peers = self._skew_monitor.peers()
        return [OtherNode(self._id(key), peer.node.now_ms, peer.is_live) for key, peer in sorted(peers.items())]

    def _id(self, key: bytes) -> str:
        return key[len(self._layout.nodes) :].decode("ascii", "backslashreplace")
