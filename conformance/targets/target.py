"""The interface of a target: one way into the product that acts out scenario steps.

    result = target.do("acquire", {"actor": "ann", "key": "k", "ttl_seconds": 30, "lease": "ann_1", "token": "…"})
    → {"fencing_token": 1784556000000, "expires_at_ms": 1784556030000}

Arguments and results are JSON values, so a target can be a process in another language that reads one verb a line and
writes one result a line. README.md lists the verbs and their arguments. A failure that a caller can see is the result
`{"error": code}`, with `retry_after_seconds` if the product reports it. Anything that a caller must not see (a crash, a
bare exception) is raised, and fails the scenario.

Each scenario gets a new target: an empty store, a clock at its start, no outage.
"""

from collections.abc import Mapping
from typing import Protocol

Result = Mapping[str, object]


class Target(Protocol):
    """One way into the product, under a clock that the scenario moves."""

    makes_tokens: bool
    """Whether the target creates owner tokens itself, as a client does."""

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        """Act out one verb and return when it is complete."""
        ...

    def advance(self, ms: int) -> None:
        """Advance the clock. Everything due on the way happens at its time and is complete when this returns."""
        ...

    def now_ms(self) -> int:
        """The store's clock, in milliseconds since 1970."""
        ...

    def close(self) -> None:
        """End everything the target started. Raises if a part of it failed unnoticed."""
        ...
