"""Shrinks a failing run: fewer operations, faults, clients, locks, streams and nodes, as long as it fails alike."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from .plan import Plan
from .run import Outcome, run

SEEDS_TRIED: Final = 2
RUNS_MAX: Final = 120


def shrink(outcome: Outcome, report: Callable[[str], None] = lambda _line: None) -> Outcome:
    """The smallest run found that breaks the same promise."""
    assert outcome.violation is not None
    kind, runs = outcome.violation.kind, 0
    smallest = outcome
    while runs < RUNS_MAX:
        for smaller in _smaller(smallest):
            runs += 1
            tried = run(smaller)
            if tried.violation is not None and tried.violation.kind == kind:
                smallest = tried
                report(f"fails too: {tried.plan}")
                break
            if runs >= RUNS_MAX:
                break
        else:
            return smallest
    return smallest


def _smaller(outcome: Outcome) -> Iterator[Plan]:
    """Plans to try, the largest cuts first. Another seed of a smaller plan may fail although this one does not."""
    plan = replace(outcome.plan, operations=outcome.operations)
    cuts: list[Plan] = [
        replace(plan, clients=max(1, plan.clients // 2)),
        replace(plan, keys=1),
        replace(plan, nodes=max(1, plan.nodes - 1)),
        replace(plan, streams=0),
        replace(plan, streams=plan.streams // 2),
        replace(plan, quota=0),
        replace(plan, is_pooled=False),
    ]
    cuts += [replace(plan, faults=tuple(kept for kept in plan.faults if kept != fault)) for fault in plan.faults]
    for cut in cuts:
        if cut != plan:
            for seed in range(SEEDS_TRIED):
                yield replace(cut, seed=plan.seed + seed * 1_000_003)
    for seed in range(1, 1 + SEEDS_TRIED):
        yield replace(plan, operations=max(1, plan.operations // 2), seed=plan.seed + seed * 1_000_003)
