"""Checks that at most one holder believes in its lease at any true instant.

A holder believes in its lease while its own code says that it is held. Two beliefs can only begin to overlap when one
of them begins, so that is when all others of its lock are asked. A force release ends every certainty: leases that
began before it can have taken effect for the last time are not compared.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from ..network import LIFETIME_SECONDS
from ..world import World, shown_token

FORCED_SECONDS: Final = LIFETIME_SECONDS + 30.0  # after this, an unanswered force release has no effect any more


@dataclass(slots=True, eq=False)
class _Belief:
    client: str
    token: int
    began_at: float
    is_held: Callable[[], bool]


class Holders:
    def __init__(self, world: World) -> None:
        self._world: Final = world
        self._beliefs: Final[defaultdict[str, list[_Belief]]] = defaultdict(list)
        self._forced_until: Final[defaultdict[str, float]] = defaultdict(lambda: -inf)

    def believes(self, client: str, key: str, token: int, is_held: Callable[[], bool]) -> None:
        """From now on that client believes that it holds the lock, while `is_held`."""
        if not is_held():
            return
        self._world.note(client, f"relies on its lease, {shown_token(token)}", key)
        others = self._beliefs[key] = [belief for belief in self._beliefs[key] if belief.is_held()]
        for other in others:
            if other.token != token and self._forced_until[key] < other.began_at:
                self._world.violate(
                    "two_holders",
                    f"{client} ({shown_token(token)}) and {other.client} ({shown_token(other.token)}, since "
                    f"{other.began_at:.3f}) both believe that they hold {key}",
                    key,
                    since=other.began_at,
                )
        others.append(_Belief(client, token, self._world.now, is_held))

    def believers(self) -> set[str]:
        """The clients that believe in a lease now."""
        return {one.client for beliefs in self._beliefs.values() for one in beliefs if one.is_held()}

    def force_release_sent(self, key: str) -> None:
        self._forced_until[key] = max(self._forced_until[key], self._world.now + FORCED_SECONDS)
