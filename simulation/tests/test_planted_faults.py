"""The simulation finds planted faults, and explains a failing seed."""

from pathlib import Path
from typing import Final

import pytest
from simulation import planted
from simulation.plan import plan_of
from simulation.run import run
from simulation.shrink import shrink
from simulation.stores.observed import Update
from simulation.timeline import WIDTH, timeline

from volcano_locks_server.rules import lease

QUICK: Final = ("early-takeover", "last-waiter-first", "lost-write")


@pytest.mark.parametrize("patch", planted.patches(), ids=lambda patch: patch.stem)
def test_each_patch_applies_and_says_what_it_breaks(patch: Path) -> None:
    assert planted.applies(patch)
    assert planted.meaning(patch).endswith(".")


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found(name: str) -> None:
    found = planted.search(planted.FOLDER / f"{name}.patch", operations_max=60_000)
    assert found.kind is not None


def test_a_failing_seed_is_shrunk_to_a_short_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "GRACE_MS", -4_000)
    outcome = next(found for seed in range(1, 40) if (found := run(plan_of(seed, 4_000))).violation is not None)
    smaller = shrink(outcome)
    assert smaller.violation is not None
    assert smaller.operations <= outcome.operations
    assert len(smaller.plan.faults) <= len(outcome.plan.faults)
    shown = timeline(smaller)
    assert max(map(len, shown.splitlines())) <= WIDTH
    assert "believe that they hold" in " ".join(shown.split())
    assert "commits: held by" in shown
    assert "The broken promise:" in shown
    assert shown.splitlines()[-1].split()[2:] == ["relies", "on", "its", "lease,", "token", shown.split()[-1]]


def test_an_update_remembers_what_its_last_step_saw() -> None:
    update = Update("node-1")
    assert (update.node, update.before, update.changed) == ("node-1", {}, {})
