"""The records that clients write, the grants and violations derived from them, and the checker's tolerances."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict

TOLERANCE_SECONDS: Final = 0.002
ARRIVAL_SECONDS: Final = 2.0
DISCONNECT_SECONDS: Final = 3.0
OVERTAKEN_MAX: Final = 200

UNKNOWN: Final = ("unknown", "disconnected")
"""Outcomes after which the request may or may not have taken effect."""

OperationName = Literal["acquire", "renew", "release", "force_release", "get"]
OutcomeName = Literal["granted", "lost", "held", "free", "done", "refused", "unknown", "disconnected"]
ViolationKind = Literal[
    "token_repeated", "order_broken", "two_holders", "lease_lost", "overtaken", "starved", "granted_after_disconnect"
]


class RequestRecord(Struct, frozen=True, gc=False):
    """One request of one client, in seconds of the clock that all clients share.

    `owner` names the acquisition: its owner token, or a name for it. `node`: which of several nodes got the request.
    `wait_seconds`: the wait of an acquire. `fencing_token`: that of the response, for a get too.

    `outcome` of an acquire or renew: `granted`, `lost` (lock_ownership_lost) or `held` (lock_held); of a release or
    force release: `done` or `refused`; of a get: `held` or `free`. Any request is `unknown`, with `responded_at` None,
    if there was no response or a 503; and `disconnected` at `responded_at` if its client disconnected.
    """

    client: str
    operation: OperationName
    key: str
    owner: str
    sent_at: float
    responded_at: float | None
    outcome: OutcomeName
    ttl_seconds: float = 0.0
    fencing_token: int | None = None
    wait_seconds: float = 0.0
    node: str = ""


@dataclass(frozen=True)
class Violation:
    """Something that cannot have happened, with the records that contradict each other."""

    kind: ViolationKind
    key: str
    message: str
    records: tuple[RequestRecord, ...]


class Grant(Struct, frozen=True):
    """An acknowledged grant.

    Its client is sure to hold the lock until `sure_until`. Another client may hold it from `lasts_until` on.
    """

    record: RequestRecord
    token: int
    responded_at: float
    sure_until: float
    lasts_until: float


@dataclass(frozen=True)
class Tolerances:
    """What the checker allows for.

    `tolerance_seconds`: how far the clocks of server and clients may differ. `arrival_seconds`: how long a request may
    take to reach its queue position; with inf, no order of arrival is known. `disconnect_seconds`: how long a server
    may take to notice a disconnect and revoke the grant. `overtaken_max`: how often later waiters on any node may
    overtake a waiter.
    """

    tolerance_seconds: float = TOLERANCE_SECONDS
    arrival_seconds: float = ARRIVAL_SECONDS
    disconnect_seconds: float = DISCONNECT_SECONDS
    overtaken_max: int = OVERTAKEN_MAX


DEFAULT_TOLERANCES: Final = Tolerances()


def write(records: Iterable[RequestRecord], path: Path) -> None:
    """Write one JSON record a line."""
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records), "utf-8")


def read(*paths: Path) -> list[RequestRecord]:
    """The records in several clients' files, without a last line that was cut off when its process ended."""
    records = []
    for path in paths:
        lines = path.read_text("utf-8").split("\n")
        records += [RequestRecord(**json.loads(line)) for line in lines[:-1]]
    return records
