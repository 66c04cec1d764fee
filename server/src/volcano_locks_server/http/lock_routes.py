"""The lock routes: `/locks`, `/locks/{key}`, `/locks/{key}/lease`, their events and history. Plain ASGI, for speed.

The order of checks is in `request_checks`. A request counts against the quota once its principal is known, and from
then on its response shows the quota (QUOTA-2, QUOTA-3). A client that disconnects gets no response; its command may
still take effect. If the client of a waiting acquire disconnects, the wait ends and the acquire is never granted
(WAIT-5).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from ..events import Subscriber
from ..ports.audit_entry import Act
from ..ports.lock_store import RecordKey
from ..queue.wait_request import WaitRequest
from ..rules.errors import LockError
from ..rules.hold import Requester
from ..rules.lease import Command, Outcome
from ..rules.quota import Admission, Verdict
from ..rules.values import LockKey
from ..service.activity import FORCED
from ..service.lock_service import LockService
from ..telemetry import Log, Metrics
from . import lock_operations as operations
from .acts import act_by
from .audit_log import address_of, is_logged_at_info, log_error, log_outcome, requester
from .auth import Authenticator, CredentialRefusedError, Principal
from .codec import (
    AUTHORIZATION,
    CLIENT_IS_GONE,
    LAST_EVENT_ID,
    REQUEST_ID,
    USER_AGENT,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    client_disconnect,
    header_fields,
    lock_key,
    read_body,
)
from .commands import lease_command, lease_fields
from .credential_cache import retrieve_exception
from .event_stream import EventStreamResponse, asks_for_stream
from .failed_credentials import FailedCredentials
from .history_routes import HistoryReader
from .lock_list_routes import LockListReader, wants_row, watched_events, watched_prefix
from .lock_operations import LockOperation, lock_operation
from .problems import INTERNAL_MESSAGE, error_for_client
from .request_checks import check_after_credential, check_before_credential, request_id_of
from .requester import requester_of
from .responses import LockResponse, error_response, outcome_response, request_headers, send_response
from .sessions import NO_STORE, Session, Sessions, service_key_of

_ALL_EVENTS_KEY: Final = b"events"


@dataclass(slots=True, eq=False)
class _LockRequest:
    """One request, and what the checks have found out about it so far."""

    fields: dict[bytes, bytes]
    query: bytes
    receive: Receive
    client_is_gone: Callable[[], bool]
    id: bytes
    id_fault: LockError | None
    address: str | None
    operation: LockOperation | None = None
    raw_key: bytes = b""
    raw_token: bytes = b""
    key: str | None = None
    reason: str | None = None
    holder: str | None = None
    principal: Principal | None = None
    session: Session | None = None
    admission: Admission | None = None
    wait_ms: int = 0


class LockRoutes:
    """Serves the lock routes. While `draining`, new requests are refused."""

    def __init__(
        self,
        service: LockService,
        lock_list: LockListReader,
        authenticator: Authenticator,
        log: Log,
        metrics: Metrics,
        *,
        history: HistoryReader,
        failures: FailedCredentials,
        sessions: Sessions | None = None,
    ) -> None:
        self.draining = False
        self._service: Final = service
        self._lock_list: Final = lock_list
        self._history: Final = history
        self._authenticator: Final = authenticator
        self._log: Final = log
        self._metrics: Final = metrics
        self._failures: Final = failures
        self._sessions: Final = sessions

    async def serve(self, scope: Scope, raw_path: bytes, receive: Receive, send: Send) -> EventStreamResponse | None:
        """Serve one request whose undecoded path is a lock address (`is_lock_address`).

        If the request opens a stream, nothing is sent yet: returns the response, which the caller must run.
        """
        began = perf_counter()
        fields = header_fields(scope)
        request = _LockRequest(
            fields,
            scope.get("query_string", b""),
            receive,
            scope.get(CLIENT_IS_GONE, _is_unknown),
            *request_id_of(fields.get(REQUEST_ID)),
            address_of(scope),
        )
        try:
            request.operation, request.raw_key, request.raw_token = lock_operation(raw_path, scope["method"])
            operation = request.operation
            outcome = await self._outcome(operation, request)
            if isinstance(outcome, EventStreamResponse):
                outcome.headers = request_headers(request.id, request.admission)
                self._metrics.request(operations.WATCH.name, "streaming", perf_counter() - began)
                self._note_activity(request, "streaming", 0.0)
                return outcome
            if not isinstance(outcome, bytes) and (
                self._log.grants_enabled or is_logged_at_info(operation.name, outcome)
            ):
                about = requester(request.id.decode(), request.address, request.principal) | {"key": request.key}
                log_outcome(
                    self._log, operation.name, outcome, about, holder=request.holder, force_reason=request.reason
                )
            response = self._response(operation, outcome)
        except ClientGoneError:
            return None
        except LockError as error:
            log_error(self._log, error, requester(request.id.decode(), request.address, request.principal))
            if isinstance(error, CredentialRefusedError) and error.is_failed_credential:
                await self._failures.slow_down(request.address)
            response = error_response(error_for_client(error, self._metrics))
        except Exception as error:  # noqa: BLE001 - the client gets a response without the trace
            self._log.unexpected_error("internal", error, request_id=request.id.decode())
            response = error_response(LockError("internal", INTERNAL_MESSAGE))
        if request.session is not None:
            response.headers.append(NO_STORE)
        if self._metrics.per_project and (principal := request.principal) is not None:
            self._metrics.project_request(principal.project_id, principal.project_name, response.outcome)
        self._note_activity(request, response.outcome, perf_counter() - began)
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
        principal = await self._principal(operation, request)
        admission = await self._admission(operation, request, principal)
        request.admission = admission
        if admission.verdict is Verdict.SPENT and (denied := self._service.abandon(principal.project_id, admission)):
            return denied
        try:
            _check_permission(operation, principal)
            check_after_credential(request.query, request.id_fault)
            if operation.is_read_only and (found := await self._read(operation, request, principal)) is not None:
                return found
            lease = lease_fields(operation, request.raw_key, request.raw_token, request.fields)
            body = await read_body(request.receive) if operation.takes_ttl else b""
            command, request.wait_ms = lease_command(operation, lease, body, self._requester(request, principal))
        except (LockError, ClientGoneError) as error:
            denied = self._service.abandon(principal.project_id, admission)
            if denied is None or isinstance(error, ClientGoneError):
                raise
            return denied
        request.key, request.holder, request.reason = lease.key, lease.holder, lease.reason
        lock = RecordKey(principal.project_id, lease.key)
        if request.wait_ms:
            return await self._waited(request, lock, command, admission)
        act = self._act(request, principal) if operation is operations.FORCE_RELEASE else None
        outcome = await self._service.perform(lock, command, admission, act=act)
        assert outcome is not None, "only a wait ends without an outcome"
        return outcome

    def _note_activity(self, request: _LockRequest, outcome: str, seconds: float) -> None:
        """Count the response in the activity of its project, if it counted against the quota."""
        principal, admission = request.principal, request.admission
        if principal is None or admission is None or request.session is not None:
            return
        if request.wait_ms:
            self._service.activity.waited(principal.project_id, outcome, admission.reset_at_seconds, seconds)
            return
        is_forced = request.operation is operations.FORCE_RELEASE and outcome == "released"
        lock = RecordKey(principal.project_id, LockKey(request.key or ""))
        activity = self._service.activity
        activity.request(lock, FORCED if is_forced else outcome, admission.reset_at_seconds, admission.limit)

    async def _principal(self, operation: LockOperation, request: _LockRequest) -> Principal:
        """Whose request this is, by its service key or else by the dashboard's session (UI-5). Raises LockError."""
        fields = request.fields
        authorization, sessions = fields.get(AUTHORIZATION), self._sessions
        principal = self._authenticator.cached_principal(authorization)
        if principal is None:
            may_have_session = authorization is None and operation.takes_session and sessions is not None
            if may_have_session and sessions is not None and sessions.is_sent(fields):
                request.session = await sessions.authenticate(fields, is_change=not operation.is_read_only)
                principal = service_key_of(request.session)
            else:
                principal = await self._authenticator.principal(authorization)
        request.principal = principal
        return principal

    async def _admission(self, operation: LockOperation, request: _LockRequest, principal: Principal) -> Admission:
        """Count the request, against the session's budget if it has one. Raises LockError."""
        if request.session is not None and self._sessions is not None:
            return self._sessions.admit(request.session)
        may_draw = operation is operations.RENEW or operation is operations.RELEASE
        limit = principal.requests_per_minute
        admission = self._service.admit_now(principal.project_id, limit, may_draw_on_reserve=may_draw)
        if admission is None:
            admission = await self._service.admit(principal.project_id, limit, may_draw_on_reserve=may_draw)
        return admission

    def _act(self, request: _LockRequest, principal: Principal) -> Act:
        now_ms = self._service.hub.clock.now_ms()
        return act_by(principal, request.address, request.id.decode(), now_ms, request.reason)

    def _requester(self, request: _LockRequest, principal: Principal) -> Requester | None:
        """Who sent the request, for the history; None if that is off."""
        if not self._service.keeps_history:
            return None
        return requester_of(principal.key_id, principal.key_name, request.address, request.fields.get(USER_AGENT))

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
            wait = WaitRequest(request.wait_ms, disconnected=gone, is_gone=request.client_is_gone, authorize=still_may)
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
        """The list, row, history or stream that is asked for; None for a plain read. Raises LockError."""
        if operation is operations.LIST:
            return await self._lock_list.page(principal.project_id, request.query)
        if operation is operations.HISTORY_ALL:
            return await self._history.page(principal.project_id, None, request.query)
        if operation is operations.HISTORY:
            return await self._history.page(principal.project_id, lock_key(request.raw_key), request.query)
        if operation is operations.READ and request.raw_key == _ALL_EVENTS_KEY and asks_for_stream(request.query):
            request.operation = operation = operations.WATCH_ALL
        if operation is operations.WATCH or operation is operations.WATCH_ALL:
            key = None if operation is operations.WATCH_ALL else lock_key(request.raw_key)
            prefix = "" if key is not None else watched_prefix(request.query)
            kinds = watched_events(request.query)
            subscriber = Subscriber(principal.project_id, key=key, prefix=prefix, kinds=kinds)
            after = request.fields.get(LAST_EVENT_ID) or None

            async def current_principal() -> Principal:
                return await self._current_principal(request)

            return await EventStreamResponse.open(self._service.hub, current_principal, subscriber, after)
        if not request.query or not wants_row(request.query):
            return None
        request.operation = operations.VIEW
        request.key = key = lock_key(request.raw_key)
        return await self._lock_list.row(principal.project_id, key)

    async def _current_principal(self, request: _LockRequest) -> Principal:
        """Whose stream this is, by what its request was authenticated with. Raises LockError if that has ended."""
        if request.session is not None and self._sessions is not None:
            return service_key_of(await self._sessions.authenticate(request.fields, is_change=False))
        return await self._authenticator.principal(request.fields.get(AUTHORIZATION))

    def _response(self, operation: LockOperation, outcome: Outcome | LockError | bytes) -> LockResponse:
        if isinstance(outcome, bytes):
            return LockResponse(200, outcome, "listed", [])
        if isinstance(outcome, LockError):
            return error_response(error_for_client(outcome, self._metrics))
        return outcome_response(operation, outcome)


def _is_unknown() -> bool:
    """In place of CLIENT_IS_GONE under other ASGI servers, where only `receive` shows a disconnect."""
    return False


def _check_permission(operation: LockOperation, principal: Principal) -> None:
    """Raise LockError `missing_permission` (HTTP-15)."""
    if not principal.may(operation):
        needed = "locks.read, locks.manage or *" if operation.is_read_only else "locks.manage or *"
        raise LockError("missing_permission", f"this service key lacks a permission: the request needs {needed}")
