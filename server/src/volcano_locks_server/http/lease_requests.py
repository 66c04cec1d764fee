"""The short way of a lease request: from a parsed head and body to group commit, and from the outcome to bytes.

It takes an acquire without a wait, a renew, a release and a plain read, if nothing about the request is wrong and
nothing has to be awaited before its command: the service key is cached and has the permission, the input is valid, and
the quota is not spent. All else takes the way through ASGI (`lock_routes`), which makes the same checks and writes the
errors. Which way a request takes is decided before it is counted.
"""

import asyncio
from dataclasses import dataclass
from hmac import compare_digest
from time import perf_counter
from typing import Final, Protocol

from ..ports.lock_store import RecordKey
from ..rules.errors import LockError
from ..rules.hold import Requester
from ..rules.lease import Outcome
from ..rules.quota import Admission
from ..service.lock_service import LockService
from ..telemetry import Log, Metrics
from .audit_log import is_logged_at_info, log_outcome, requester
from .auth import Authenticator, Principal
from .codec import AUTHORIZATION, REQUEST_ID, USER_AGENT, X_FORWARDED_FOR
from .commands import lease_command, lease_fields
from .in_flight import InFlight
from .lock_operations import ACQUIRE, LockOperation, lock_operation
from .problems import error_for_client
from .request_checks import request_id_of
from .request_head import RequestHead
from .requester import requester_of
from .responses import error_response, outcome_response, response_bytes


class Connection(Protocol):
    """What a lease request needs from its connection. No method raises if the connection is closed.

    `credential` is the header and the principal of the last request; they save looking up the same key each time.
    """

    credential: "tuple[bytes, Principal] | None"

    def client_address(self, forwarded_for: bytes | None) -> str | None: ...
    def write(self, data: bytes) -> None: ...
    def response_complete(self) -> None: ...
    def abort(self) -> None: ...


class LeaseRequests:
    """Takes requests for the connections of one server while it is `enabled`."""

    def __init__(
        self, service: LockService, authenticator: Authenticator, log: Log, metrics: Metrics, in_flight: InFlight
    ) -> None:
        self.enabled = True
        self.log: Final = log
        self.metrics: Final = metrics
        self.in_flight: Final = in_flight
        self.activity: Final = service.activity
        self._service: Final = service
        self._authenticator: Final = authenticator
        self._loop: Final = asyncio.get_running_loop()

    def start(self, connection: Connection, head: RequestHead, target: bytes, body: bytes) -> "LeaseRequest | None":
        """Submit the command of this request and return it, or None if it takes the other way: it was not counted."""
        began, fields = perf_counter(), head.fields
        if not self.enabled or b"?" in target:
            return None
        try:
            operation, raw_key, raw_token = lock_operation(target, head.method)
            principal = self._principal(connection, fields.get(AUTHORIZATION))
            if principal is None or not operation.is_short or not principal.may(operation):
                return None
            lease = lease_fields(operation, raw_key, raw_token, fields)
            by = self._requester(connection, principal, fields) if operation is ACQUIRE else None
            command, wait_ms = lease_command(operation, lease, body, by)
        except LockError:
            return None
        request_id, fault = request_id_of(fields.get(REQUEST_ID))
        if fault is not None or wait_ms:
            return None
        admission = self._service.admit_within_quota(principal.project_id, principal.requests_per_minute)
        if admission is None:
            return None
        lock = RecordKey(principal.project_id, lease.key)
        request = LeaseRequest(
            self,
            connection,
            operation,
            lock,
            principal,
            lease.holder,
            request_id,
            admission,
            began,
            fields.get(X_FORWARDED_FOR),
        )
        self.in_flight.enter()
        try:
            self._service.submit(lock, command, request)
        except LockError as error:
            self._loop.call_soon(request.set_exception, error)
        return request

    def awaits_body(self, connection: Connection, head: RequestHead, target: bytes) -> bool:
        """Whether the rest of the body may be awaited. If not, the other way refuses the request first (HTTP-13)."""
        try:
            lock_operation(target.partition(b"?")[0], head.method)
        except LockError:
            return False
        principal = self._principal(connection, head.fields.get(AUTHORIZATION))
        return (
            principal is not None
            and self.enabled
            and self._service.has_quota(principal.project_id, principal.requests_per_minute)
        )

    def is_known(self, connection: Connection, head: RequestHead) -> bool:
        """Whether the request's service key was accepted before."""
        return self._principal(connection, head.fields.get(AUTHORIZATION)) is not None

    def _requester(self, connection: Connection, principal: Principal, fields: dict[bytes, bytes]) -> Requester | None:
        """Who sent the request, for the history; None if that is off."""
        if not self._service.keeps_history:
            return None
        address = connection.client_address(fields.get(X_FORWARDED_FOR))
        return requester_of(principal.key_id, principal.key_name, address, fields.get(USER_AGENT))

    def _principal(self, connection: Connection, authorization: bytes | None) -> Principal | None:
        """The principal if it is cached. A connection forgets its principal when the cache does."""
        if authorization is None:
            return None
        remembered = connection.credential
        if (
            remembered is not None
            and compare_digest(remembered[0], authorization)
            and self._authenticator.is_usable(remembered[1])
        ):
            return remembered[1]
        principal = self._authenticator.cached_principal(authorization)
        connection.credential = None if principal is None else (authorization, principal)
        return principal


@dataclass(slots=True, eq=False)
class LeaseRequest:
    """One request. It receives the outcome of its own command, in place of a future (`group_commit.Receiver`)."""

    _requests: LeaseRequests
    _connection: Connection
    _operation: LockOperation
    _lock: RecordKey
    _principal: Principal
    _holder: str | None
    _request_id: bytes
    _admission: Admission
    _began: float
    _forwarded_for: bytes | None
    keep_alive: bool = True
    _has_responded: bool = False

    # --- group_commit.Receiver ---

    def done(self) -> bool:
        """Whether it has its response: what becomes of its command after a 503 is not written (OPS-12). The command
        of a client that disconnects may still take effect.
        """
        return self._has_responded

    def set_result(self, outcome: Outcome | None) -> None:
        assert outcome is not None, "only a command that draws on the reserve has no outcome"
        self._respond(outcome)

    def set_exception(self, error: BaseException) -> None:
        assert isinstance(error, LockError)
        self._respond(error)

    def _respond(self, outcome: Outcome | LockError) -> None:
        """Write the response. An error ends the connection and does not reach group commit, which delivers others."""
        requests = self._requests
        self._has_responded = True
        try:
            requests.in_flight.leave()
            self._connection.write(self._response(outcome))
            self._connection.response_complete()
        except Exception as error:  # noqa: BLE001 - see above
            requests.log.unexpected_error("internal", error, request_id=self._request_id.decode())
            self._connection.abort()

    def _response(self, outcome: Outcome | LockError) -> bytes:
        requests, operation = self._requests, self._operation
        log, metrics = requests.log, requests.metrics
        if log.grants_enabled or is_logged_at_info(operation.name, outcome):
            address = self._connection.client_address(self._forwarded_for)
            about = requester(self._request_id.decode(), address, self._principal) | {"key": self._lock.key}
            log_outcome(log, operation.name, outcome, about, holder=self._holder)
        if isinstance(outcome, LockError):
            response = error_response(error_for_client(outcome, metrics))
        else:
            response = outcome_response(operation, outcome)
        metrics.request(operation.name, response.outcome, perf_counter() - self._began)
        _verdict, limit, _remaining, ends_at, _retry = self._admission
        requests.activity.request(self._lock, response.outcome, ends_at, limit)
        if metrics.per_project:
            metrics.project_request(self._principal.project_id, self._principal.project_name, response.outcome)
        return response_bytes(response, self._request_id, self._admission, keep_alive=self.keep_alive)
