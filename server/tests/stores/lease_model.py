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


class LeaseModel:
    """All locks of one project, and the time."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.locks: dict[str, ModelLock] = {}

    def acquire(self, name: str, owner: str, ttl: int) -> ModelOutcome:
        lock = self.locks.get(name)
        if lock is not None and lock.owner is None and owner in lock.retired:
            return ("lock_ownership_lost",)  # LEASE-11
        if lock is not None and self._blocks(lock):
            if lock.owner != owner:
                return ("lock_held",)  # LEASE-6
            return self._extend(lock, ttl)  # LEASE-4, LEASE-5
        token = self.now if lock is None else max(lock.token + 1, self.now)  # LEASE-3
        deadline = self.now + 90 * DAY
        fresh = ModelLock(token, owner, min(self.now + ttl * SECOND, deadline), deadline)
        self.locks[name] = fresh  # LEASE-2, LEASE-7
        return ("granted", fresh.expires, fresh.token)

    def renew(self, name: str, owner: str, ttl: int) -> ModelOutcome:
        lock = self.locks.get(name)
        if lock is None or lock.owner != owner:
            return ("lock_ownership_lost",)  # LEASE-8
        return self._extend(lock, ttl)

    def release(self, name: str, owner: str) -> ModelOutcome:
        lock = self.locks.setdefault(name, ModelLock(0, freed=self.now))
        if lock.owner is not None and lock.owner != owner and self._blocks(lock):
            return ("lock_ownership_lost",)  # LEASE-9
        if lock.owner is None and owner in lock.retired:
            return ("released",)
        if lock.owner is not None:
            lock.retired = []
        lock.owner, lock.freed = None, self.now  # LEASE-13: retention starts now
        lock.retired = [owner, *lock.retired][:16]  # LEASE-11
        return ("released",)

    def force_release(self, name: str) -> ModelOutcome:
        lock = self.locks.get(name)
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

    def _extend(self, lock: ModelLock, ttl: int) -> ModelOutcome:
        if self.now >= lock.expires - SECOND:
            return ("lock_ownership_lost",)
        lock.expires = min(self.now + ttl * SECOND, lock.deadline)
        return ("granted", lock.expires, lock.token)

    def _blocks(self, lock: ModelLock) -> bool:
        return lock.owner is not None and self.now < lock.expires + SECOND

    def _free_from(self, lock: ModelLock) -> int:
        return lock.freed if lock.owner is None else lock.expires + SECOND
