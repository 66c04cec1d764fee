"""The ASGI application: lock routes directly, everything else by the tables below.

The same object runs under any ASGI server, and in-process in tests. Every response, whatever fails, is JSON with an
error code and has a request id. `drain` completes the requests in flight and refuses new ones (HTTP-23).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ..ports.clock import Clock
from ..ports.lock_store import LockStore
from ..ports.registry import Registry
from ..ports.snapshot import Backups
from ..rules.errors import LockError
from ..service.lock_service import LockService
from ..telemetry import Log, Metrics
from .admin_routes import AdminRoutes
from .audit_log import log_error
from .auth import Authenticator
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
from .health_routes import HealthRoutes
from .lock_list_routes import LockListReader
from .lock_operations import ALL_LOCKS, PREFIX
from .lock_routes import LockRoutes
from .problems import INTERNAL_MESSAGE, MethodNotAllowedError, error_for_client
from .request_checks import check_after_credential, check_before_credential, request_id_of
from .responses import error_response, send_response

ADDRESS_BYTES_MAX: Final = 1_024  # longer than every address of the table with valid ids

Endpoint = Callable[[Request], Awaitable[Response]]
ByMethod = dict[str, Endpoint]
Routes = dict[str, ByMethod]


def _admin_routes(admin: AdminRoutes, backups: BackupRoutes) -> Routes:
    """The addresses that need the admin token."""
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
        "/backups": {"POST": backups.create},
        "/backups/{backup_id}": {"GET": backups.part, "DELETE": backups.delete},
    }


def _open_routes(health: HealthRoutes) -> Routes:
    """The addresses that need no credential."""
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
        authenticator: Authenticator,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        backups: Backups | None = None,
    ) -> None:
        self._log: Final = log
        self._metrics: Final = metrics
        self._service: Final = service
        lock_list = LockListReader(store, service.hub.waiters)
        self._locks: Final = LockRoutes(service, lock_list, authenticator, log, metrics)
        self._health: Final = HealthRoutes(store, metrics)
        self._backups: Final = BackupRoutes(backups, log)
        admin = AdminRoutes(registry, authenticator, clock, log)
        self._router: Final = _Router(
            need_admin_token=_admin_routes(admin, self._backups),
            need_no_credential=_open_routes(self._health),
            authenticator=authenticator,
        )
        self._in_flight = 0
        self._idle: Final = asyncio.Event()

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
        self._in_flight += 1
        try:
            if raw_path.startswith(PREFIX) or raw_path == ALL_LOCKS:
                stream = await self._locks.serve(scope, raw_path, receive, send)
            else:
                await self._serve_route(scope, raw_path, receive, send)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        if stream is not None:
            await stream.run(receive, send)  # not counted as in flight: `drain` ends it at once

    def is_idle_but_for(self, waiting: int) -> bool:
        """Whether nothing runs but `waiting` requests in wait queues; for tests that move the clock."""
        still = self._service.is_idle and self._service.hub.is_idle
        return still and self._in_flight == waiting == self._service.queues.table.request_count

    async def drain(self, seconds: float) -> bool:
        """Refuse new requests and complete those in flight. Returns False if some are left after `seconds`."""
        self._locks.draining = self._health.draining = True
        self._service.queues.stop()
        self._service.hub.end_subscribers()
        self._backups.discard()
        self._idle.clear()
        if not self._in_flight:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

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
        }
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], (REQUEST_ID, request_id)]}
            await send(message)

        try:
            await self._router(scope, receive, send_with_id)
        except ClientGoneError:
            return
        except LockError as error:
            log_error(self._log, error, {"request_id": request_id.decode(), "project_id": None})
            response = error_response(error_for_client(error, self._metrics))
            await send_response(send, response, request_id, None)
        except Exception as error:  # noqa: BLE001 - the client gets a response without the trace
            self._log.unexpected_error("internal", error, request_id=request_id.decode())
            if not started:
                await send_response(send, error_response(LockError("internal", INTERNAL_MESSAGE)), request_id, None)


class _Router:
    """Finds the endpoint of an address. Every second segment of a path is an id of what the segment before it names."""

    def __init__(self, *, need_admin_token: Routes, need_no_credential: Routes, authenticator: Authenticator) -> None:
        self._authenticator: Final = authenticator
        self._found: Final[dict[tuple[tuple[str, ...], int], tuple[ByMethod, list[str], bool]]] = {}
        for routes, needs_admin in ((need_admin_token, True), (need_no_credential, False)):
            for path, by_method in routes.items():
                names, ids = _split(path)
                self._found[names, len(ids)] = by_method, [one.strip("{}") for one in ids], needs_admin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        names, ids = _split(path if len(path) <= ADDRESS_BYTES_MAX else "")
        found = self._found.get((names, len(ids)))
        if found is None or "" in ids:
            raise LockError("not_found", "there is no such address: see /openapi.json for all addresses")
        by_method, id_names, needs_admin = found
        scope["path_params"] = dict(zip(id_names, ids, strict=True))
        request = Request(scope, receive)
        endpoint = by_method.get(request.method)
        if endpoint is None:
            raise MethodNotAllowedError(", ".join(by_method))
        fields: dict[bytes, bytes] = scope[FIELDS_IN_SCOPE]
        query: bytes = scope["query_string"]
        check_before_credential(query, fields, draining=needs_admin and scope["volcano.draining"])
        if needs_admin:
            await self._authenticator.require_admin(fields.get(AUTHORIZATION))
        check_after_credential(query, scope["volcano.request_id_fault"] if needs_admin else None)
        await (await endpoint(request))(scope, receive, send)


def _split(path: str) -> tuple[tuple[str, ...], list[str]]:
    """The names and the ids in a path."""
    parts = path[1:].split("/")
    return tuple(parts[::2]), parts[1::2]
