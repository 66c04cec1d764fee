"""A second, simple implementation of the lease rules. It shares no code with the product."""

from dataclasses import dataclass, field

SECOND = 1_000
DAY = 86_400 * SECOND
ModelOutcome = tuple[object, ...]


@dataclass
class ModelLock:
    token: int
    owner: str | None = None
    expires: int = 0
    deadline: int = 0
    freed: int = 0
    retired: list[str] = field(default_factory=list)
    withdrawn: list[str] = field(default_factory=list)
    withdrawn_at: int = 0
    not_before: int = 0


class LeaseModel:
    """All locks of one project, and the time."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.locks: dict[str, ModelLock] = {}

    def acquire(self, name: str, owner: str, ttl: int) -> ModelOutcome:
        lock = self.locks.get(name)
        if lock is not None and self._retired(lock, owner):
            return ("lock_ownership_lost",)  # LEASE-11
        if lock is not None and self._blocks(lock):
            if lock.owner != owner:
                return ("lock_held",)  # LEASE-6
            return self._extend(lock, ttl)  # LEASE-4, LEASE-5
        token = self.now if lock is None else max(lock.token + 1, self.now)  # LEASE-3
        deadline = self.now + 90 * DAY
        fresh = ModelLock(token, owner, min(self.now + ttl * SECOND, deadline), deadline)
        if lock is not None and self.now < lock.withdrawn_at + 120 * SECOND:
            fresh.withdrawn, fresh.withdrawn_at = lock.withdrawn, lock.withdrawn_at
        self.locks[name] = fresh  # LEASE-2, LEASE-7
        return ("granted", fresh.expires, fresh.token)

    def renew(self, name: str, owner: str, ttl: int) -> ModelOutcome:
        lock = self.locks.get(name)
        if lock is None or lock.owner != owner:
            return ("lock_ownership_lost",)  # LEASE-8
        return self._extend(lock, ttl)

    def release(self, name: str, owner: str) -> ModelOutcome:
        lock = self.locks.setdefault(name, ModelLock(0, freed=self.now))
        was_retired = self._retired(lock, owner)
        if lock.owner != owner and not was_retired:
            lock.withdrawn, lock.withdrawn_at = [owner, *lock.withdrawn][:16], self.now
        if lock.owner is not None and lock.owner != owner and self._blocks(lock):
            return ("lock_ownership_lost",)  # LEASE-9
        if was_retired:
            return ("released",)
        if lock.owner is not None:
            lock.retired = []
        lock.owner, lock.freed = None, self.now  # LEASE-13: retention starts now
        lock.retired = [owner, *lock.retired][:16]  # LEASE-11
        return ("released",)

    def force_release(self, name: str, *, fencing_token: int | None = None) -> ModelOutcome:
        lock = self.locks.get(name)
        if fencing_token is not None and (lock is None or lock.token != fencing_token):
            return ("lock_changed",)  # LEASE-20
        if lock is not None and lock.owner is not None:  # LEASE-10
            lock.retired, lock.owner, lock.freed = [lock.owner], None, self.now
        return ("released",)

    def read(self, name: str) -> ModelOutcome:
        lock = self.locks.get(name)
        if lock is not None and self._blocks(lock):  # LEASE-12
            return ("held", lock.expires, lock.token)
        return ("free",)

    def count_held(self) -> int:
        return sum(self._blocks(lock) for lock in self.locks.values())

    def listed(self, held: bool | None) -> list[tuple[str, int]]:
        """Names and tokens, filtered by state if `held` is given."""
        return [(name, lock.token) for name, lock in sorted(self.locks.items()) if held in (None, self._blocks(lock))]

    def purge(self) -> int:
        purged = [name for name, lock in self.locks.items() if self.now >= self._free_from(lock) + DAY]  # LEASE-13
        for name in purged:
            del self.locks[name]
        return len(purged)

    def _retired(self, lock: ModelLock, owner: str) -> bool:
        is_withdrawn = owner in lock.withdrawn and self.now < lock.withdrawn_at + 120 * SECOND
        return lock.owner != owner and ((lock.owner is None and owner in lock.retired) or is_withdrawn)

    def jump(self, now: int) -> None:
        """The time is `now`, but no time has passed: what was left of each lease is left, 600 s at most (LEASE-17)."""
        for lock in self.locks.values():
            if self._blocks(lock):
                lock.not_before = now + min(self._free_from(lock) - self.now, 600 * SECOND)
        self.now = now

    def _extend(self, lock: ModelLock, ttl: int) -> ModelOutcome:
        if self.now >= lock.expires - SECOND:
            return ("lock_ownership_lost",)
        lock.expires, lock.not_before = min(self.now + ttl * SECOND, lock.deadline), 0
        return ("granted", lock.expires, lock.token)

    def _blocks(self, lock: ModelLock) -> bool:
        return lock.owner is not None and self.now < self._free_from(lock)

    def _free_from(self, lock: ModelLock) -> int:
        return lock.freed if lock.owner is None else max(lock.expires + SECOND, lock.not_before)
