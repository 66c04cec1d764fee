"""Authentication: turns an `Authorization` header into a principal (HTTP-14, HTTP-15, ADMIN-1).

A service key (`sk-…`) authenticates for the locks of one project, the admin token for the admin API. Neither works in
place of the other. The store keeps only a digest of each service key. Its lookups are cached for
CREDENTIAL_SECONDS_MAX. `invalidate` empties the cache, so that a change on this node takes effect with the next
request; a lookup that began before the change is not cached. The expiry of a key is checked at each request.

Anyone can send made-up secrets, and lookups share the store with lock traffic. Therefore at most LOOKUPS_AT_ONCE
lookups run and at most LOOKUPS_MAX are pending. A key that is cached, even if stale, is exempt from LOOKUPS_MAX.
"""

import asyncio
import re
import secrets
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final

from ..ports.clock import Clock
from ..ports.registry import Credential, Registry
from ..rules.errors import LockError, StoreUnavailableError

CREDENTIAL_SECONDS_MAX: Final = 5
CREDENTIALS_MAX: Final = 10_000
LOOKUPS_MAX: Final = 1_000
LOOKUPS_AT_ONCE: Final = 16
LOOKUP_SECONDS_MAX: Final = 10.0
CREDENTIAL_BYTES_MAX: Final = 4_096
SECRET_BYTES: Final = 32
PREFIX_LENGTH: Final = 11

_SERVICE_KEY: Final = re.compile(rb"sk-[A-Za-z0-9_-]{16,128}")
_JWT: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def new_secret() -> str:
    """A new service key secret: `sk-` and 256 random bits. Its first PREFIX_LENGTH characters may be shown."""
    return "sk-" + secrets.token_urlsafe(SECRET_BYTES)


def secret_digest(secret: str) -> bytes:
    """The digest that is stored in place of a secret."""
    return sha256(secret.encode()).digest()


class Principal:
    """An authenticated service key with its project and permissions."""

    __slots__ = (
        "digest",
        "good_until_ms",
        "key_id",
        "may_manage_locks",
        "may_read_locks",
        "project_id",
        "read_at_ms",
        "requests_per_minute",
    )

    def __init__(self, credential: Credential, digest: bytes, read_at_ms: int) -> None:
        service_key = credential.service_key
        self.digest: Final = digest
        self.key_id: Final = service_key.id
        self.project_id: Final = credential.project.id
        self.requests_per_minute: Final = credential.project.requests_per_minute
        self.may_manage_locks: Final = not {"*", "locks.manage"}.isdisjoint(service_key.permissions)
        self.may_read_locks: Final = self.may_manage_locks or "locks.read" in service_key.permissions
        self.good_until_ms: Final = credential.good_until_ms
        self.read_at_ms: Final = read_at_ms

    def is_fresh(self, now_ms: int) -> bool:
        """Whether the looked-up credential may still be used."""
        return now_ms - self.read_at_ms < CREDENTIAL_SECONDS_MAX * 1_000

    def is_expired(self, now_ms: int) -> bool:
        return self.good_until_ms is not None and now_ms >= self.good_until_ms


class Authenticator:
    """Authenticates service keys and the admin token; raises a LockError that says what is wrong with a credential."""

    def __init__(self, registry: Registry, clock: Clock, admin_token: str) -> None:
        self._registry: Final = registry
        self._clock: Final = clock
        self._admin_digest: Final = sha256(admin_token.encode()).digest()
        self._principals: dict[bytes, Principal] = {}
        self._lookups: dict[bytes, asyncio.Task[Principal | None]] = {}
        self._lookup_slots: Final = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._last_used_at_ms: dict[str, int] = {}

    def cached_principal(self, authorization: bytes | None) -> Principal | None:
        """The principal if it is cached and valid; None means: call `principal`. Never waits."""
        if authorization is None or len(authorization) > CREDENTIAL_BYTES_MAX:
            return None
        if authorization[:7].lower() != b"bearer ":
            return None
        digest = sha256(authorization[7:]).digest()
        principal = self._principals.get(digest)
        if principal is None or not compare_digest(principal.digest, digest):
            return None
        now_ms = self._clock.now_ms()
        if not principal.is_fresh(now_ms) or principal.is_expired(now_ms):
            return None
        self._last_used_at_ms[principal.key_id] = now_ms
        return principal

    async def principal(self, authorization: bytes | None) -> Principal:
        """The principal of a valid service key.

        Raises LockError `invalid_credentials` (none, malformed, unknown, revoked, expired), `service_key_required`
        (a credential of another kind), and StoreUnavailableError.
        """
        secret = _bearer(authorization)
        digest = sha256(secret).digest()
        if self._is_admin(digest) or _is_other_kind(secret):
            raise LockError(
                "service_key_required",
                "lock requests need a service key (sk-…); this credential is of another kind: send a service key",
            )
        principal = await self._cached_or_looked_up(digest) if _SERVICE_KEY.fullmatch(secret) is not None else None
        now_ms = self._clock.now_ms()
        if principal is None or principal.is_expired(now_ms):
            raise LockError(
                "invalid_credentials",
                "this credential is unknown, revoked or expired: check it, or ask for a new one",
            )
        self._last_used_at_ms[principal.key_id] = now_ms
        return principal

    async def require_admin(self, authorization: bytes | None) -> None:
        """Return if the credential is the admin token.

        Raises LockError `admin_token_required` for a valid service key or a credential of another kind,
        `invalid_credentials` for an unknown one, and StoreUnavailableError.
        """
        secret = _bearer(authorization)
        if self._is_admin(sha256(secret).digest()):
            return
        if not _is_other_kind(secret):
            await self.principal(authorization)
        raise LockError("admin_token_required", "the admin API needs the admin token; this credential is another one")

    def invalidate(self) -> None:
        """Empty the cache after a change of projects or keys; running lookups are not cached."""
        self._principals.clear()
        self._lookups.clear()

    def take_last_used(self) -> dict[str, int]:
        """When keys were used since the last call, by key id; for the registry to store."""
        taken, self._last_used_at_ms = self._last_used_at_ms, {}
        return taken

    def _is_admin(self, digest: bytes) -> bool:
        return compare_digest(digest, self._admin_digest)

    async def _cached_or_looked_up(self, digest: bytes) -> Principal | None:
        """The principal of a digest. Concurrent calls for one digest share a lookup."""
        principal = self._principals.get(digest)
        if principal is not None and principal.is_fresh(self._clock.now_ms()):
            return principal
        lookup = self._lookups.get(digest)
        if lookup is None:
            if principal is None and len(self._lookups) >= LOOKUPS_MAX:
                raise LockError(
                    "lock_service_unavailable",
                    "this server is checking too many unknown credentials at once: try again in a moment",
                    retry_after_seconds=1,
                )
            lookup = self._lookups[digest] = asyncio.create_task(self._look_up(digest), name="credential")
            lookup.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                return await asyncio.shield(lookup)
        except TimeoutError:
            late = f"the store did not answer within {LOOKUP_SECONDS_MAX:g} s"
            raise StoreUnavailableError("lookup_late", late) from None

    async def _look_up(self, digest: bytes) -> Principal | None:
        this = asyncio.current_task()
        read_at_ms = self._clock.now_ms()
        try:
            async with self._lookup_slots:
                credential = await self._registry.credential(digest)
        finally:
            is_current = self._lookups.get(digest) is this  # not after `invalidate`
            if is_current:
                del self._lookups[digest]
        if credential is None:
            if is_current:
                self._principals.pop(digest, None)
            return None
        principal = Principal(credential, digest, read_at_ms)
        if is_current:
            if len(self._principals) >= CREDENTIALS_MAX:
                self._principals.pop(next(iter(self._principals)))
            self._principals.pop(digest, None)
            self._principals[digest] = principal
        return principal


def _bearer(authorization: bytes | None) -> bytes:
    """The secret in the header. Raises LockError `invalid_credentials`."""
    if authorization is None:
        raise LockError(
            "invalid_credentials", "header Authorization is missing: send Authorization: Bearer <credential>"
        )
    if len(authorization) > CREDENTIAL_BYTES_MAX:
        raise LockError(
            "invalid_credentials",
            f"header Authorization must be at most {CREDENTIAL_BYTES_MAX} bytes; got {len(authorization)}",
        )
    scheme, _, secret = authorization.partition(b" ")
    secret = secret.strip(b" ")
    if scheme.lower() != b"bearer" or not secret or b" " in secret or b"," in secret:
        raise LockError(
            "invalid_credentials", "header Authorization must be sent once, in the form: Bearer <credential>"
        )
    return secret


def _is_other_kind(secret: bytes) -> bool:
    """Whether the secret is an anon key or a JWT."""
    return secret.startswith(b"ak-") or _JWT.fullmatch(secret) is not None


def retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Prevent asyncio from logging the failure of a task that no request awaits any longer."""
    if not task.cancelled():
        task.exception()
