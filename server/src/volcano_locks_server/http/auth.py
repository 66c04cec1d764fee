"""Who is calling, and what may they do.

A credential is a secret with a kind: a service key (`sk-…`) opens the locks of one project, the admin token
opens projects and keys, and neither opens the other's door. Of a service key only its digest is known; the
store is asked for it, and its answer is believed for CREDENTIAL_SECONDS_MAX. On this node a change is felt at
once (`forget`): lookups that began before it are not remembered. Whether a key has expired is asked of the
clock at each request. Rules: spec/http.md, HTTP and ADMIN.

Anybody can make up secrets, so at most LOOKUPS_AT_ONCE stand in the store's queue, where lock traffic stands too,
and at most LOOKUPS_MAX wait. A key that was good before is not refused for the crowd beside it.
"""

import asyncio
import re
import secrets
from hashlib import sha256
from hmac import compare_digest
from typing import Final

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
    """A service key's secret: 256 random bits behind its kind. Its first PREFIX_LENGTH characters may be shown."""
    return "sk-" + secrets.token_urlsafe(SECRET_BYTES)


def secret_digest(secret: str) -> bytes:
    """What is kept of a secret."""
    return sha256(secret.encode()).digest()


class Caller:
    """A bearer of a service key that is good now."""

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


class Access:
    """Turns an `Authorization` header into a caller, or into a LockError that says what is wrong with it."""

    def __init__(self, registry: Registry, clock: Clock, admin_token: str) -> None:
        self._registry: Final = registry
        self._clock: Final = clock
        self._admin_digest: Final = sha256(admin_token.encode()).digest()
        self._callers: dict[bytes, Caller] = {}
        self._lookups: dict[bytes, asyncio.Task[Caller | None]] = {}
        self._asking: Final = asyncio.Semaphore(LOOKUPS_AT_ONCE)
        self._last_used_at_ms: dict[str, int] = {}

    def caller_now(self, authorization: bytes | None) -> Caller | None:
        """The caller if it is remembered and good; None where `caller` has to be asked. Never waits."""
        if authorization is None or len(authorization) > CREDENTIAL_BYTES_MAX:
            return None
        if authorization[:7].lower() != b"bearer ":
            return None
        digest = sha256(authorization[7:]).digest()
        caller = self._callers.get(digest)
        if caller is None or not compare_digest(caller.digest, digest):
            return None
        now_ms = self._clock.now_ms()
        if now_ms - caller.read_at_ms >= CREDENTIAL_SECONDS_MAX * 1_000:
            return None
        if caller.good_until_ms is not None and now_ms >= caller.good_until_ms:
            return None
        self._last_used_at_ms[caller.key_id] = now_ms
        return caller

    async def caller(self, authorization: bytes | None) -> Caller:
        """The bearer of a good service key.

        Raises LockError `invalid_credentials` (none, malformed, unknown, revoked, expired), `service_key_required`
        (a credential of another kind), and StoreUnavailableError.
        """
        secret = _bearer(authorization)
        digest = sha256(secret).digest()
        if self._is_admin(digest) or secret.startswith(b"ak-") or _JWT.fullmatch(secret) is not None:
            raise LockError(
                "service_key_required", "locks are opened by a service key (sk-…); this credential is another kind"
            )
        caller = await self._known(digest) if _SERVICE_KEY.fullmatch(secret) is not None else None
        now_ms = self._clock.now_ms()
        if caller is None or (caller.good_until_ms is not None and now_ms >= caller.good_until_ms):
            raise _unknown()
        self._last_used_at_ms[caller.key_id] = now_ms
        return caller

    async def admin(self, authorization: bytes | None) -> None:
        """Return if the bearer has the admin token.

        Raises LockError `admin_token_required` for a good service key or a credential of another kind,
        `invalid_credentials` for anything unknown, and StoreUnavailableError.
        """
        secret = _bearer(authorization)
        digest = sha256(secret).digest()
        if self._is_admin(digest):
            return
        other_kind = secret.startswith(b"ak-") or _JWT.fullmatch(secret) is not None
        if not other_kind:
            await self.caller(authorization)
        raise LockError("admin_token_required", "projects and keys are opened by the admin token alone")

    def forget(self) -> None:
        """Projects or keys changed: believe nothing that was read before."""
        self._callers.clear()
        self._lookups.clear()

    def take_last_used(self) -> dict[str, int]:
        """When keys were used since the last call, by key id: for the registry to remember."""
        taken, self._last_used_at_ms = self._last_used_at_ms, {}
        return taken

    def _is_admin(self, digest: bytes) -> bool:
        return compare_digest(digest, self._admin_digest)

    async def _known(self, digest: bytes) -> Caller | None:
        """What the registry says of a secret; callers that ask at the same time share one answer."""
        caller = self._callers.get(digest)
        if caller is not None and self._clock.now_ms() - caller.read_at_ms < CREDENTIAL_SECONDS_MAX * 1_000:
            return caller
        lookup = self._lookups.get(digest)
        if lookup is None:
            if caller is None and len(self._lookups) >= LOOKUPS_MAX:
                raise LockError(
                    "lock_service_unavailable", "too many unknown credentials at once", retry_after_seconds=1
                )
            lookup = self._lookups[digest] = asyncio.create_task(self._look_up(digest), name="credential")
            lookup.add_done_callback(_heard)
        try:
            async with asyncio.timeout(LOOKUP_SECONDS_MAX):
                return await asyncio.shield(lookup)
        except TimeoutError:
            late = f"the store did not answer within {LOOKUP_SECONDS_MAX:g} s"
            raise StoreUnavailableError("lookup_late", late) from None

    async def _look_up(self, digest: bytes) -> Caller | None:
        this = asyncio.current_task()
        read_at_ms = self._clock.now_ms()
        try:
            async with self._asking:
                credential = await self._registry.credential(digest)
        finally:
            current = self._lookups.get(digest) is this
            if current:
                del self._lookups[digest]
        if credential is None:
            if current:
                self._callers.pop(digest, None)
            return None
        caller = Caller(credential, digest, read_at_ms)
        if current:
            if len(self._callers) >= CREDENTIALS_MAX:
                self._callers.pop(next(iter(self._callers)))
            self._callers.pop(digest, None)
            self._callers[digest] = caller
        return caller


def _bearer(authorization: bytes | None) -> bytes:
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
        raise LockError("invalid_credentials", "header Authorization must be: Bearer <credential>, and come once")
    return secret


def _heard(lookup: "asyncio.Task[Caller | None]") -> None:
    """A lookup that failed after all who waited hung up is nobody's surprise."""
    if not lookup.cancelled():
        lookup.exception()


def _unknown() -> LockError:
    return LockError(
        "invalid_credentials",
        "this credential is unknown, revoked or expired: check it, or ask an operator for a new one",
    )
