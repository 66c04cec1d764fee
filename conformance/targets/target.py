"""What a face is: one way into the product, spoken to in plain verbs.

    answer = face.do("acquire", {"actor": "ann", "key": "k", "ttl_seconds": 30, "lease": "ann_1", "token": "…"})
    → {"fencing_token": 1784556000000, "expires_at_ms": 1784556030000}

Arguments and answers are JSON values, so a face in another language is a process that reads one verb a line and
writes one answer a line. The verbs and their arguments are told in README.md. A failure that a caller of the product is
told about is an answer `{"error": code}`, with `retry_after_seconds` where it says so. Anything that a caller
must not see (a crash, a bare exception) is raised, and fails the scenario.

A face is fresh for each scenario: an empty store, a clock at its beginning, no outage.
"""

from collections.abc import Mapping
from typing import Protocol

Answer = Mapping[str, object]


class Face(Protocol):
    """One way into the product, under a clock that the scenario moves."""

    makes_tokens: bool
    """Whether callers of this face leave the making of owner tokens to it, as a client does."""

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        """Do one verb and return when it is over."""
        ...

    def advance(self, ms: int) -> None:
        """Let time go by. What is due on the way happens at its time, and is over when this returns."""
        ...

    def now_ms(self) -> int:
        """The instant by the store's clock, in milliseconds since 1970."""
        ...

    def close(self) -> None:
        """End whatever the face began. Raises if something of it failed unseen."""
        ...
