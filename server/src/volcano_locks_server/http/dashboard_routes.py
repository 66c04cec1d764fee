"""Everything under `/ui`: sign-in and sign-out, one-time codes, and the dashboard's files (UI rules).

POST /ui/session      a code or a credential becomes a session; its id is in the cookie alone
GET /ui/session       whose session it is, and its CSRF token
DELETE /ui/session    sign out
POST /ui/codes        a one-time code for the credential in `Authorization`
GET /ui/…             the files
"""

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..ports.audit_entry import Act
from ..ports.clock import Clock
from ..rules.errors import LockError
from ..rules.values import shown
from ..telemetry import Log
from .acts import act_by
from .audit_log import address_of, made_by
from .auth import AdminPrincipal, Authenticator, Principal
from .codec import AUTHORIZATION, FIELDS_IN_SCOPE, Scope, instant, json_object, read_body
from .dashboard_access import is_https, is_loopback_request
from .problems import MethodNotAllowedError
from .request_checks import check_after_credential, check_before_credential
from .responses import json_response
from .sessions import SESSION_SECONDS, Session, Sessions, cookie_name

PREFIX: Final = "/ui"
_CODE_LENGTH_MAX: Final = 128

StaticFiles = Callable[[Request], Awaitable[Response]]
"""Serves `GET /ui` and below from the dashboard's files; raises LockError `not_found`."""


def is_under_dashboard(path: str) -> bool:
    """Whether this path is the dashboard's."""
    return path == PREFIX or path.startswith(PREFIX + "/")


async def no_files(request: Request) -> Response:
    """In place of the dashboard's files."""
    raise LockError("not_found", f"there is no page {shown(request.url.path)}")


class DashboardRoutes:
    """The endpoints under `/ui` of one server."""

    def __init__(
        self,
        sessions: Sessions,
        authenticator: Authenticator,
        clock: Clock,
        log: Log,
        static_files: StaticFiles = no_files,
    ) -> None:
        self.sessions: Final = sessions
        self._authenticator: Final = authenticator
        self._clock: Final = clock
        self._log: Final = log
        self._static_files: Final = static_files
        self._by_path: Final = {
            "/ui/session": {"GET": self._session, "POST": self._sign_in, "DELETE": self._sign_out},
            "/ui/codes": {"POST": self._new_code},
        }

    async def serve(self, request: Request) -> Response:
        """The response to a request under `/ui`. Raises LockError."""
        scope = request.scope
        fields: dict[bytes, bytes] = scope[FIELDS_IN_SCOPE]
        by_method = self._by_path.get(scope["path"], {"GET": self._static_files})
        endpoint = by_method.get(request.method)
        if endpoint is None:
            raise MethodNotAllowedError(", ".join(by_method))
        check_before_credential(scope["query_string"], fields, draining=scope["volcano.draining"])
        self.sessions.access.check_host(fields)
        return await endpoint(request)

    async def _new_code(self, request: Request) -> Response:
        principal = await self._authenticator.any_principal(request.scope[FIELDS_IN_SCOPE].get(AUTHORIZATION))
        request.scope["volcano.actor"] = principal
        _check_may_use(principal)
        _check_input(request.scope)
        code, good_until_ms = await self.sessions.new_code(principal)
        self._log.info("dashboard_code_created", **made_by(request.scope))
        return json_response({"code": code, "expires_at": instant(good_until_ms)})

    async def _sign_in(self, request: Request) -> Response:
        scope = request.scope
        fields: dict[bytes, bytes] = scope[FIELDS_IN_SCOPE]
        self.sessions.access.check_origin(fields)
        _check_input(scope)
        given = json_object(await read_body(request.receive), ("code", "credential"))
        if len(given) != 1:
            raise LockError("invalid_request", "the body must have either code or credential")
        if "code" in given:
            principal = await self.sessions.redeem(_text(given["code"], "code", _CODE_LENGTH_MAX))
        else:
            self.sessions.access.check_private(scope, fields)
            credential = _text(given["credential"], "credential")
            principal = await self._authenticator.any_principal(b"Bearer " + credential.encode())
        scope["volcano.actor"] = principal
        _check_may_use(principal)
        secret, session = await self.sessions.begin(principal, self._act(scope, principal))
        self._log.info("dashboard_signed_in", **made_by(scope), way=next(iter(given)))
        response = json_response(_body(session))
        response.headers["set-cookie"] = _cookie(secret, SESSION_SECONDS, scope, fields)
        return response

    def _act(self, scope: Scope, principal: Principal | AdminPrincipal) -> Act:
        return act_by(principal, address_of(scope), scope["volcano.request_id"], self._clock.now_ms())

    async def _session(self, request: Request) -> Response:
        session = await self.sessions.authenticate(request.scope[FIELDS_IN_SCOPE], is_change=False)
        self.sessions.admit(session)
        _check_input(request.scope)
        return json_response(_body(session))

    async def _sign_out(self, request: Request) -> Response:
        fields: dict[bytes, bytes] = request.scope[FIELDS_IN_SCOPE]
        self.sessions.access.check_origin(fields)
        _check_input(request.scope)
        await self.sessions.end(fields, lambda principal: self._act(request.scope, principal))
        response = Response(status_code=204)
        response.headers["set-cookie"] = _cookie("", 0, request.scope, fields)
        return response


def _check_may_use(principal: Principal | AdminPrincipal) -> None:
    if isinstance(principal, Principal) and not principal.may_read_locks:
        raise LockError(
            "missing_permission",
            "this service key lacks a permission: the dashboard needs locks.read, locks.manage or *",
        )


def _check_input(scope: Scope) -> None:
    """Raise LockError `invalid_request_id` or `invalid_request`, once the credential is accepted (HTTP-13)."""
    check_after_credential(scope["query_string"], scope["volcano.request_id_fault"])


def _text(value: object, field: str, length_max: int | None = None) -> str:
    if not isinstance(value, str) or not value.isascii() or (length_max is not None and len(value) > length_max):
        limit = "" if length_max is None else f" of at most {length_max} characters"
        raise LockError("invalid_request", f"{field} must be ASCII text{limit}")
    return value


def _body(session: Session) -> dict[str, object]:
    principal = session.principal
    common = {"csrf_token": session.csrf_token, "expires_at": instant(session.good_until_ms)}
    if isinstance(principal, AdminPrincipal):
        whose = {"kind": "admin_token", "name": principal.name, "project_id": None, "project_name": None}
        return {**whose, "permissions": [], **common}
    return {
        "kind": "service_key",
        "name": principal.key_name,
        "project_id": principal.project_id,
        "project_name": principal.project_name,
        "permissions": list(principal.permissions),
        **common,
    }


def _cookie(secret: str, seconds: int, scope: Scope, fields: dict[bytes, bytes]) -> str:
    """The Set-Cookie field. Only a browser on this machine gets a cookie that it may send without TLS."""
    is_secure = is_https(scope) or not is_loopback_request(scope, fields)
    name, secure = cookie_name(fields, is_secure=is_secure), "; Secure" if is_secure else ""
    return f"{name}={secret}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}"
