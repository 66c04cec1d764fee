"""What people may ask about a hold: who acquired it, how it began, how often it was renewed (HISTORY-2), and its entry
in the history (HISTORY-1). No rule of a lease depends on these.
"""

from typing import Final, Literal

from msgspec import Struct

CLIENT_LENGTH_MAX: Final = 128  # characters of a User-Agent that are kept

Began = Literal["free", "taken_over", "waited"]
Ended = Literal["released", "expired", "forced"]


class Requester(Struct, frozen=True, array_like=True, gc=False):
    """Who sent a request: its service key, its address, and its client as `User-Agent` names it."""

    key_id: str
    key_name: str
    address: str | None = None
    client: str | None = None


class HoldFacts(Struct, frozen=True, array_like=True, gc=False):
    """How a hold began, and how many renewals it had. `waited_ms` is 0 unless it began as `waited`."""

    by: Requester
    began: Began
    waited_ms: int = 0
    renewals: int = 0

    def renewed(self) -> "HoldFacts":
        """The facts after one more renewal."""
        return HoldFacts(self.by, self.began, self.waited_ms, self.renewals + 1)

    def waited(self, waited_ms: int) -> "HoldFacts":
        """The facts of a hold that was granted to a waiter after this time."""
        return HoldFacts(self.by, "waited", waited_ms)


class HoldEntry(Struct, frozen=True, array_like=True, gc=False):
    """One hold. `ended` and `ended_at_ms` are None while it lasts, `facts` if a node of 0.1.0 began it.

    `renewed_at_ms` is the instant of the last renewal, None if there was none. `ended_by` is the name of the service
    key that forced the release, and `reason` the reason that it gave.
    """

    fencing_token: int
    began_at_ms: int
    expires_at_ms: int
    renewed_at_ms: int | None = None
    holder: str | None = None
    facts: HoldFacts | None = None
    ended: Ended | None = None
    ended_at_ms: int | None = None
    ended_by: str | None = None
    reason: str | None = None

    def held_ms(self, now_ms: int) -> int:
        """How long the hold lasted, or lasts so far."""
        return max(0, (now_ms if self.ended_at_ms is None else self.ended_at_ms) - self.began_at_ms)
