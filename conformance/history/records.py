"""What clients write down, what follows from it, and what is allowed for: the words of `history`."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

TOLERANCE_SECONDS: Final = 0.002
ARRIVAL_SECONDS: Final = 2.0
NOTICE_SECONDS: Final = 3.0
OVERTAKEN_MAX: Final = 200

UNKNOWN: Final = ("unknown", "left")
"""Outcomes of which nobody can say what became of the request."""

Operation = Literal["acquire", "renew", "release", "force_release", "get"]
Outcome = Literal["granted", "lost", "held", "free", "done", "refused", "unknown", "left"]
Kind = Literal[
    "token_repeated", "order_broken", "two_holders", "lease_lost", "passed_over", "starved", "granted_to_gone"
]


@dataclass(frozen=True)
class Event:
    """One request of one client, in seconds of the clock they share.

    `owner` names the acquisition: its owner token, or a name for it. `outcome`: acquire and renew are `granted`,
    `lost` (lock_ownership_lost) or `held` (lock_held); release and force release `done` or `refused`; get `held` or
    `free`; any is `unknown` where no answer came, or one that says nothing (503). Then `answered_at` is None. One whose
    client hung up is `left`, at `answered_at`. `wait_seconds`: how long an acquire was ready to wait. `node`: which of
    several was asked. `fencing_token`: as told, also by a get.
    """

    client: str
    operation: Operation
    key: str
    owner: str
    sent_at: float
    answered_at: float | None
    outcome: Outcome
    ttl_seconds: float = 0.0
    fencing_token: int | None = None
    wait_seconds: float = 0.0
    node: str = ""


@dataclass(frozen=True)
class Violation:
    """What cannot have happened, with the events that say it did."""

    kind: Kind
    key: str
    message: str
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Grant:
    """An acknowledged grant with what follows from it.

    `sure_until` is when its client stops being sure, `lasts_until` the earliest instant at which the lock may
    rightly be another's.
    """

    event: Event
    token: int
    answered_at: float
    sure_until: float
    lasts_until: float


@dataclass(frozen=True)
class Slack:
    """What is allowed for. `tolerance_seconds` is how far server's and clients' clocks may disagree, `arrival_seconds`
    how long a request may take to its place in a line (inf: nobody is known to have come first), `notice_seconds` how
    long a hang-up may take to be noticed and a grant to be given back, `overtaken_max` how often one who waits may be
    passed by those who came later.
    """

    tolerance_seconds: float = TOLERANCE_SECONDS
    arrival_seconds: float = ARRIVAL_SECONDS
    notice_seconds: float = NOTICE_SECONDS
    overtaken_max: int = OVERTAKEN_MAX


USUAL_SLACK: Final = Slack()


def write(events: Iterable[Event], path: Path) -> None:
    """One event a line, as JSON."""
    path.write_text("".join(json.dumps(asdict(event)) + "\n" for event in events), "utf-8")


def read(*paths: Path) -> list[Event]:
    """The events of several clients' files. A last line that was cut off by the end of its process is left out."""
    events = []
    for path in paths:
        lines = path.read_text("utf-8").split("\n")
        events += [Event(**json.loads(line)) for line in lines[:-1]]
    return events
