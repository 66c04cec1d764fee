"""Authentication: turns an `Authorization` header into a principal (HTTP-14, HTTP-15, ADMIN-1, ADMIN-11).

A service key (`sk-…`) authenticates for the locks of one project, an admin token for the admin API. Neither works in
place of the other. The store keeps only a digest of each; `credential_cache` looks them up. The configured admin token
is in no store. The expiry of a service key is checked at each request.
"""

import re
import secrets
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Literal

from ..ports.admin_tokens import AdminTokens
from ..ports.clock import Clock
from ..ports.registry import Credential, Registry
from ..ports.session_store import OwnerKind, StoredSession
from ..rules.errors import LockError
from .credential_cache import CREDENTIAL_SECONDS_MAX, CredentialCache, LookupSlots
from .lock_operations import LockOperation

CREDENTIAL_BYTES_MAX: Final = 4_096
SECRET_BYTES: Final = 32
PREFIX_LENGTH: Final = 11
ADMIN_PREFIX_LENGTH: Final = 14
CONFIGURED: Final = "(configured)"
"""The name of the configured admin token in the log; no created token can have it (ADMIN-4)."""

_SERVICE_KEY: Final = re.compile(rb"sk-[A-Za-z0-9_-]{16,128}")
_ADMIN_TOKEN: Final = re.compile(rb"admin-[A-Za-z0-9_-]{43}")
_JWT: Final = re.compile(rb"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")


def new_secret() -> str:
    """A new service key secret: `sk-` and 256 random bits. Its first PREFIX_LENGTH characters may be shown."""
    return "sk-" + secrets.token_urlsafe(SECRET_BYTES)


def new_admin_secret() -> str:
    """A new admin token: `admin-` and 256 random bits. Its first ADMIN_PREFIX_LENGTH characters may be shown."""
    return "admin-" + secrets.token_urlsafe(SECRET_BYTES)


def secret_digest(secret: str) -> bytes:
    """The digest that is stored in place of a secret."""
    return sha256(secret.encode()).digest()


class Principal:
    """An authenticated service key with its project and permissions."""

    __slots__ = (
        "digest",
        "good_until_ms",
        "key_id",
        "key_name",
        "may_manage_locks",
        "may_read_locks",
        "permissions",
        "project_id",
        "project_name",
        "read_at_ms",
        "requests_per_minute",
    )

    def __init__(self, credential: Credential, digest: bytes, read_at_ms: int) -> None:
        service_key = credential.service_key
        self.digest: Final = digest
        self.key_id: Final = service_key.id
        self.key_name: Final = service_key.name
        self.project_id: Final = credential.project.id
        self.project_name: Final = credential.project.name
        self.requests_per_minute: Final = credential.project.requests_per_minute
        self.permissions: Final = service_key.permissions
        self.may_manage_locks: Final = not {"*", "locks.manage"}.isdisjoint(service_key.permissions)
        self.may_read_locks: Final = self.may_manage_locks or "locks.read" in service_key.permissions
        self.good_until_ms: Final = credential.good_until_ms
        self.read_at_ms = read_at_ms

    def may(self, operation: LockOperation) -> bool:
        """Whether the key has the permission that the operation needs (HTTP-15)."""
        return self.may_read_locks if operation.is_read_only else self.may_manage_locks

    def is_current(self, now_ms: int) -> bool:
        """Whether it may serve a request without another lookup."""
        good_until_ms = self.good_until_ms
        is_expired = good_until_ms is not None and now_ms >= good_until_ms
        return now_ms - self.read_at_ms < CREDENTIAL_SECONDS_MAX * 1_000 and not is_expired  # no calls: each request

    def is_expired(self, now_ms: int) -> bool:
        return self.good_until_ms is not None and now_ms >= self.good_until_ms


class AdminPrincipal:
    """An authenticated admin token. `token_id` is None for the configured one, whose name is CONFIGURED."""

    __slots__ = ("digest", "name", "read_at_ms", "token_id")

    def __init__(self, token_id: str | None, name: str, digest: bytes, read_at_ms: int) -> None:
        self.token_id: Final = token_id
        self.name: Final = name
        self.digest: Final = digest
        self.read_at_ms = read_at_ms


class CredentialRefusedError(LockError):
    """401 or 403. `actor` is whose credential it is, None if the server does not know the credential."""

    actor: Principal | AdminPrincipal | None = None

    @property
    def is_failed_credential(self) -> bool:
        """Whether the credential is not valid for anything here, so that its sender is slowed down (HTTP-35)."""
        return self.actor is None or self.code == "invalid_credentials"


class Authenticator:
    """Authenticates service keys and admin tokens; raises a CredentialRefusedError that says what is wrong.

    `admin_token` is the configured one, which works besides those in `admin_tokens`. `metrics_token` is None if anyone
    may read the metrics.
    """

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        admin_token: str,
        admin_tokens: AdminTokens,
        metrics_token: str | None = None,
    ) -> None:
        self._registry: Final = registry
        self._admin_tokens: Final = admin_tokens
        self._clock: Final = clock
        self._configured: Final = AdminPrincipal(None, CONFIGURED, sha256(admin_token.encode()).digest(), 0)
        self._metrics_digest: Final = None if metrics_token is None else secret_digest(metrics_token)
        self.lookup_slots: Final = LookupSlots()
        self.service_keys: Final = CredentialCache(self._look_up_service_key, clock, self.lookup_slots)
        self._admins: Final = CredentialCache(self._look_up_admin_token, clock, self.lookup_slots)
        self._last_used_at_ms: dict[str, int] = {}
        self._admin_last_used_at_ms: dict[str, int] = {}

    def cached_principal(self, authorization: bytes | None) -> Principal | None:
        """The principal if it is cached and valid; None means: call `principal`. Never waits."""
        if authorization is None or len(authorization) > CREDENTIAL_BYTES_MAX:
            return None
        if authorization[:7].lower() != b"bearer ":
            return None
        principal = self.service_keys.cached(sha256(authorization[7:]).digest())
        return principal if principal is not None and self.is_usable(principal) else None

    def is_usable(self, principal: Principal) -> bool:
        """Whether a principal that was cached before may serve one more request; if so, its key counts as used."""
        now_ms = self._clock.now_ms()
        if not principal.is_current(now_ms):
            return False
        self._last_used_at_ms[principal.key_id] = now_ms
        return True

    async def principal(self, authorization: bytes | None) -> Principal:
        """The principal of a valid service key.

        Raises CredentialRefusedError `invalid_credentials` (none, malformed, unknown, revoked, expired) and
        `service_key_required` (a credential of another kind), and StoreUnavailableError.
        """
        secret = _bearer(authorization)
        admin = await self._admin(secret)
        if admin is not None or _is_other_kind(secret):
            raise _refused(
                "service_key_required",
                "lock requests need a service key (sk-…); this credential is of another kind: send a service key",
                admin,
            )
        return await self._principal(secret)

    async def require_admin(self, authorization: bytes | None) -> AdminPrincipal:
        """The principal of a valid admin token, which counts as used.

        Raises CredentialRefusedError `admin_token_required` for a valid service key or a credential of another kind,
        `invalid_credentials` for an unknown one, and StoreUnavailableError.
        """
        secret = _bearer(authorization)
        admin = await self._admin(secret)
        if admin is not None:
            return self._used(admin)
        owner = None if _is_other_kind(secret) else await self._principal(secret)
        raise _refused(
            "admin_token_required", "this request needs an admin token; this credential is another one", owner
        )

    async def any_principal(self, authorization: bytes | None) -> Principal | AdminPrincipal:
        """The principal of a valid service key or admin token, which counts as used.

        Raises CredentialRefusedError `invalid_credentials`, and `service_key_required` for a credential of another
        kind.
        """
        secret = _bearer(authorization)
        admin = await self._admin(secret)
        if admin is not None:
            return self._used(admin)
        if _is_other_kind(secret):
            raise _refused(
                "service_key_required", "this needs a service key (sk-…) or an admin token; this is another credential"
            )
        return await self._principal(secret)

    def owner_of(self, principal: Principal | AdminPrincipal, session: bytes) -> tuple[OwnerKind, str, bytes]:
        """How a session with this secret remembers its credential: kind, id and digest (see `StoredSession`)."""
        if isinstance(principal, Principal):
            return "service_key", principal.key_id, principal.digest
        if principal.token_id is not None:
            return "admin_token", principal.token_id, principal.digest
        return "admin_token", "", _bound(session, principal.digest)

    async def principal_of(self, stored: StoredSession, session: bytes) -> Principal | AdminPrincipal | None:
        """The principal whose credential made the session with this secret, if that is still valid; it counts as used.

        Raises StoreUnavailableError.
        """
        digest = stored.credential_digest
        if stored.owner_kind == "service_key":
            principal = await self.service_keys.get(digest)
            now_ms = self._clock.now_ms()
            if principal is None or principal.key_id != stored.owner_id or principal.is_expired(now_ms):
                return None
            self._last_used_at_ms[principal.key_id] = now_ms
            return principal
        if not stored.owner_id:
            is_ours = compare_digest(digest, _bound(session, self._configured.digest))
            return self._configured if is_ours else None
        admin = await self._admins.get(digest)
        return None if admin is None or admin.token_id != stored.owner_id else self._used(admin)

    async def require_scraper(self, authorization: bytes | None) -> None:
        """Return if this credential may read the metrics: the metrics token or an admin token (OPS-15).

        Raises as `require_admin`, and nothing if no metrics token is configured.
        """
        if self._metrics_digest is None:
            return
        if not compare_digest(sha256(_bearer(authorization)).digest(), self._metrics_digest):
            await self.require_admin(authorization)

    def invalidate(self) -> None:
        """Empty the caches after a change of projects, keys or admin tokens."""
        self.service_keys.forget_all()
        self._admins.forget_all()

    def take_last_used(self) -> dict[str, int]:
        """When keys were used since the last call, by key id; for the registry to store."""
        taken, self._last_used_at_ms = self._last_used_at_ms, {}
        return taken

    def take_admin_last_used(self) -> dict[str, int]:
        """The same for admin tokens."""
        taken, self._admin_last_used_at_ms = self._admin_last_used_at_ms, {}
        return taken

    def _used(self, admin: AdminPrincipal) -> AdminPrincipal:
        if admin.token_id is not None:
            self._admin_last_used_at_ms[admin.token_id] = self._clock.now_ms()
        return admin

    async def _principal(self, secret: bytes) -> Principal:
        known = _SERVICE_KEY.fullmatch(secret) is not None
        principal = await self.service_keys.get(sha256(secret).digest()) if known else None
        now_ms = self._clock.now_ms()
        if principal is None or principal.is_expired(now_ms):
            raise _refused(
                "invalid_credentials",
                "this credential is unknown, revoked or expired: check it, or ask for a new one",
                principal,
            )
        self._last_used_at_ms[principal.key_id] = now_ms
        return principal

    async def _admin(self, secret: bytes) -> AdminPrincipal | None:
        """The principal if this is an admin token."""
        digest = sha256(secret).digest()
        if compare_digest(digest, self._configured.digest):
            return self._configured
        return await self._admins.get(digest) if _ADMIN_TOKEN.fullmatch(secret) is not None else None

    async def _look_up_service_key(self, digest: bytes, read_at_ms: int) -> Principal | None:
        credential = await self._registry.credential(digest)
        return None if credential is None else Principal(credential, digest, read_at_ms)

    async def _look_up_admin_token(self, digest: bytes, read_at_ms: int) -> AdminPrincipal | None:
        token = await self._admin_tokens.of_digest(digest)
        return None if token is None else AdminPrincipal(token.id, token.name, digest, read_at_ms)


def _refused(
    code: Literal["invalid_credentials", "service_key_required", "admin_token_required"],
    message: str,
    actor: Principal | AdminPrincipal | None = None,
) -> CredentialRefusedError:
    error = CredentialRefusedError(code, message)
    error.actor = actor
    return error


def refused_credential(message: str) -> CredentialRefusedError:
    """The error for a code or a session that is not valid."""
    return _refused("invalid_credentials", message)


def _bound(session: bytes, digest: bytes) -> bytes:
    """A digest of the configured admin token that only the session's secret makes comparable."""
    return sha256(session + digest).digest()


def _bearer(authorization: bytes | None) -> bytes:
    """The secret in the header. Raises CredentialRefusedError `invalid_credentials`."""
    if authorization is None:
        raise _refused(
            "invalid_credentials", "header Authorization is missing: send Authorization: Bearer <credential>"
        )
    if len(authorization) > CREDENTIAL_BYTES_MAX:
        raise _refused(
            "invalid_credentials",
            f"header Authorization must be at most {CREDENTIAL_BYTES_MAX} bytes; got {len(authorization)}",
        )
    scheme, _, secret = authorization.partition(b" ")
    secret = secret.strip(b" ")
    if scheme.lower() != b"bearer" or not secret or b" " in secret or b"," in secret:
        raise _refused(
            "invalid_credentials", "header Authorization must be sent once, in the form: Bearer <credential>"
        )
    return secret


def _is_other_kind(secret: bytes) -> bool:
    """Whether the secret is an anon key or a JWT."""
    return secret.startswith(b"ak-") or _JWT.fullmatch(secret) is not None
