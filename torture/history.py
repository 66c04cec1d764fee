"""Reads the workers' records while they are written, and checks the history of each lock when its epoch is over."""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from conformance.history.checker import RequestRecord, Tolerances, check
from msgspec.structs import replace

from .worker_process import EPOCH_SECONDS, TIMEOUT_SECONDS, TTL_SECONDS, WorkerProcess, now

SETTLED_SECONDS = 60  # a call that began in an epoch has certainly returned by then
CALL_SECONDS_MAX = 3 * TIMEOUT_SECONDS + 15
"""An operation sends at most two requests and a release. The rest is for a busy machine."""
CLOCK_SECONDS = 0.1
OVERTAKEN_MAX = 100
"""Of a waiter while nothing fails. Nodes take turns of at most 8 grants (WAIT-10)."""
TOLERANCES = Tolerances(tolerance_seconds=CLOCK_SECONDS, arrival_seconds=inf, overtaken_max=OVERTAKEN_MAX)


@dataclass
class FaultInterval:
    """One fault, from its beginning until the service had recovered from it (inf: not yet)."""

    kind: str
    began_at: float
    ended_at: float = inf
    recovery_seconds: float | None = None
    operations: int = 0
    violations: list[str] = field(default_factory=list)


class History:
    """All records of some workers. `faults` and `date_steps` are in the order of time, and grow during the run."""

    def __init__(self, workers: Sequence[WorkerProcess], began_at: float) -> None:
        self.faults = [FaultInterval("none", began_at)]
        self.date_steps: list[float] = []
        self.operations: Counter[str] = Counter()
        self.longest_wait_grants = 0
        self.longest_call_seconds = 0.0
        self._workers = workers
        self._began_at = began_at
        self._read_bytes: Counter[Path] = Counter()
        self._unchecked: defaultdict[str, list[RequestRecord]] = defaultdict(list)

    def violation(self, message: str, at: float | None = None) -> None:
        """Count a violation to the fault that was active at that time."""
        self._fault_at(now() if at is None else at).violations.append(message)

    def read(self) -> None:
        """Read what the workers have written since the last call."""
        for worker in self._workers:
            with worker.records.open("rb") as file:
                file.seek(self._read_bytes[worker.records])
                unread = file.read()
            complete = unread[: unread.rfind(b"\n") + 1]
            self._read_bytes[worker.records] += len(complete)
            for line in complete.splitlines():
                self._add(worker, json.loads(line))

    def check(self, *, all_epochs: bool = False) -> None:
        """Check the locks of all epochs that are over, and forget their records."""
        for key in list(self._unchecked):
            epoch = int(key.rpartition(".")[2])
            ended_at = self._began_at + (epoch + 1) * EPOCH_SECONDS
            if all_epochs or now() > ended_at + SETTLED_SECONDS:
                self._check_lock(self._unchecked.pop(key))

    def _check_lock(self, records: list[RequestRecord]) -> None:
        for violation in check(map(self._excused, records), TOLERANCES):
            last = max(violation.records, key=lambda record: record.sent_at)
            self.violation(f"{violation.kind}: {violation.message}: {violation.records}", last.sent_at)
        for grants in _grants_while_waiting(records):
            self.longest_wait_grants = max(self.longest_wait_grants, grants)

    def _add(self, worker: WorkerProcess, fields: dict[str, object]) -> None:
        ended_at = fields.pop("ended_at")
        record = RequestRecord(**fields)  # type: ignore[arg-type]
        self._unchecked[record.key].append(record)
        if not isinstance(ended_at, float) or (record.operation == "renew" and ended_at == record.sent_at):
            return  # an announcement or a belief, not a call
        self.operations[f"{record.operation} {record.outcome}"] += 1
        self._fault_at(record.sent_at).operations += 1
        paused = sum(max(0.0, min(ended_at, end) - max(record.sent_at, begin)) for begin, end in worker.paused)
        took = ended_at - record.sent_at - record.wait_seconds - paused
        self.longest_call_seconds = max(self.longest_call_seconds, took)
        if took > CALL_SECONDS_MAX:
            message = f"slow: took {took:.1f} s beyond its wait, more than {CALL_SECONDS_MAX}: {record}"
            self.violation(message, record.sent_at)

    def _excused(self, record: RequestRecord) -> RequestRecord:
        """The record as it counts: a clock step may end a lease early for its holder (LEASE-17), and a fault may let a
        waiter be overtaken."""
        if record.operation == "renew" and record.outcome == "lost":
            responded_at = record.responded_at or inf
            if any(step <= responded_at <= step + 2 * TTL_SECONDS for step in self.date_steps):
                return replace(record, outcome="unknown", responded_at=None)
        if record.wait_seconds and self._is_disturbed(record.sent_at, record.responded_at or inf):
            return replace(record, wait_seconds=0)
        return record

    def _is_disturbed(self, begin: float, end: float) -> bool:
        faults = self.faults[max(1, self._number_at(begin)) : self._number_at(end) + 1]
        return any(fault.kind != "none" and fault.ended_at >= begin for fault in faults)

    def _number_at(self, at: float) -> int:
        return bisect_right(self.faults, at, key=lambda fault: fault.began_at) - 1

    def _fault_at(self, at: float) -> FaultInterval:
        """The fault that was active then, or the first entry, which stands for none."""
        number = self._number_at(at)
        return self.faults[number] if number > 0 and at <= self.faults[number].ended_at else self.faults[0]


def _grants_while_waiting(records: Sequence[RequestRecord]) -> Iterator[int]:
    """For each granted waiter, how many acquires that were sent later were granted before."""
    granted = [record for record in records if record.operation == "acquire" and record.outcome == "granted"]
    for waiter in granted:
        if waiter.wait_seconds and waiter.fencing_token is not None:
            yield sum(
                one.sent_at > waiter.sent_at and (one.fencing_token or 0) < waiter.fencing_token for one in granted
            )
