"""200,000 operations over 20 fixed seeds have no violation, and a seed gives the same history everywhere."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Final

import pytest
from simulation.plan import plan_of
from simulation.profiles import PROFILES
from simulation.run import run
from simulation.timeline import timeline

SEEDS: Final = range(1, 21)
OPERATIONS: Final = 10_000  # of each seed: about 90 s of processor time in all


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fixed_seed_has_no_violation(seed: int) -> None:
    outcome = run(plan_of(seed, OPERATIONS))
    assert outcome.violation is None, "\n" + timeline(outcome)
    assert outcome.operations >= OPERATIONS
    assert outcome.outcomes["acquire granted"] >= 20, "a run without leases checks nothing"


@pytest.mark.parametrize(("seed", "operations"), [(20263, 3_000), (20267, 1_500), (20306, 3_500), (30031, 4_000)])
def test_a_seed_that_a_check_once_rejected_has_no_violation(seed: int, operations: int) -> None:
    """A waiter of a paused node; nodes that refuse because their clocks are ahead; a release after its own copy."""
    outcome = run(plan_of(seed, operations))
    assert outcome.violation is None, "\n" + timeline(outcome)


def test_seeds_rotate_through_all_profiles_and_engines() -> None:
    drawn = {(plan.profile, plan.store) for plan in (plan_of(seed, 1) for seed in range(3 * len(PROFILES)))}
    assert drawn == {(name, store) for name, profile in PROFILES.items() for store in profile.stores}
    assert {plan_of(seed, 1).profile for seed in SEEDS} == set(PROFILES)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_gives_the_same_history_in_every_process(seed: int) -> None:
    """Whatever the hash seed is, and whatever ran before in the process."""
    here = run(plan_of(seed, 600)).digest
    code = (
        f"from simulation.plan import plan_of; from simulation.run import run; print(run(plan_of({seed}, 600)).digest)"
    )
    for hash_seed in ("0", "4711"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


def test_the_clients_of_a_run_acquire_wait_renew_and_release() -> None:
    drawn = plan_of(7, 2_000, store="etcd", profile="mixed")
    outcome = run(replace(drawn, nodes=2, clients=8, keys=2, streams=2, faults=()))
    assert outcome.violation is None, timeline(outcome)
    for done in ("acquire granted", "acquire held", "get held", "release done", "renew granted"):
        assert outcome.outcomes[done] > 20, outcome.outcomes
