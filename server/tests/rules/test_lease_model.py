"""Random histories of one lock, checked against the promises of its rules.

The model knows neither margin, grace nor records. It keeps the grants that clients know, and checks each outcome
against the promises: holders never overlap, tokens rise, a refusal changes no lease.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from volcano_locks_server.rules.lease import (
    Acquire,
    ForceRelease,
    Free,
    Granted,
    Held,
    LockRecord,
    Outcome,
    Read,
    Refused,
    Release,
    Released,
    Renew,
    State,
    decide,
)

OWNERS = [bytes([n]) * 32 for n in range(4)]
owners = st.sampled_from(OWNERS)
ttls = st.one_of(st.integers(5, 40), st.sampled_from([5, 3_600, 7_776_000]))
steps = st.one_of(
    st.integers(0, 3_000), st.sampled_from([999, 1_000, 1_001, 4_000, 5_000, 6_000, 86_400_000, 7_776_000_000])
)


@dataclass
class KnownGrant:
    """A grant as its holder knows it."""

    owner: bytes
    fencing_token: int
    granted_at_ms: int
    expires_at_ms: int


class Lock(RuleBasedStateMachine):
    """One lock, four owners, a clock that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_800_000_000_000
        self.record: LockRecord | None = None
        self.holder: KnownGrant | None = None
        self.tokens: list[int] = []
        self.retired: set[bytes] = set()
        self.withdrawn: dict[bytes, int] = {}  # released without a lease, and when at the latest

    @initialize(forget=st.booleans())
    def begin(self, forget: bool) -> None:
        self.record = None if forget else Free(self.now_ms - 10, self.now_ms - 10)

    @rule(by_ms=steps)
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(owner=owners, ttl_seconds=ttls)
    def acquire(self, owner: bytes, ttl_seconds: int) -> None:
        answer = self._do(Acquire(owner, ttl_seconds))
        if isinstance(answer, Refused):
            blocked = self.holder is not None and self.now_ms < self.holder.expires_at_ms + 1_000
            assert blocked if answer.code == "lock_held" else (blocked or self._may_be_retired(owner))
            return
        assert isinstance(answer, Granted)
        assert answer.how == "repeated" or not self._is_retired(owner)
        if answer.how == "repeated":
            assert self.holder is not None
            assert (self.holder.owner, self.holder.fencing_token) == (owner, answer.fencing_token)
            assert self.now_ms < self.holder.expires_at_ms - 1_000
            self.holder.expires_at_ms = answer.expires_at_ms
        else:
            assert self.holder is None or self.now_ms >= self.holder.expires_at_ms + 1_000
            assert all(token < answer.fencing_token < 2**53 for token in self.tokens)
            self.tokens.append(answer.fencing_token)
            self.holder = KnownGrant(owner, answer.fencing_token, self.now_ms, answer.expires_at_ms)
            self.retired.clear()
        assert answer.expires_at_ms <= self.now_ms + ttl_seconds * 1_000
        assert answer.expires_at_ms <= self.holder.granted_at_ms + 7_776_000_000

    @rule(owner=owners, ttl_seconds=ttls)
    def renew(self, owner: bytes, ttl_seconds: int) -> None:
        answer = self._do(Renew(owner, ttl_seconds))
        in_time = self.holder is not None and self.now_ms < self.holder.expires_at_ms - 1_000
        mine = self.holder is not None and self.holder.owner == owner
        if isinstance(answer, Refused):
            assert answer.code == "lock_ownership_lost"
            assert not (in_time and mine)
        else:
            assert isinstance(answer, Granted)
            assert in_time
            assert mine
            assert self.holder is not None
            assert answer.fencing_token == self.holder.fencing_token
            self.holder.expires_at_ms = answer.expires_at_ms

    @rule(owner=owners)
    def release(self, owner: bytes) -> None:
        was_retired = self._may_be_retired(owner)
        answer = self._do(Release(owner))
        blocked = self.holder is not None and self.now_ms < self.holder.expires_at_ms + 1_000
        mine = self.holder is not None and self.holder.owner == owner
        if isinstance(answer, Refused):
            assert blocked
            assert not mine
        else:
            assert mine or not blocked
            self.holder = None
            self.retired.add(owner)
        if not mine and not was_retired:
            self.withdrawn[owner] = self.now_ms

    @rule()
    def force_release(self) -> None:
        answer = self._do(ForceRelease())
        assert isinstance(answer, Released)
        if self.holder is not None:
            self.retired = {self.holder.owner}
        self.holder = None

    @rule(fencing_token=st.one_of(st.none(), st.integers(1, 3)))
    def force_release_of_one_lease(self, fencing_token: int | None) -> None:
        """None is the lock's last token."""
        last = 0 if self.record is None else self.record.fencing_token
        expected = fencing_token or last or 1
        before, answer = self.record, self._do(ForceRelease(expected))
        if expected != last:
            assert isinstance(answer, Refused)
            assert self.record is before
            return
        assert isinstance(answer, Released)
        if self.holder is not None:
            self.retired = {self.holder.owner}
        self.holder = None

    @rule()
    def read(self) -> None:
        answer = self._do(Read())
        assert isinstance(answer, State)
        blocked = self.holder is not None and self.now_ms < self.holder.expires_at_ms + 1_000
        assert (answer.lease is not None) is blocked

    @invariant()
    def the_record_never_forgets_the_last_token(self) -> None:
        if self.tokens:
            assert self.record is not None
            assert self.record.fencing_token == self.tokens[-1]
        if self.holder is not None:
            assert isinstance(self.record, Held)

    def _is_retired(self, owner: bytes) -> bool:
        """LEASE-11: for two minutes after a release without a lease, even if other owners held the lock since."""
        withdrawn_at_ms = self.withdrawn.get(owner)
        return owner in self.retired or (withdrawn_at_ms is not None and self.now_ms < withdrawn_at_ms + 120_000)

    def _may_be_retired(self, owner: bytes) -> bool:
        """A later withdrawal keeps the earlier ones."""
        latest_ms = max(self.withdrawn.values(), default=0)
        return owner in self.retired or (owner in self.withdrawn and self.now_ms < latest_ms + 120_000)

    def _do(self, command: Acquire | Renew | Release | ForceRelease | Read) -> Outcome:
        before = self.record
        self.record, answer = decide(before, command, self.now_ms)
        if isinstance(answer, State):
            assert self.record is before
        if isinstance(answer, Refused) and self.record is not before:
            assert isinstance(command, Release)
            assert isinstance(before, Held)
            assert isinstance(self.record, Held)
            assert replace(self.record, queue_state=before.queue_state) == before
        return answer


Lock.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLock = Lock.TestCase
