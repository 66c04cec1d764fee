"""Runs one plan, and reports what was checked and the first violation."""

from dataclasses import dataclass
from typing import Final

from .deployment import Deployment
from .faults import Faults
from .plan import Plan
from .readers import Reader
from .workload import Worker, watch_calls
from .world import Note, Violation, World, collector_at_rest, seeded_entropy

TICK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Outcome:
    """`digest` is that of the whole history; `notes` are its last lines if there is a violation."""

    plan: Plan
    operations: int
    true_seconds: float
    digest: str
    violation: Violation | None
    notes: tuple[Note, ...]
    outcomes: dict[str, int]


def run(plan: Plan) -> Outcome:
    """Run until the plan's operations are done or a violation is found."""
    with collector_at_rest():
        return _outcome(plan)


def _outcome(plan: Plan) -> Outcome:
    world = World(str(plan.seed))
    with seeded_entropy(str(plan.seed)):
        deployment = Deployment(plan, world)
        checker = deployment.checker
        try:
            _run(deployment)
            checker.finish()
        finally:
            for node in deployment.nodes:
                node.bury()
    return Outcome(
        plan,
        checker.operations,
        world.now,
        world.digest,
        world.violation,
        () if world.violation is None else tuple(world.notes),
        dict(sorted(checker.outcomes.items())),
    )


def _run(deployment: Deployment) -> None:
    plan, world, checker = deployment.plan, deployment.world, deployment.checker
    for node in deployment.nodes:
        node.start()
    workers = [Worker(deployment, number + 1) for number in range(plan.clients)]
    for number in range(plan.streams):
        Reader(deployment, number + 1)
    Faults(deployment, workers)

    def tick() -> None:
        checker.tick()
        watch_calls(world, workers, checker)
        world.after(TICK_SECONDS, tick)

    tick()
    world.run()
