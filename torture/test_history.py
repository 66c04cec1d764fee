"""What the torture finds in the records of workers, and what it excuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from .history import CALL_SECONDS_MAX, OVERTAKEN_MAX, FaultInterval, History
from .worker_process import TTL_SECONDS, WorkerProcess

KEY = "busy.1.0"


class Records:
    """The records of one worker, and the history that reads them. The run began at 0."""

    def __init__(self, folder: Path) -> None:
        self.worker = WorkerProcess("python", "one", folder)
        self.history = History([self.worker], 0.0)

    def write(self, operation: str, owner: str, begin: float, end: float | None, outcome: str, **more: Any) -> None:
        record = {"client": "one", "operation": operation, "key": KEY, "owner": owner, "sent_at": begin}
        record |= {"responded_at": None if outcome == "unknown" else end, "ended_at": end, "outcome": outcome}
        with self.worker.records.open("a") as file:
            file.write(json.dumps(record | {"ttl_seconds": TTL_SECONDS} | more) + "\n")

    def violations(self) -> list[str]:
        self.history.read()
        self.history.check(all_epochs=True)
        found = [violation.partition(":")[0] for fault in self.history.faults for violation in fault.violations]
        self.history.faults[0].violations.clear()
        return found


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def test_a_guard_that_believes_while_another_holds_is_a_violation(records: Records) -> None:
    """LEASE-6, SDK-4: although its acquire alone would cover only the first seconds."""
    records.write("acquire", "a", 1.0, 1.1, "granted", fencing_token=1)
    records.write("renew", "a", 1.2, 1.2, "granted", fencing_token=1, ttl_seconds=9.0)
    assert records.violations() == []
    records.write("acquire", "a", 1.0, 1.1, "granted", fencing_token=1)
    records.write("renew", "a", 1.2, 1.2, "granted", fencing_token=1, ttl_seconds=9.0)
    records.write("acquire", "b", 9.0, 9.1, "granted", fencing_token=2)
    assert sorted(records.violations()) == ["lease_lost", "two_holders"]


def test_a_release_that_may_have_been_sent_before_a_kill_ends_the_lease(records: Records) -> None:
    """LEASE-9: the worker wrote that it was about to release, and no outcome."""
    records.write("acquire", "a", 1.0, 1.1, "granted", fencing_token=1)
    records.write("release", "a", 1.2, None, "unknown")
    records.write("acquire", "b", 1.3, 1.4, "granted", fencing_token=2)
    assert records.violations() == []


def test_a_line_that_is_written_in_two_parts_is_read_once(records: Records) -> None:
    records.write("acquire", "a", 1.0, 1.1, "granted", fencing_token=1)
    whole = records.worker.records.read_bytes()
    for length in (10, len(whole) - 1, len(whole)):
        records.worker.records.write_bytes(whole[:length])
        records.history.read()
    records.history.read()
    assert records.history.operations == {"acquire granted": 1}


def test_a_call_that_takes_too_long_is_a_violation_unless_its_process_was_paused(records: Records) -> None:
    """SDK-1"""
    records.write("acquire", "a", 1.0, CALL_SECONDS_MAX + 13.0, "held", wait_seconds=12)
    assert records.violations() == []
    records.write("acquire", "b", 1.0, CALL_SECONDS_MAX + 2.0, "unknown")
    assert records.violations() == ["slow"]
    records.worker.paused.append((5.0, 9.0))
    records.write("acquire", "c", 1.0, CALL_SECONDS_MAX + 4.0, "unknown")
    assert records.violations() == []


def test_a_starved_waiter_is_a_violation_unless_a_fault_disturbed_it(records: Records) -> None:
    """WAIT-10"""

    def starve() -> None:
        records.write("acquire", "slow", 1.0, 13.0, "granted", fencing_token=1_000, wait_seconds=12)
        for number in range(OVERTAKEN_MAX + 1):
            owner, begin = f"fast {number}", 2 + number / 100
            records.write("acquire", owner, begin, begin + 0.001, "granted", fencing_token=number + 1)
            records.write("release", owner, begin + 0.002, begin + 0.003, "done")

    starve()
    assert records.violations() == ["starved"]
    assert records.history.longest_wait_grants == OVERTAKEN_MAX + 1
    records.history.faults.append(FaultInterval("node: paused", 3.0, 4.0))
    starve()
    assert records.violations() == []


def test_an_early_loss_is_excused_only_after_a_clock_was_set(records: Records) -> None:
    """LEASE-17"""

    def lose() -> None:
        records.write("acquire", "a", 1.0, 1.1, "granted", fencing_token=1)
        records.write("renew", "a", 2.0, 2.1, "lost")

    lose()
    assert records.violations() == ["lease_lost"]
    records.history.date_steps.append(1.5)
    lose()
    assert records.violations() == []
