"""Passes the clients' records to the checker of histories that all test trees share (`conformance.history`).

It trusts no statement of the server and does not know the engines, so it is independent of the other checks. Records
are checked lock by lock, in windows that overlap by more than the life of a request.
"""

from collections import defaultdict
from math import inf
from typing import Final

from conformance.history.checker import check
from conformance.history.records import RequestRecord, Tolerances
from msgspec.structs import replace

from ..plan import Plan
from ..world import World, shown_token

WINDOW_RECORDS: Final = 512
OVERLAP_SECONDS: Final = 60.0
TOLERANCES: Final = Tolerances(tolerance_seconds=0.9, arrival_seconds=inf, disconnect_seconds=inf, overtaken_max=10**9)


class Histories:
    """The order of waiters and disconnects are checked elsewhere, with the true order of arrival."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._plan: Final = plan
        self._world: Final = world
        self._records: Final[defaultdict[str, list[RequestRecord]]] = defaultdict(list)
        self._count = 0
        self._open: Final[dict[int, RequestRecord]] = {}
        self._new: Final[defaultdict[str, int]] = defaultdict(int)

    def sent(self, record: RequestRecord) -> int:
        """A request was sent: until it ends, it may take effect at any moment. Returns its number."""
        self._count += 1
        self._open[self._count] = record
        return self._count

    def ended(self, number: int, record: RequestRecord) -> None:
        del self._open[number]
        if record.operation == "force_release":  # the network may repeat it after its response
            record = replace(record, responded_at=None, outcome="unknown")
        records = self._records[record.key]
        records.append(record)
        self._new[record.key] += 1
        if self._new[record.key] >= WINDOW_RECORDS:
            self._check(record.key)

    def check_all(self) -> None:
        for key in list(self._records):
            self._check(key)

    def _check(self, key: str) -> None:
        if not self._plan.clocks_are_bounded:
            self._records[key].clear()
            return
        records, now = self._records[key], self._world.now
        self._new[key] = 0
        in_progress = [one for one in self._open.values() if one.key == key]
        for found in check([*records, *in_progress], TOLERANCES):
            if self._plan.clocks_jump and found.kind == "lease_lost" and found.records[1].outcome == "lost":
                continue  # an owner may lose its lease early (LEASE-17)
            involved = "; ".join(
                f"{one.client} {one.operation} at {one.node}, sent at {one.sent_at:.3f}: {one.outcome}, "
                f"{shown_token(one.fencing_token)}"
                for one in found.records
            )
            since = min(one.sent_at for one in found.records)
            self._world.violate(found.kind, f"{key}: {found.message} ({involved})", key, since=since)
        self._records[key] = [one for one in records if (one.responded_at or one.sent_at) > now - OVERLAP_SECONDS]
