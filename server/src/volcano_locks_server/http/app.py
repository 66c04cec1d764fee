"""The ASGI application: lock routes directly, everything else by the tables below.

The same object runs under any ASGI server, and in-process in tests. Every response, whatever fails, is JSON with an
error code and has a request id. `drain` completes the requests in flight and refuses new ones (HTTP-23).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ..ports.admin_tokens import AdminTokens
from ..ports.audit import AuditLog
from ..ports.clock import Clock
from ..ports.lock_store import LockStore
from ..ports.registry import Registry
from ..ports.snapshot import Backups
from ..rules.errors import LockError
from ..rules.shares import Budget, Budgets, past_share
from ..service.lock_service import LockService
from ..service.rate_limiter import LocalRateLimiter
from ..telemetry import Log, Metrics
from .admin_routes import AdminRoutes
from .admin_token_routes import AdminTokenRoutes
from .audit_log import address_of, log_error, made_by
from .audit_routes import AuditRoutes
from .auth import AdminPrincipal, Authenticator, CredentialRefusedError, Principal
from .backup_routes import BackupRoutes
from .codec import (
    AUTHORIZATION,
    FIELDS_IN_SCOPE,
    REQUEST_ID,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    header_fields,
)
from .dashboard_headers import with_dashboard_headers
from .dashboard_routes import DashboardRoutes, is_under_dashboard
from .failed_credentials import FailedCredentials
from .health_routes import HealthRoutes
from .history_routes import HistoryReader
from .in_flight import InFlight
from .lease_requests import LeaseRequests
from .lock_list_routes import LockListReader
from .lock_operations import is_lock_address
from .lock_routes import LockRoutes
from .node_routes import NodeRoutes, ThisNode
from .problems import INTERNAL_MESSAGE, MethodNotAllowedError, error_for_client
from .request_budget import READER_REQUESTS_PER_MINUTE, count_request
from .request_checks import check_after_credential, check_before_credential, request_id_of
from .responses import error_response, send_response
from .sessions import NO_STORE, admin_of

ADDRESS_BYTES_MAX: Final = 1_024  # longer than every address of the table with valid ids
TAKE_SESSION: Final = frozenset({"activity", "audit", "nodes", "projects"})
"""First names of the addresses that accept the dashboard's session."""

Endpoint = Callable[[Request], Awaitable[Response]]
ByMethod = dict[str, Endpoint]
Routes = dict[str, ByMethod]
Access = Literal["admin", "reader", "none"]


def _admin_routes(admin: AdminRoutes, tokens: AdminTokenRoutes, audit: AuditRoutes, backups: BackupRoutes) -> Routes:
    """The addresses that need an admin token."""
    keys = "/projects/{project_id}/service-keys"
    return {
        "/projects": {"GET": admin.projects, "POST": admin.create_project},
        "/projects/{project_id}": {
            "GET": admin.project,
            "PATCH": admin.change_project,
            "DELETE": admin.delete_project,
        },
        keys: {"GET": admin.service_keys, "POST": admin.create_service_key},
        keys + "/{key_id}": {"GET": admin.service_key, "DELETE": admin.delete_service_key},
        keys + "/{key_id}/regenerate": {"POST": admin.regenerate_service_key},
        "/admin-tokens": {"GET": tokens.page, "POST": tokens.create},
        "/admin-tokens/{token_id}": {"DELETE": tokens.delete},
        "/audit": {"GET": audit.page},
        "/backups": {"POST": backups.create},
        "/backups/{backup_id}": {"GET": backups.part, "DELETE": backups.delete},
    }


def _reader_routes(audit: AuditRoutes, nodes: NodeRoutes) -> Routes:
    """The addresses that need an admin token, or a service key that may read locks."""
    return {
        "/projects/{project_id}/audit": {"GET": audit.project_page},
        "/nodes": {"GET": nodes.nodes},
        "/activity": {"GET": nodes.activity},
    }


def _open_routes(health: HealthRoutes) -> Routes:
    """The addresses that need no credential, the metrics if they are configured so (OPS-15)."""
    return {
        "/healthz": {"GET": health.healthz},
        "/readyz": {"GET": health.readyz},
        "/metrics": {"GET": health.metrics},
        "/openapi.json": {"GET": health.openapi},
    }


class App:
    """One server's ASGI application over its service, store and registry."""

    def __init__(
        self,
        *,
        service: LockService,
        store: LockStore,
        registry: Registry,
        admin_tokens: AdminTokens,
        audit: AuditLog,
        authenticator: Authenticator,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        backups: Backups | None = None,
        dashboard: DashboardRoutes | None = None,
        node: ThisNode | None = None,
    ) -> None:
        self._log: Final = log
        self._metrics: Final = metrics
        self._service: Final = service
        lock_list = LockListReader(store, service.hub.waiters, log, service.budgets, first=service.queues.first)
        history = HistoryReader(store, service.budgets)
        self._failures: Final = FailedCredentials(clock, metrics)
        sessions = None if dashboard is None else dashboard.sessions
        self._locks: Final = LockRoutes(
            service,
            lock_list,
            authenticator,
            log,
            metrics,
            history=history,
            failures=self._failures,
            sessions=sessions,
        )
        self._health: Final = HealthRoutes(store, metrics, clock, log, authenticator)
        self._backups: Final = BackupRoutes(backups, audit, clock, log)
        admin = AdminRoutes(registry, authenticator, clock, log)
        tokens = AdminTokenRoutes(admin_tokens, authenticator, clock, log)
        audit_routes = AuditRoutes(audit)
        self._router: Final = _Router(
            {
                "admin": _admin_routes(admin, tokens, audit_routes, self._backups),
                "reader": _reader_routes(audit_routes, NodeRoutes(node or ThisNode(), service, self._health, clock)),
                "none": _open_routes(self._health),
            },
            authenticator=authenticator,
            budgets=service.budgets,
            dashboard=dashboard,
            reader_limiter=LocalRateLimiter(clock, owner_reserve=False),
        )
        self._has_dashboard: Final = dashboard is not None
        self._in_flight: Final = InFlight()
        self.lease_requests: Final = LeaseRequests(service, authenticator, log, metrics, self._in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        raw_path: bytes = scope.get("raw_path") or quote(scope["path"], safe="/:").encode()
        if scope.get("root_path"):
            raw_path = raw_path.removeprefix(quote(scope["root_path"], safe="/:").encode())
        stream = None
        self._in_flight.enter()
        try:
            if is_lock_address(raw_path):
                stream = await self._locks.serve(scope, raw_path, receive, send)
            else:
                await self._serve_route(scope, raw_path, receive, send)
        finally:
            self._in_flight.leave()
        if stream is not None:
            await stream.run(receive, send)  # not counted as in flight: `drain` ends it at once

    def is_idle_but_for(self, waiting: int) -> bool:
        """Whether nothing runs but `waiting` requests in wait queues; for tests that move the clock."""
        still = self._service.is_idle and self._service.hub.is_idle
        return still and self._in_flight.count == waiting == self._service.queues.table.request_count

    async def probe_store(self) -> None:
        """The probe of `/readyz`, without its deadline. Raises StoreUnavailableError."""
        await self._health.probe_store()

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and complete those in flight. Returns False if some are left after `seconds`."""
        self.lease_requests.enabled = False
        self._locks.draining = self._health.draining = True
        self._service.queues.stop()
        self._service.hub.end_subscribers()
        self._backups.discard()
        self._failures.stop()
        await self._health.stop_counting()
        return await self._in_flight.wait_until_idle(seconds)

    async def _serve_route(self, scope: Scope, raw_path: bytes, receive: Receive, send: Send) -> None:
        fields = header_fields(scope)
        request_id, fault = request_id_of(fields.get(REQUEST_ID))
        scope = {
            **scope,
            "path": raw_path.decode("latin-1"),  # as it was sent: HTTP-6
            "root_path": "",
            FIELDS_IN_SCOPE: fields,
            "volcano.request_id": request_id.decode(),
            "volcano.request_id_fault": fault,
            "volcano.draining": self._health.draining,
            "volcano.actor": None,
            "volcano.has_session": False,
        }
        started = False
        is_of_dashboard = self._has_dashboard and is_under_dashboard(scope["path"])

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message["headers"], (REQUEST_ID, request_id)]
                if is_of_dashboard:
                    headers = with_dashboard_headers(headers)
                elif scope["volcano.has_session"]:
                    headers.append(NO_STORE)
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._router(scope, receive, send_with_id)
        except ClientGoneError:
            return
        except LockError as error:
            log_error(self._log, error, made_by(scope))
            if isinstance(error, CredentialRefusedError) and error.is_failed_credential:
                await self._failures.slow_down(address_of(scope))
            response = error_response(error_for_client(error, self._metrics))
            if is_of_dashboard:
                response = response._replace(headers=with_dashboard_headers(response.headers))
            elif scope["volcano.has_session"]:
                response.headers.append(NO_STORE)
            await send_response(send, response, request_id, None)
        except Exception as error:  # noqa: BLE001 - the client gets a response without the trace
            self._log.unexpected_error("internal", error, request_id=request_id.decode())
            if not started:
                await send_response(send, error_response(LockError("internal", INTERNAL_MESSAGE)), request_id, None)


class _Router:
    """Finds the endpoint of an address. Every second segment of a path is an id of what the segment before it names."""

    def __init__(
        self,
        routes: Mapping[Access, Routes],
        *,
        authenticator: Authenticator,
        budgets: Budgets,
        dashboard: DashboardRoutes | None,
        reader_limiter: LocalRateLimiter,
    ) -> None:
        self._authenticator: Final = authenticator
        self._reader_limiter: Final = reader_limiter
        self._budgets: Final = budgets
        self._dashboard: Final = dashboard
        self._found: Final[dict[tuple[tuple[str, ...], int], tuple[ByMethod, list[str], Access]]] = {}
        for access, by_path in routes.items():
            for path, by_method in by_path.items():
                names, ids = _split(path)
                self._found[names, len(ids)] = by_method, [one.strip("{}") for one in ids], access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if self._dashboard is not None and is_under_dashboard(path):
            await (await self._dashboard.serve(Request(scope, receive)))(scope, receive, send)
            return
        names, ids = _split(path if len(path) <= ADDRESS_BYTES_MAX and path.startswith("/") else "")
        found = self._found.get((names, len(ids)))
        if found is None or "" in ids:
            raise LockError("not_found", "there is no such address: see /openapi.json for all addresses")
        by_method, id_names, access = found
        scope["path_params"] = dict(zip(id_names, ids, strict=True))
        request = Request(scope, receive)
        endpoint = by_method.get(request.method)
        if endpoint is None:
            raise MethodNotAllowedError(", ".join(by_method))
        is_open = access == "none"
        fields: dict[bytes, bytes] = scope[FIELDS_IN_SCOPE]
        query: bytes = scope["query_string"]
        check_before_credential(query, fields, draining=not is_open and scope["volcano.draining"])
        if not is_open:
            takes_session = names[0] in TAKE_SESSION
            scope["volcano.actor"] = await self._actor(access, scope, takes_session=takes_session)
        check_after_credential(query, None if is_open else scope["volcano.request_id_fault"])
        if is_open:
            await (await endpoint(request))(scope, receive, send)
            return
        actor = scope["volcano.actor"]
        project_id = actor.project_id if isinstance(actor, Principal) else None
        budget = self._budgets.admin_requests if project_id is None else self._budgets.reader_requests
        _take_place(budget, project_id)
        try:
            await (await endpoint(request))(scope, receive, send)
        finally:
            budget.give_back(project_id)

    async def _actor(self, access: Access, scope: Scope, *, takes_session: bool) -> Principal | AdminPrincipal:
        """Whose request this is: by its credential, or else by the dashboard's session (UI-5). Raises LockError."""
        fields: dict[bytes, bytes] = scope[FIELDS_IN_SCOPE]
        authorization = fields.get(AUTHORIZATION)
        sessions = None if self._dashboard is None or not takes_session else self._dashboard.sessions
        if authorization is None and sessions is not None and sessions.is_sent(fields):
            session = await sessions.authenticate(fields, is_change=scope["method"] != "GET")
            scope["volcano.has_session"] = True
            actor = session.principal if access == "reader" else admin_of(session)
            sessions.admit(session)
        elif access == "reader":
            actor = await self._authenticator.any_principal(authorization)
            if isinstance(actor, Principal):
                limit = READER_REQUESTS_PER_MINUTE
                what = f"this project's budget of {limit} requests a minute for the audit, activity and nodes"
                count_request(self._reader_limiter, actor.project_id, limit, what)
        else:
            return await self._authenticator.require_admin(authorization)
        if isinstance(actor, Principal) and not actor.may_read_locks:
            needed = "this service key lacks a permission: the request needs locks.read, locks.manage or *"
            raise LockError("missing_permission", needed)
        return actor


def _take_place(budget: Budget, project_id: str | None) -> None:
    """Raise LockError `too_many_requests` or `lock_service_unavailable` if the budget has no place (HTTP-33)."""
    excess = budget.take(project_id)
    if excess == "share":
        raise past_share("too_many_requests", "requests in progress")
    if excess is not None:
        busy = f"{budget.limit} such requests are in progress here: try again in a moment"
        raise LockError("lock_service_unavailable", busy, retry_after_seconds=1)


def _split(path: str) -> tuple[tuple[str, ...], list[str]]:
    """The names and the ids in a path."""
    parts = path[1:].split("/")
    return tuple(parts[::2]), parts[1::2]
