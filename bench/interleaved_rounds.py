"""Interleaved rounds: the targets of a benchmark run one after the other, each alone and in a fresh folder.

The order rotates by one each round, so that a slow minute or a warm cache does not always affect the same target.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from .baselines import Load
from .wrk import RoundResult

T = TypeVar("T")
Target = Callable[[Path], AbstractContextManager[Load]]


def rotated(items: Sequence[T], round_number: int) -> list[T]:
    """The items in the order of this round."""
    first = round_number % len(items)
    return [*items[first:], *items[:first]]


def run_interleaved(
    targets: Mapping[str, Target], folder: Path, *, rounds: int, seconds: float, warm_up_seconds: float
) -> dict[str, list[RoundResult]]:
    """The results of each target's rounds, by its name. `seconds` is the length of one round of one target."""
    results: dict[str, list[RoundResult]] = {name: [] for name in targets}
    for number in range(rounds):
        for position, name in enumerate(rotated(list(targets), number)):
            fresh = folder / f"round-{number}-{position}"
            fresh.mkdir()
            with targets[name](fresh) as load:
                load(warm_up_seconds)
                results[name].append(load(seconds))
    return results
