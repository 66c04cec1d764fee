"""The lock routes: `/locks`, `/locks/{key}`, `/locks/{key}/lease` and their events. Plain ASGI, for speed.

The order of checks is in `request_checks`. A request counts against the quota once its principal is known, and from
then on its response shows the quota (QUOTA-2, QUOTA-3). A client that disconnects gets no response; its command may
still take effect. If the client of a waiting acquire disconnects, the wait ends and the acquire is never granted
(WAIT-5).
"""

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from ..events import Subscriber
from ..ports.lock_store import RecordKey
from ..queue.wait_request import WaitRequest
from ..rules.errors import LockError
from ..rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Outcome,
    Read,
    Release,
    Renew,
)
from ..rules.quota import Admission, Verdict
from ..rules.values import LockKey, OwnerToken, parse_holder
from ..service.lock_service import LockService
from ..telemetry import Log, Metrics
from . import lock_operations as operations
from .audit_log import is_logged_at_info, log_error, log_outcome
from .auth import Authenticator, Principal, retrieve_exception
from .codec import (
    AUTHORIZATION,
    LOCK_HOLDER,
    LOCK_TOKEN,
    REQUEST_ID,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    client_disconnect,
    header_fields,
    lock_key,
    parse_acquire_body,
    parse_renew_body,
    read_body,
)
from .event_stream import EventStreamResponse, asks_for_stream
from .lock_list_routes import LockListReader, wants_row, watched_prefix
from .lock_operations import LockOperation, lock_operation
from .problems import INTERNAL_MESSAGE, error_for_client
from .request_checks import check_after_credential, check_before_credential, request_id_of
from .responses import LockResponse, error_response, outcome_response, request_headers, send_response

_ALL_EVENTS_KEY: Final = b"events"


@dataclass(slots=True, eq=False)
class _LockRequest:
    """One request, and what the checks have found out about it so far."""

    fields: dict[bytes, bytes]
    query: bytes
    receive: Receive
    id: bytes
    id_fault: LockError | None
    operation: LockOperation | None = None
    raw_key: bytes = b""
    key: str | None = None
    project_id: str | None = None
    admission: Admission | None = None
    wait_ms: int = 0


class LockRoutes:
    """Serves the lock routes. While `draining`, new requests are refused."""

    def __init__(
        self, service: LockService, lock_list: LockListReader, authenticator: Authenticator, log: Log, metrics: Metrics
    ) -> None:
        self.draining = False
        self._service: Final = service
        self._lock_list: Final = lock_list
        self._authenticator: Final = authenticator
        self._log: Final = log
        self._metrics: Final = metrics

    async def serve(self, scope: Scope, raw_path: bytes, receive: Receive, send: Send) -> EventStreamResponse | None:
        """Serve one request whose undecoded path is ALL_LOCKS or begins with PREFIX.

        If the request opens a stream, nothing is sent yet: returns the response, which the caller must run.
        """
        began = perf_counter()
        fields = header_fields(scope)
        request = _LockRequest(fields, scope.get("query_string", b""), receive, *request_id_of(fields.get(REQUEST_ID)))
        try:
            request.operation, request.raw_key = operation, _ = lock_operation(raw_path, scope["method"])
            outcome = await self._outcome(operation, request)
            if isinstance(outcome, EventStreamResponse):
                outcome.headers = request_headers(request.id, request.admission)
                self._metrics.request(operations.WATCH.name, "streaming", perf_counter() - began)
                return outcome
            if not isinstance(outcome, bytes) and (
                self._log.debug_enabled or is_logged_at_info(operation.name, outcome, waited=request.wait_ms > 0)
            ):
                about = {"project_id": request.project_id, "key": request.key, "request_id": request.id.decode()}
                log_outcome(self._log, operation.name, outcome, about)
            response = self._response(operation, outcome)
        except ClientGoneError:
            return None
        except LockError as error:
            log_error(self._log, error, {"request_id": request.id.decode(), "project_id": request.project_id})
            response = error_response(error_for_client(error, self._metrics))
        except Exception as error:  # noqa: BLE001 - the client gets a response without the trace
            self._log.unexpected_error("internal", error, request_id=request.id.decode())
            response = error_response(LockError("internal", INTERNAL_MESSAGE))
        await send_response(send, response, request.id, request.admission)
        if request.wait_ms:
            self._metrics.waited(response.outcome, perf_counter() - began)
        elif request.operation is not None:
            self._metrics.request(request.operation.name, response.outcome, perf_counter() - began)
        return None

    async def _outcome(
        self, operation: LockOperation, request: _LockRequest
    ) -> Outcome | LockError | bytes | EventStreamResponse:
        """The outcome of a request. Raises LockError if a check fails, and ClientGoneError."""
        check_before_credential(request.query, request.fields, draining=self.draining)
        authorization = request.fields.get(AUTHORIZATION)
        principal = self._authenticator.cached_principal(authorization)
        if principal is None:
            principal = await self._authenticator.principal(authorization)
        request.project_id = principal.project_id
        may_draw = operation is operations.RENEW or operation is operations.RELEASE
        limit = principal.requests_per_minute
        admission = self._service.admit_now(principal.project_id, limit, may_draw_on_reserve=may_draw)
        if admission is None:
            admission = await self._service.admit(principal.project_id, limit, may_draw_on_reserve=may_draw)
        request.admission = admission
        if admission.verdict is Verdict.SPENT and (denied := self._service.abandon(principal.project_id, admission)):
            return denied
        try:
            _check_permission(operation, principal)
            check_after_credential(request.query, request.id_fault)
            if operation.is_read_only and (found := await self._read(operation, request, principal)) is not None:
                return found
            key, command = await _command(operation, request)
        except (LockError, ClientGoneError) as error:
            denied = self._service.abandon(principal.project_id, admission)
            if denied is None or isinstance(error, ClientGoneError):
                raise
            return denied
        request.key = key
        lock = RecordKey(principal.project_id, key)
        if request.wait_ms:
            return await self._waited(request, lock, command, admission)
        outcome = await self._service.perform(lock, command, admission)
        assert outcome is not None, "only a wait ends without an outcome"
        return outcome

    async def _waited(
        self, request: _LockRequest, lock: RecordKey, command: Command, admission: Admission
    ) -> Outcome | LockError:
        """The outcome of an acquire that waits. Raises ClientGoneError."""
        authorization = request.fields.get(AUTHORIZATION)

        async def still_may() -> None:
            if self._authenticator.cached_principal(authorization) is None:
                await self._authenticator.principal(authorization)

        gone = asyncio.create_task(client_disconnect(request.receive), name="client-disconnect")
        gone.add_done_callback(retrieve_exception)  # a failed `receive` ends the wait like a disconnect
        try:
            wait = WaitRequest(request.wait_ms, disconnected=gone, authorize=still_may)
            outcome = await self._service.perform(lock, command, admission, wait=wait)
        finally:
            gone.cancel()
        if outcome is None:
            self._metrics.waited("gave_up", 0.0)
            raise ClientGoneError
        return outcome

    async def _read(
        self, operation: LockOperation, request: _LockRequest, principal: Principal
    ) -> bytes | EventStreamResponse | None:
        """The list, row or stream that is asked for; None for a plain read. Raises LockError."""
        if operation is operations.LIST:
            return await self._lock_list.page(principal.project_id, request.query)
        if operation is operations.READ and request.raw_key == _ALL_EVENTS_KEY and asks_for_stream(request.query):
            request.operation = operation = operations.WATCH_ALL
        if operation is operations.WATCH or operation is operations.WATCH_ALL:
            key = None if operation is operations.WATCH_ALL else lock_key(request.raw_key)
            prefix = "" if key is not None else watched_prefix(request.query)
            subscriber = Subscriber(principal.project_id, key=key, prefix=prefix)
            return await EventStreamResponse.open(self._service.hub, self._authenticator, subscriber, request.fields)
        if not request.query or not wants_row(request.query):
            return None
        request.operation = operations.VIEW
        request.key = key = lock_key(request.raw_key)
        return await self._lock_list.row(principal.project_id, key)

    def _response(self, operation: LockOperation, outcome: Outcome | LockError | bytes) -> LockResponse:
        if isinstance(outcome, bytes):
            return LockResponse(200, outcome, "listed", [])
        if isinstance(outcome, LockError):
            return error_response(error_for_client(outcome, self._metrics))
        return outcome_response(operation, outcome)


def _check_permission(operation: LockOperation, principal: Principal) -> None:
    """Raise LockError `missing_permission` (HTTP-15)."""
    may = principal.may_read_locks if operation.is_read_only else principal.may_manage_locks
    if not may:
        needed = "locks.read, locks.manage or *" if operation.is_read_only else "locks.manage or *"
        raise LockError("missing_permission", f"this service key lacks a permission: the request needs {needed}")


async def _command(operation: LockOperation, request: _LockRequest) -> tuple[LockKey, Command]:
    """The command in the path, the header fields and the body, or LockError."""
    key = lock_key(request.raw_key)
    fields = request.fields
    if not operation.on_lease:
        return key, Read() if operation is operations.READ else ForceRelease()
    token = fields.get(LOCK_TOKEN)
    owner = OwnerToken.parse(None if token is None else token.decode("latin-1"))
    holder = fields.get(LOCK_HOLDER)
    label = None if holder is None else parse_holder(holder.decode("latin-1"))
    if not operation.takes_ttl:
        return key, Release(owner.digest)
    body = await read_body(request.receive)
    if operation is operations.RENEW:
        return key, Renew(owner.digest, parse_renew_body(body), label)
    ttl, request.wait_ms = parse_acquire_body(body)
    return key, Acquire(owner.digest, ttl, label)
