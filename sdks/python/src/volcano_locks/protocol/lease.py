"""`Lease`, one acquisition of a lock, and `LockState`, the result of a read."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple, Self

from volcano_locks.protocol.arguments import checked_fencing_token, checked_key, checked_ttl, checked_uuid, parse_date


class Lease:
    """One acquisition of a lock: an immutable value. Two leases with the same content are equal.

    `token` is the owner token in the caller's spelling; comparison ignores its case. It is a secret: only `to_record`
    and pickling include it. Therefore a lease is not a dataclass, because loggers and serializers convert those with
    every field. `expires_at` is the server's time, for people. `deadline` is the instant on this client's clock after
    which the lease must not be relied on; it is None if the lease was loaded from a record.
    """

    __slots__ = ("deadline", "expires_at", "fencing_token", "key", "token", "ttl_seconds")

    def __init__(  # noqa: PLR0917 - what every lease has, in the order of its record
        self,
        key: str,
        token: str,
        ttl_seconds: int,
        expires_at: datetime,
        fencing_token: int,
        deadline: float | None = None,
    ) -> None:
        self.key: Final = key
        self.token: Final = token
        self.ttl_seconds: Final = ttl_seconds
        self.expires_at: Final = expires_at
        self.fencing_token: Final = fencing_token
        self.deadline: Final = deadline

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"a Lease cannot be changed (got a value for {name}): renew returns a new one")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Lease cannot be changed (asked to delete {name}): renew returns a new one")

    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, Lease) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        shown = ("key", "ttl_seconds", "expires_at", "fencing_token")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        fields = (self.key, self.token, self.ttl_seconds, self.expires_at, self.fencing_token, self.deadline)
        return type(self), fields

    def _content(self) -> tuple[object, ...]:
        return self.key, self.token.lower(), self.ttl_seconds, self.expires_at, self.fencing_token

    def to_record(self) -> dict[str, str | int]:
        """Return what another process needs to renew or release the lease. It contains the secret owner token."""
        return {
            "key": self.key,
            "token": self.token,
            "ttl_seconds": self.ttl_seconds,
            "expires_at": self.expires_at.isoformat(),
            "fencing_token": self.fencing_token,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Load a lease from its record. `ValueError` or `TypeError` names the field that is wrong."""
        missing = {"key", "token", "ttl_seconds", "expires_at", "fencing_token"} - set(record)
        if missing:
            raise ValueError(f"lease record lacks {', '.join(sorted(missing))}")
        if not isinstance(record["expires_at"], str):
            raise TypeError("lease record: expires_at must be a date as text")
        try:
            fencing_token = checked_fencing_token(record["fencing_token"])
        except ValueError as error:
            raise ValueError(f"lease record: {error}") from None
        return cls(
            key=checked_key(record["key"]),
            token=checked_uuid("token", record["token"]),
            ttl_seconds=checked_ttl(record["ttl_seconds"]),
            expires_at=parse_date(record["expires_at"]),
            fencing_token=fencing_token,
        )


class LockState(NamedTuple):
    """The result of a read. `held` is False if an acquire would succeed now; the other fields are then None."""

    held: bool
    expires_at: datetime | None = None
    fencing_token: int | None = None


def checked_lease(key: object, lease: object) -> Lease:
    """Return `lease` if it is a lease of the lock `key`; raise `TypeError` or `ValueError` otherwise (SDK-17)."""
    key = checked_key(key)
    if not isinstance(lease, Lease):
        raise TypeError(f"lease must be a Lease, which acquire and renew return, got {type(lease).__name__}")
    if lease.key != key:
        raise ValueError(f"lease must be one of the lock {key!r}, got a lease of {lease.key!r}; nothing was sent")
    return lease
