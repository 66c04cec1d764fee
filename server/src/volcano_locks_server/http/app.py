"""The ASGI application: lock routes straight, everything else by a table of addresses.

The same object runs under any ASGI server and in-process in tests. Every answer, whatever fails, is ours: JSON
with a code, and a request id. `drain` lets what is in flight end and turns the rest away (HTTP-23).
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
from ..rules.errors import LockError, StoreUnavailableError
from ..service.lock_service import LockService
from ..telemetry import Log, Metrics
from .admin_routes import Admin
from .audit_log import tell_failure
from .auth import Access
from .backup_routes import BackupRoutes
from .codec import (
    AUTHORIZATION,
    CONTENT_LENGTH,
    REQUEST_ID,
    ClientGoneError,
    Message,
    Receive,
    Scope,
    Send,
    headers_of,
    refuse_long_body,
    refuse_long_query,
    refuse_many_parameters,
)
from .health_routes import Operations
from .lock_list_routes import Listing
from .lock_routes import ALL_LOCKS, PREFIX, LockRoutes, request_id_of
from .problems import (
    DRAINING_MESSAGE,
    INTERNAL_MESSAGE,
    JSON_TYPE,
    STATUS_BY_CODE,
    UNAVAILABLE_MESSAGE,
    MethodNotAllowedError,
    problem_body,
    problem_headers,
)

ADDRESS_BYTES_MAX: Final = 1_024  # longer than each address that is served, with ids that look like any

Endpoint = Callable[[Request], Awaitable[Response]]


class App:
    """One server's ASGI application over its service, store and registry."""

    def __init__(
        self,
        *,
        service: LockService,
        store: LockStore,
        registry: Registry,
        access: Access,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        backups: Backups | None = None,
    ) -> None:
        self._log: Final = log
        self._metrics: Final = metrics
        self._service: Final = service
        self._hub: Final = service.hub
        self._locks: Final = LockRoutes(service, Listing(store, service.hub.waiters), access, log, metrics)
        self._operations: Final = Operations(store, metrics)
        self._backups: Final = BackupRoutes(backups, log)
        self._addresses: Final = _addresses(
            Admin(registry, access, clock, log), self._backups, self._operations, access
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
                await self._serve_rest(scope, raw_path, receive, send)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        if stream is not None:
            await stream.run(receive, send)  # not in flight: a stop ends it

    def rests_with(self, waiting: int) -> bool:
        """Whether all that goes on is `waiting` requests waiting in lines: for whoever moves the clock."""
        still = self._service.is_idle and self._hub.is_idle
        return still and self._in_flight == waiting == self._service.queues.request_count

    async def drain(self, seconds: float) -> bool:
        """Turn new requests away and wait until those in flight are answered; False if `seconds` were too few."""
        self._locks.draining = self._operations.draining = True
        self._service.stop_waiting()
        self._hub.end_subscribers()
        self._backups.forget()
        self._idle.clear()
        if not self._in_flight:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _serve_rest(self, scope: Scope, raw_path: bytes, receive: Receive, send: Send) -> None:
        found = headers_of(scope)
        request_id, fault = request_id_of(found.get(REQUEST_ID))
        scope = {
            **scope,
            "path": raw_path.decode("latin-1"),  # as it was sent: HTTP-6
            "root_path": "",
            "volcano.headers": found,
            "volcano.request_id": request_id.decode(),
            "volcano.request_id_fault": fault,
            "volcano.draining": self._operations.draining,
        }
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], (REQUEST_ID, request_id)]}
            await send(message)

        try:
            await self._addresses(scope, receive, send_with_id)
        except ClientGoneError:
            return
        except LockError as error:
            await _send_problem(send_with_id, self._failure(error, request_id))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer without its trace
            self._log.bug("internal", error, request_id=request_id.decode())
            if not started:
                await _send_problem(send_with_id, LockError("internal", INTERNAL_MESSAGE))

    def _failure(self, error: LockError, request_id: bytes) -> LockError:
        """The error as the client is to see it; counted and logged as it is."""
        if self._log.often():
            tell_failure(self._log, error, request_id.decode(), None)
        if not isinstance(error, StoreUnavailableError):
            return error
        self._metrics.store_error(error.cause_code)
        return LockError(error.code, UNAVAILABLE_MESSAGE, retry_after_seconds=error.retry_after_seconds)


class _Resource:
    """One address: its methods, and the access its callers need (None: none)."""

    def __init__(self, access: Access | None, **by_method: Endpoint) -> None:
        self._access: Final = access
        self._by_method: Final = by_method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        endpoint = self._by_method.get(request.method)
        if endpoint is None:
            raise MethodNotAllowedError(", ".join(self._by_method))
        found: dict[bytes, bytes] = scope["volcano.headers"]
        query: bytes = scope["query_string"]
        refuse_long_query(query)
        refuse_long_body(found.get(CONTENT_LENGTH))
        if self._access is not None:
            if scope["volcano.draining"]:
                raise LockError("lock_service_unavailable", DRAINING_MESSAGE, retry_after_seconds=1)
            await self._access.admin(found.get(AUTHORIZATION))
            if scope["volcano.request_id_fault"] is not None:
                raise scope["volcano.request_id_fault"]
        refuse_many_parameters(query)
        await (await endpoint(request))(scope, receive, send)


class _Addresses:
    """Finds the resource of an address. Every second part of a path is the id of what the part before it names."""

    def __init__(self, resources: dict[str, _Resource]) -> None:
        self._found: Final = {}
        for path, resource in resources.items():
            names, ids = _split(path)
            self._found[names, len(ids)] = resource, [one.strip("{}") for one in ids]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        names, ids = _split(path if len(path) <= ADDRESS_BYTES_MAX else "")
        found = self._found.get((names, len(ids)))
        if found is None or "" in ids:
            raise LockError("not_found", "there is no such address: see /openapi.json for those there are")
        resource, id_names = found
        scope["path_params"] = dict(zip(id_names, ids, strict=True))
        await resource(scope, receive, send)


def _split(path: str) -> tuple[tuple[str, ...], list[str]]:
    """The names and the ids in a path."""
    parts = path[1:].split("/")
    return tuple(parts[::2]), parts[1::2]


def _addresses(admin: Admin, backups: BackupRoutes, operations: Operations, access: Access) -> _Addresses:
    keys = "/projects/{project_id}/service-keys"
    guarded = {
        "/projects": _Resource(access, GET=admin.projects, POST=admin.create_project),
        "/projects/{project_id}": _Resource(
            access, GET=admin.project, PATCH=admin.change_project, DELETE=admin.delete_project
        ),
        keys: _Resource(access, GET=admin.service_keys, POST=admin.create_service_key),
        keys + "/{key_id}": _Resource(access, GET=admin.service_key, DELETE=admin.delete_service_key),
        keys + "/{key_id}/regenerate": _Resource(access, POST=admin.regenerate_service_key),
        "/backups": _Resource(access, POST=backups.create),
        "/backups/{backup_id}": _Resource(access, GET=backups.part, DELETE=backups.delete),
    }
    open_to_all = {
        "/healthz": _Resource(None, GET=operations.healthz),
        "/readyz": _Resource(None, GET=operations.readyz),
        "/metrics": _Resource(None, GET=operations.metrics),
        "/openapi.json": _Resource(None, GET=operations.openapi),
    }
    return _Addresses(guarded | open_to_all)


async def _send_problem(send: Send, error: LockError) -> None:
    body = problem_body(error.code, error.message)
    headers = [
        *problem_headers(error.code, error.retry_after_seconds),
        JSON_TYPE,
        (b"content-length", b"%d" % len(body)),
    ]
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", error.allowed.encode()))
    await send({"type": "http.response.start", "status": STATUS_BY_CODE[error.code], "headers": headers})
    await send({"type": "http.response.body", "body": body})
