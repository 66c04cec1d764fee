"""Whether a history of calls is one that the lease rules allow.

Clients write down each call: what they asked, when, what they were told, and when they heard it, all by one steady
clock of the machine they share. `faults` then looks for what no correct service can have told them:

    token_repeated    two acquisitions of a lock have one fencing token (LEASE-3)
    token_order       a later acquisition has a lower fencing token (LEASE-3)
    early_takeover    a lease began while another lived, its grace included: two holders (LEASE-6, LEASE-7)
    lease_lost        an acknowledged lease was denied or forgotten while it lived (LEASE-4, LEASE-8, LEASE-14)

The theory. A call was judged at one instant between `asked_ms` and `answered_ms`; which one, nobody knows. So only
what is certain counts. What was asked at t with a TTL lives at least until t + TTL. What was answered at t was
judged by then. What was never answered, or answered without saying what became of it (503), may have been done at
any instant since it was asked, or not at all: an extension may have shortened the lease, a release may have ended it.

Not promised: that every broken history is found. What can be explained by some choice of instants is let pass, and
whether a lock that is free can be had (that the service does anything at all) is for the test to count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

MARGIN_MS: Final = 1_000
GRACE_MS: Final = 1_000

Verb = Literal["acquire", "renew", "release", "force_release", "get"]
Told = Literal["granted", "freed", "held", "free", "lock_held", "lock_ownership_lost", "nothing"]
FaultKind = Literal["token_repeated", "token_order", "early_takeover", "lease_lost"]


@dataclass(slots=True)
class Call:
    """One call. `owner` names the owner token behind it, one name for each token; empty for get and force_release.

    `told` is "nothing" and `answered_ms` None until an answer says what became of it.
    """

    verb: Verb
    key: str
    owner: str
    ttl_seconds: int
    asked_ms: float
    answered_ms: float | None = None
    told: Told = "nothing"
    fencing_token: int | None = None


class History:
    """What clients write down. `now_ms` is their common clock; any thread may write."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms: Final = now_ms
        self.calls: Final[list[Call]] = []

    def ask(self, verb: Verb, key: str, owner: str = "", ttl_seconds: int = 0) -> Call:
        """A call is about to be sent."""
        call = Call(verb, key, owner, ttl_seconds, self._now_ms())
        self.calls.append(call)
        return call

    def tell(self, call: Call, told: Told, fencing_token: int | None = None) -> None:
        """The answer to it came. For an answer that leaves open what became of the call, do not call this."""
        call.answered_ms, call.told, call.fencing_token = self._now_ms(), told, fencing_token


class Fault(NamedTuple):
    """What cannot be: its kind, the lock, and the calls that show it, in words."""

    kind: FaultKind
    key: str
    what: str


def faults(calls: Iterable[Call], *, slack_ms: float = 1.0) -> list[Fault]:
    """All that is found in the calls, in any order. `slack_ms` is allowed to the service's clock and its rounding."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_key[call.key].append(call)
    return [fault for key, of_key in by_key.items() for fault in _faults_of_lock(key, of_key, slack_ms)]


def _faults_of_lock(key: str, calls: list[Call], slack_ms: float) -> Iterator[Fault]:
    tenures = _tenures(calls, slack_ms)
    for earlier, later in pairwise(tenures):
        if earlier.fencing_token == later.fencing_token:
            yield Fault("token_repeated", key, f"{earlier} and {later} have the same fencing token")
        if later.told_ms < earlier.ends_after_ms(earlier.extensions, later.told_ms) + GRACE_MS:
            yield Fault("early_takeover", key, f"{later} was granted by {later.told_ms:.1f}, while {earlier} lived")
    soonest = float("inf")
    for tenure in reversed(tenures):
        if soonest < tenure.asked_ms:
            yield Fault("token_order", key, f"{tenure} was asked for after a higher fencing token was granted")
        soonest = min(soonest, tenure.told_ms)
    for tenure in tenures:
        yield from (Fault(kind, key, f"{tenure}, then {call}") for kind, call in tenure.denials(calls))


def _tenures(calls: list[Call], slack_ms: float) -> list["_Tenure"]:
    """The acquisitions that somebody was told of, by fencing token."""
    granted: dict[tuple[int, str], list[Call]] = defaultdict(list)
    for call in calls:
        if call.told == "granted" and call.fencing_token is not None:
            granted[call.fencing_token, call.owner].append(call)
    return [_Tenure(owner, token, granted[token, owner], calls, slack_ms) for token, owner in sorted(granted)]


class _Tenure:
    """One acquisition: an owner with a fencing token, its acknowledged extensions, and what may have ended it."""

    def __init__(self, owner: str, token: int, extensions: list[Call], calls: list[Call], slack_ms: float) -> None:
        self.owner: Final = owner
        self.fencing_token: Final = token
        self.extensions: Final = extensions
        self.told_ms: Final = min(_answered(call) for call in extensions)
        asked = [call for call in calls if call.owner == owner and call.verb in ("acquire", "renew")]
        self.asked_ms: Final = min(call.asked_ms for call in asked)
        self._slack_ms: Final = slack_ms
        self._unanswered: Final = [call for call in asked if call.answered_ms is None]
        self._ends: Final = [
            call
            for call in calls
            if (call.verb == "force_release" or (call.verb == "release" and call.owner == owner))
            and call.told in ("freed", "nothing")
            and (call.answered_ms is None or call.answered_ms >= self.asked_ms)
        ]

    def __str__(self) -> str:
        return f"{self.owner} (fencing token {self.fencing_token})"

    def ends_after_ms(self, extensions: list[Call], by_ms: float) -> float:
        """The instant until which the lease lived for certain, as far as `by_ms` and these extensions tell.

        Of several, that counts which was judged last; where the last is not known, the one that ends first.
        """
        if any(end.asked_ms <= by_ms for end in self._ends):
            return float("-inf")
        newest_ms = max(call.asked_ms for call in extensions)
        perhaps_last = [call for call in extensions if _answered(call) >= newest_ms]
        perhaps_last += [call for call in self._unanswered if call.asked_ms <= by_ms]
        ends = (max(call.asked_ms, newest_ms) + call.ttl_seconds * 1_000 for call in perhaps_last)
        return min(ends) - self._slack_ms

    def denials(self, calls: list[Call]) -> Iterator[tuple[FaultKind, Call]]:
        """The calls that were told this acquisition was over, or another's, while it lived."""
        for call in calls:
            if call.answered_ms is None:
                continue
            known = [one for one in self.extensions if _answered(one) < call.asked_ms]
            if not known:
                continue
            if call.told == "held" and call.fencing_token is not None and call.fencing_token < self.fencing_token:
                yield "lease_lost", call
                continue
            sure_ms = self._sure_ms(call)
            if sure_ms is not None and call.answered_ms < self.ends_after_ms(known, call.answered_ms) + sure_ms:
                yield "early_takeover" if call.told == "held" else "lease_lost", call

    def _sure_ms(self, call: Call) -> float | None:
        """Until how long after the expiry this answer denies the lease; None if it does not."""
        if call.told == "free" or (call.told == "held" and call.fencing_token != self.fencing_token):
            return GRACE_MS
        if call.owner == self.owner and call.told == "lock_ownership_lost":
            return GRACE_MS if call.verb == "release" else -MARGIN_MS
        if call.owner == self.owner and call.told == "lock_held":
            return GRACE_MS
        return None


def _answered(call: Call) -> float:
    assert call.answered_ms is not None
    return call.answered_ms
