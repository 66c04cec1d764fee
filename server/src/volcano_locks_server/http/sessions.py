"""The dashboard's sessions and the one-time codes for them (UI rules in spec/dashboard.md).

A session stands for the credential with which it was made, and ends with it: each request looks both up, through the
caches that all credentials use. So a deleted, expired or rotated key ends its sessions on every node, without a list.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Final

from ..ports.audit import session_entry
from ..ports.audit_entry import Act
from ..ports.clock import Clock
from ..ports.session_store import Purpose, SessionLimits, SessionStore, StoredSession
from ..rules.errors import LockError
from ..rules.quota import Admission
from ..service.rate_limiter import LocalRateLimiter
from .auth import AdminPrincipal, Authenticator, Principal, refused_credential
from .codec import COOKIE, CSRF
from .credential_cache import CredentialCache
from .dashboard_access import DashboardAccess, has_loopback_host, port_of_host
from .request_budget import count_request
from .store_deadline import store_deadline

SESSION_SECONDS: Final = 8 * 3_600
CODE_SECONDS: Final = 60
SESSIONS_PER_OWNER_MAX: Final = 20
SESSIONS_MAX: Final = 1_000
CODES_PER_OWNER_MAX: Final = 5
CODES_MAX: Final = 100
SESSION_REQUESTS_PER_MINUTE: Final = 600
PROJECT_SESSION_REQUESTS_PER_MINUTE: Final = 3_000
SIGN_INS_PER_MINUTE: Final = 60

NO_STORE: Final = (b"cache-control", b"no-store")
"""Of responses to requests with a session, which share their address with other sessions' responses."""
_COOKIE_NAME: Final = "volcano_locks_session"
SECRET_BYTES: Final = 32
SECRET_LENGTH: Final = 43  # of SECRET_BYTES as text
_COOKIES_TRIED_MAX: Final = 4  # whose name ends like ours
_LIMITS: Final[dict[Purpose, SessionLimits]] = {
    "session": SessionLimits(SESSIONS_PER_OWNER_MAX, SESSIONS_MAX),
    "code": SessionLimits(CODES_PER_OWNER_MAX, CODES_MAX),
}
_SECONDS: Final[dict[Purpose, int]] = {"session": SESSION_SECONDS, "code": CODE_SECONDS}


@dataclass(frozen=True, slots=True)
class Session:
    """A session that is valid now, and whose it is. `csrf_token` proves that a request comes from its page."""

    digest: bytes
    principal: Principal | AdminPrincipal
    csrf_token: str
    good_until_ms: int


class _FoundSession:
    """A stored session in the cache."""

    __slots__ = ("digest", "read_at_ms", "stored")

    def __init__(self, stored: StoredSession, read_at_ms: int) -> None:
        self.digest: Final = stored.digest
        self.stored: Final = stored
        self.read_at_ms = read_at_ms


class Sessions:
    """The sessions of one server over its store. Errors are LockErrors; a StoreUnavailableError may always come."""

    def __init__(
        self,
        store: SessionStore,
        authenticator: Authenticator,
        access: DashboardAccess,
        clock: Clock,
        *,
        new_secret: Callable[[], str] = lambda: secrets.token_urlsafe(SECRET_BYTES),
    ) -> None:
        self.access: Final = access
        self._store: Final = store
        self._authenticator: Final = authenticator
        self._clock: Final = clock
        self._new_secret: Final = new_secret
        self._cache: Final = CredentialCache(self._look_up, clock, authenticator.lookup_slots)
        self._limiter: Final = LocalRateLimiter(clock, owner_reserve=False)

    async def new_code(self, principal: Principal | AdminPrincipal) -> tuple[str, int]:
        """A one-time code for a session of this principal, and until when it may be used. Raises LockError
        `lock_rate_limited`.
        """
        code, stored = await self._add("code", principal)
        return code, stored.good_until_ms

    async def begin(self, principal: Principal | AdminPrincipal, act: Act) -> tuple[str, Session]:
        """A new session, which the audit names, and its id, which is stored nowhere. Raises as `new_code`."""
        secret, stored = await self._add("session", principal, act)
        return secret, _session(secret.encode(), stored, principal)

    async def redeem(self, code: str) -> Principal | AdminPrincipal:
        """Whose code this is; it is used up. Raises CredentialRefusedError `invalid_credentials`.

        Anyone can send made-up codes. They are looked up within the bounds of all unknown credentials, because writes
        compete with those of locks.
        """
        secret = code.encode()
        digest, stored = _digest("code", secret), None
        if await self._cache.get(digest) is not None:
            async with store_deadline():
                stored = await self._store.take(digest)
        if stored is not None and stored.good_until_ms > self._clock.now_ms():
            principal = await self._authenticator.principal_of(stored, secret)
            if principal is not None:
                return principal
        raise refused_credential("this code is unknown, used or older than a minute: make a new link")

    async def end(self, fields: dict[bytes, bytes], act_by: Callable[[Principal | AdminPrincipal], Act]) -> None:
        """End the session of this cookie, if there is a cookie. The audit names it.

        Raises CredentialRefusedError `invalid_credentials` for an unknown session.
        """
        secret = cookie_secret(fields)
        if secret is None:
            return
        digest = _digest("session", secret)
        found = await self._cache.get(digest)
        if found is None:
            raise refused_credential("this session has ended already")
        principal = await self._authenticator.principal_of(found.stored, secret)
        project_id = principal.project_id if isinstance(principal, Principal) else None
        entry = None if principal is None else session_entry(act_by(principal), found.stored, project_id, begins=False)
        try:
            async with store_deadline():
                await self._store.take(digest, audit=entry)
        finally:
            self._cache.forget_all()  # also after an error: it may be gone

    def is_sent(self, fields: dict[bytes, bytes]) -> bool:
        """Whether the request has a session's cookie."""
        return cookie_secret(fields) is not None

    async def authenticate(self, fields: dict[bytes, bytes], *, is_change: bool) -> Session:
        """The session of a request's cookie.

        Raises LockError `host_not_allowed`; `cross_site_refused` for a change that another page sent, or that lacks the
        session's CSRF token; CredentialRefusedError `invalid_credentials` if the session has ended.
        """
        self.access.check_host(fields)
        if is_change:
            self.access.check_origin(fields)
        secret = cookie_secret(fields)
        if secret is None:  # every first visit: no credential has failed (HTTP-35)
            raise LockError("invalid_credentials", "there is no session: sign in to the dashboard")
        found = await self._cache.get(_digest("session", secret))
        stored = None if found is None else found.stored
        if stored is None or self._clock.now_ms() >= stored.good_until_ms:
            raise refused_credential("this session has ended: sign in to the dashboard again")
        principal = await self._authenticator.principal_of(stored, secret)
        if principal is None:
            raise refused_credential("this session has ended with its credential: sign in to the dashboard again")
        session = _session(secret, stored, principal)
        if is_change and not compare_digest(fields.get(CSRF, b""), session.csrf_token.encode()):
            raise LockError(
                "cross_site_refused", "header X-Volcano-CSRF must be the csrf_token of this session: read /ui/session"
            )
        return session

    def admit(self, session: Session) -> Admission:
        """Count one request of the session and of its project (UI-6). Raises LockError `lock_rate_limited`."""
        limit, principal = SESSION_REQUESTS_PER_MINUTE, session.principal
        what = f"this session's budget of {limit} requests a minute"
        admission = count_request(self._limiter, session.digest.hex(), limit, what)
        if isinstance(principal, Principal):
            limit = PROJECT_SESSION_REQUESTS_PER_MINUTE
            what = f"the budget of {limit} requests a minute of all sessions of this project"
            count_request(self._limiter, f"project {principal.project_id}", limit, what)
        return admission

    async def _add(
        self, purpose: Purpose, principal: Principal | AdminPrincipal, act: Act | None = None
    ) -> tuple[str, StoredSession]:
        secret, now_ms = self._new_secret(), self._clock.now_ms()
        kind, owner_id, credential_digest = self._authenticator.owner_of(principal, secret.encode())
        limit = SIGN_INS_PER_MINUTE
        what = f"this credential's budget of {limit} sign-ins a minute"
        count_request(self._limiter, f"{purpose} {kind} {owner_id}", limit, what)
        good_until_ms = now_ms + _SECONDS[purpose] * 1_000
        digest = _digest(purpose, secret.encode())
        stored = StoredSession(digest, purpose, kind, owner_id, credential_digest, good_until_ms)
        project_id = principal.project_id if isinstance(principal, Principal) else None
        entry = None if act is None else session_entry(act, stored, project_id, begins=True)
        async with store_deadline():
            await self._store.add(stored, _LIMITS[purpose], now_ms, audit=entry)
        return secret, stored

    async def _look_up(self, digest: bytes, read_at_ms: int) -> _FoundSession | None:
        stored = await self._store.session(digest)
        return None if stored is None else _FoundSession(stored, read_at_ms)


def service_key_of(session: Session) -> Principal:
    """The service key of the session. Raises LockError `service_key_required` for an admin token's."""
    principal = session.principal
    if isinstance(principal, AdminPrincipal):
        raise LockError("service_key_required", "lock requests need the session of a service key: sign in with one")
    return principal


def admin_of(session: Session) -> AdminPrincipal:
    """The admin token of the session. Raises LockError `admin_token_required` for a service key's."""
    principal = session.principal
    if isinstance(principal, Principal):
        raise LockError("admin_token_required", "this request needs the session of an admin token: sign in with one")
    return principal


def cookie_name(fields: dict[bytes, bytes], *, is_secure: bool) -> str:
    """The name of the session's cookie at the port of this request: browsers share cookies between ports (UI-3)."""
    port = port_of_host(fields)
    return ("__Host-" if is_secure else "") + _COOKIE_NAME + (f"_{port}" if port else "")


def cookie_secret(fields: dict[bytes, bytes]) -> bytes | None:
    """The session id in the Cookie field, None if there is none that this server can have made.

    Without `__Host-`, another host of the same domain may have made it, unless the name is a loopback name.
    """
    cookies = fields.get(COOKIE)
    if cookies is None:
        return None
    secret = _cookie_secret(cookies, cookie_name(fields, is_secure=True))
    if secret is None and has_loopback_host(fields):
        secret = _cookie_secret(cookies, cookie_name(fields, is_secure=False))
    return secret


def _cookie_secret(cookies: bytes, name: str) -> bytes | None:
    cookie_begin = name.encode() + b"="
    begin = -1
    for _ in range(_COOKIES_TRIED_MAX):
        begin = cookies.find(cookie_begin, begin + 1)
        if begin < 0:
            return None
        if begin == 0 or cookies[begin - 1 : begin] in b" ;":
            rest = cookies[begin + len(cookie_begin) :][: SECRET_LENGTH + 1]
            return rest[:SECRET_LENGTH] if len(rest) == SECRET_LENGTH or rest[-1:] == b";" else None
    return None


def _digest(purpose: Purpose, secret: bytes) -> bytes:
    """What is stored of a session id or a code. They differ, so that neither is looked up or used up as the other."""
    return sha256(b"code " + secret if purpose == "code" else secret).digest()


def _session(secret: bytes, stored: StoredSession, principal: Principal | AdminPrincipal) -> Session:
    ends = [stored.good_until_ms]
    if isinstance(principal, Principal) and principal.good_until_ms is not None:
        ends.append(principal.good_until_ms)
    csrf_token = hmac_digest(secret, b"volcano-locks csrf", "sha256").hex()
    return Session(stored.digest, principal, csrf_token, min(ends))
