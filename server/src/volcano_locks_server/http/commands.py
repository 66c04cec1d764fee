"""Turns a lock request's key, header fields and body into its command (HTTP-7, HTTP-8, HTTP-10 to HTTP-12)."""

from typing import NamedTuple

from ..rules.hold import Requester
from ..rules.lease import Acquire, Command, ForceRelease, Read, Release, Renew
from ..rules.values import LockKey, parse_fencing_token, parse_owner_token, parse_reason
from . import lock_operations as operations
from .codec import LOCK_HOLDER, LOCK_TOKEN, REASON, holder_label, lock_key, parse_acquire_body, parse_renew_body
from .lock_operations import LockOperation


class LeaseFields(NamedTuple):
    """What the address and the header fields say. `owner_digest` and `holder` are those of a request on a lease,
    `fencing_token` and `reason` those of a force release.
    """

    key: LockKey
    owner_digest: bytes = b""
    holder: str | None = None
    fencing_token: int | None = None
    reason: str | None = None


def lease_fields(operation: LockOperation, raw_key: bytes, raw_token: bytes, fields: dict[bytes, bytes]) -> LeaseFields:
    """Raises LockError `invalid_lock_key`, `invalid_lock_token`, `invalid_holder`, `invalid_reason`, and
    `invalid_request` for a fencing token.
    """
    key = lock_key(raw_key)
    if operation is operations.FORCE_RELEASE:
        fencing_token = parse_fencing_token(raw_token) if raw_token else None
        return LeaseFields(key, fencing_token=fencing_token, reason=parse_reason(fields.get(REASON, b"")))
    if not operation.on_lease:
        return LeaseFields(key)
    owner_digest, holder = parse_owner_token(fields.get(LOCK_TOKEN)), fields.get(LOCK_HOLDER)
    return LeaseFields(key, owner_digest, None if holder is None else holder_label(holder))


def lease_command(
    operation: LockOperation, fields: LeaseFields, body: bytes, by: Requester | None = None
) -> tuple[Command, int]:
    """The command, and how many milliseconds an acquire waits; the body counts only if the operation takes a TTL. `by`
    is who sent the request, for the history.

    Raises LockError `invalid_ttl`, `invalid_wait`, `invalid_request`.
    """
    _key, owner_digest, holder, fencing_token, reason = fields
    if operation is operations.ACQUIRE:
        ttl_seconds, wait_ms = parse_acquire_body(body)
        return Acquire(owner_digest, ttl_seconds, holder, by), wait_ms
    if operation is operations.RENEW:
        return Renew(owner_digest, parse_renew_body(body), holder), 0
    if operation is operations.RELEASE:
        return Release(owner_digest), 0
    return (Read() if operation is operations.READ else ForceRelease(fencing_token, reason, by)), 0
