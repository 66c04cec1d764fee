"""Peers that take turns in one run, each alone on the machine with a fresh folder.

The order moves by one each round, so that neither a slow minute nor a warm cache falls on one of them alone.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from .peers import Load
from .wrk import Measured

Peer = Callable[[Path], AbstractContextManager[Load]]


def in_turns(
    peers: Mapping[str, Peer], folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float
) -> dict[str, list[Measured]]:
    """What each peer's rounds measured, by its name; `seconds` is the length of one round of one peer."""
    names = list(peers)
    measured: dict[str, list[Measured]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for place, name in enumerate(names[first:] + names[:first]):
            fresh = folder / f"round-{number}-{place}"
            fresh.mkdir()
            with peers[name](fresh) as load:
                load(warm_up_seconds)
                measured[name].append(load(seconds))
    return measured
