"""The network between the nodes and their store: delays, and what a fault does to a request on it."""

from math import log
from random import Random
from typing import Final

from ..world import World


class StoreWire:
    """Delays of one way between a node and its store. `cut_until` by node: true time until which nothing passes.

    `lose_reply`: the share of writes whose response is lost. `slow_until`: until then a way may take `slow_seconds`.
    """

    def __init__(self, world: World, random: Random, *, fastest: float = 0.000_2, spread: float = 0.001) -> None:
        self.cut_until: Final[dict[str, float]] = {}
        self.lose_reply = 0.0
        self.slow_until = 0.0
        self.slow_seconds = 1.0
        self._world: Final = world
        self._random: Final = random
        self._fastest: Final = fastest
        self._spread: Final = spread

    def is_cut(self, node: str) -> bool:
        return bool(self.cut_until) and self._world.now < self.cut_until.get(node, 0.0)

    def delay(self) -> float:
        seconds = self._fastest - self._spread * log(1.0 - self._random.random())
        if self._world.now < self.slow_until:
            seconds += self._random.random() * self.slow_seconds
        return seconds

    def loses_reply(self) -> bool:
        return self.lose_reply > 0 and self._random.random() < self.lose_reply
