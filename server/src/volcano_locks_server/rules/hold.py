"""What is known about a hold besides its lease: who acquired it, how it began, how often it was renewed (HISTORY-2).

No rule of a lease depends on these facts; they are for people who ask who held a lock.
"""

from typing import Final, Literal

from msgspec import Struct

CLIENT_LENGTH_MAX: Final = 128  # characters of a User-Agent that are kept

Began = Literal["free", "taken_over", "waited"]


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
