"""The lock routes: `/locks/{key}`, `/locks/{key}/lease` and the list `/locks`; plain ASGI, for the hot path is here.

The order of judgement is HTTP-13's: address and method, the sizes, whether the server is stopping, the caller. Until
the caller is known, only work of constant size is done: nothing is parsed (HTTP-27). From there on the request counts
and its answer tells the quota (QUOTA-2, QUOTA-3), also where the permission, a header or the body turns out wrong. A
client that hangs up gets no answer; what it asked for may still happen. One that waits for a lock is watched, and when
it hangs up it was never granted (WAIT-5).
"""

import asyncio
from time import perf_counter
from typing import Final, NamedTuple

from ..ports.lock_store import RecordKey
from ..queue.wait_request import WaitRequest
from ..rules.errors import LockError, StoreUnavailableError
from ..rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Granted,
    Outcome,
    Read,
    Refused,
    Release,
    Released,
    Renew,
    State,
)
from ..rules.quota import Admission, Verdict
from ..rules.values import LockKey, OwnerToken, parse_holder, parse_request_id
from ..service.lock_service import Denied, LockService
from ..telemetry import Log, Metrics
from .audit_log import tell, tell_failure, worth_telling
from .auth import Access, Caller
from .codec import (
    AUTHORIZATION,
    CONTENT_LENGTH,
    FREE_BODY,
    LOCK_HOLDER,
    LOCK_TOKEN,
    REQUEST_ID,
    ClientGoneError,
    Receive,
    Scope,
    Send,
    hang_up,
    headers_of,
    held_body,
    lease_body,
    lock_key,
    new_request_id,
    read_body,
    refuse_long_body,
    refuse_long_query,
    refuse_many_parameters,
    ttl_and_wait,
    ttl_seconds,
)
from .event_stream import Stream, Streams, asks_for_stream
from .lock_list_routes import Listed, Listing, asked_prefix, wants_row
from .problems import (
    DRAINING_MESSAGE,
    INTERNAL_MESSAGE,
    JSON_TYPE,
    STATUS_BY_CODE,
    UNAVAILABLE_MESSAGE,
    Headers,
    MethodNotAllowedError,
    problem_body,
    problem_headers,
)

ALL_LOCKS: Final = b"/locks"
PREFIX: Final = b"/locks/"
_LEASE: Final = b"/lease"
_EVENTS: Final = b"/events"
_ALL_EVENTS_KEY: Final = b"events"


class Operation(NamedTuple):
    """One method of one address. `granted` is the status of a lease; the others answer 200 or 204."""

    name: str
    on_lease: bool = False
    takes_ttl: bool = False
    granted: int = 200
    changes_nothing: bool = False


_ACQUIRE: Final = Operation("acquire", on_lease=True, takes_ttl=True, granted=201)
_RENEW: Final = Operation("renew", on_lease=True, takes_ttl=True)
_RELEASE: Final = Operation("release", on_lease=True)
_READ: Final = Operation("read", changes_nothing=True)
_VIEW: Final = Operation("view", changes_nothing=True)
_LIST: Final = Operation("list", changes_nothing=True)
_WATCH: Final = Operation("watch", changes_nothing=True)
_WATCH_ALL: Final = Operation("watch", changes_nothing=True)
_FORCE_RELEASE: Final = Operation("force_release")

_ON_LEASE: Final = {"POST": _ACQUIRE, "PATCH": _RENEW, "DELETE": _RELEASE}
_ON_LOCK: Final = {"GET": _READ, "DELETE": _FORCE_RELEASE}
_ON_ALL_LOCKS: Final = {"GET": _LIST}
_ON_EVENTS: Final = {"GET": _WATCH}


class Answer(NamedTuple):
    """What goes back: a body (empty: none), the headers of a failure, and the outcome's name for the metrics."""

    status: int
    body: bytes
    outcome: str
    headers: Headers


class _Request:
    """One request on its way: what came, and what was found out so far."""

    __slots__ = (
        "admission", "caller", "fault", "found", "id", "key", "operation", "parameters", "raw_key", "receive", "scope",
        "wait_ms",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.found: Final = headers_of(scope)
        self.scope: Final = scope
        self.receive: Final = receive
        self.id, self.fault = request_id_of(self.found.get(REQUEST_ID))
        self.operation: Operation | None = None
        self.raw_key = b""
        self.parameters: Final[bytes] = scope.get("query_string", b"")
        self.key: str | None = None
        self.caller: Caller | None = None
        self.admission: Admission | None = None
        self.wait_ms = 0


class LockRoutes:
    """Serves the lock routes. `draining` turns every new request away."""

    def __init__(self, service: LockService, listing: Listing, access: Access, log: Log, metrics: Metrics) -> None:
        self.draining = False
        self._service: Final = service
        self._listing: Final = listing
        self._streams: Final = Streams(service.hub, access)
        self._access: Final = access
        self._log: Final = log
        self._metrics: Final = metrics

    async def serve(self, scope: Scope, raw_path: bytes, receive: Receive, send: Send) -> Stream | None:
        """Answer one request whose undecoded path is ALL_LOCKS or begins with PREFIX.

        A stream that it asked for is given back instead: whoever called this is to run it.
        """
        began = perf_counter()
        request = _Request(scope, receive)
        try:
            request.operation, request.raw_key = operation, _ = _routed(raw_path, scope["method"])
            outcome = await self._outcome(operation, request)
            if isinstance(outcome, Stream):
                outcome.headers = _headers_of(request)
                self._metrics.request(_WATCH.name, "streaming", perf_counter() - began)
                return outcome
            if not isinstance(outcome, Listed) and (
                self._log.debug or worth_telling(operation.name, outcome, waited=request.wait_ms > 0)
            ):
                about = {"project_id": _project_of(request), "key": request.key, "request_id": request.id.decode()}
                tell(self._log, operation.name, outcome, about)
            answer = self._answer(operation, outcome)
        except ClientGoneError:
            return None
        except LockError as error:
            answer = self._failed(error, request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer without its trace
            self._log.bug("internal", error, request_id=request.id.decode())
            answer = _problem("internal", INTERNAL_MESSAGE, None)
        await _send(send, answer, request)
        if request.wait_ms:
            self._metrics.waited(answer.outcome, perf_counter() - began)
        elif request.operation is not None:
            self._metrics.request(request.operation.name, answer.outcome, perf_counter() - began)
        return None

    async def _outcome(self, operation: Operation, request: _Request) -> Outcome | Denied | Listed | Stream:
        """What came of a request. Raises LockError where it holds no command, ClientGoneError."""
        refuse_long_query(request.parameters)
        refuse_long_body(request.found.get(CONTENT_LENGTH))
        if self.draining:
            raise LockError("lock_service_unavailable", DRAINING_MESSAGE, retry_after_seconds=1)
        authorization = request.found.get(AUTHORIZATION)
        request.caller = caller = self._access.caller_now(authorization) or await self._access.caller(authorization)
        may_draw = operation is _RENEW or operation is _RELEASE
        limit = caller.requests_per_minute
        admission = self._service.admit_now(caller.project_id, limit, may_draw_on_reserve=may_draw)
        if admission is None:
            admission = await self._service.admit(caller.project_id, limit, may_draw_on_reserve=may_draw)
        request.admission = admission
        if admission.verdict is Verdict.SPENT and (denied := self._service.abandon(caller.project_id, admission)):
            return denied
        try:
            _refuse_unpermitted(operation, request, caller)
            if operation.changes_nothing and (found := await self._looked_up(operation, request, caller)) is not None:
                return found
            key, command = await _command(operation, request)
        except (LockError, ClientGoneError) as error:
            denied = self._service.abandon(caller.project_id, admission)
            if denied is None or isinstance(error, ClientGoneError):
                raise
            return denied
        request.key = key
        lock = RecordKey(caller.project_id, key)
        if request.wait_ms:
            return await self._waited(request, lock, command, admission)
        outcome = await self._service.perform(lock, command, admission)
        assert outcome is not None, "only a wait ends without an outcome"
        return outcome

    async def _waited(
        self, request: _Request, lock: RecordKey, command: Command, admission: Admission
    ) -> Outcome | Denied:
        """What came of an acquire that waits. Raises ClientGoneError."""
        authorization = request.found.get(AUTHORIZATION)

        async def still_may() -> None:
            if self._access.caller_now(authorization) is None:
                await self._access.caller(authorization)

        gone = asyncio.create_task(hang_up(request.receive), name="hang-up")
        gone.add_done_callback(_heard)
        try:
            wait = WaitRequest(request.wait_ms, disconnected=gone, authorize=still_may)
            outcome = await self._service.perform(lock, command, admission, wait=wait)
        finally:
            gone.cancel()
        if outcome is None:
            self._metrics.waited("gave_up", 0.0)
            raise ClientGoneError
        return outcome

    async def _looked_up(self, operation: Operation, request: _Request, caller: Caller) -> Listed | Stream | None:
        """The list, the row or the stream that is asked for; None for a plain read. Raises LockError."""
        if operation is _LIST:
            return await self._listing.page(caller.project_id, request.parameters)
        if operation is _READ and request.raw_key == _ALL_EVENTS_KEY and asks_for_stream(request.parameters):
            request.operation = operation = _WATCH_ALL
        if operation is _WATCH or operation is _WATCH_ALL:
            key = None if operation is _WATCH_ALL else lock_key(request.raw_key)
            prefix = "" if key is not None else asked_prefix(request.parameters)
            authorization = request.found.get(AUTHORIZATION)
            return await self._streams.begin(caller, request.scope, authorization, key=key, prefix=prefix)
        if not request.parameters or not wants_row(request.parameters):
            return None
        request.operation = _VIEW
        request.key = key = lock_key(request.raw_key)
        return await self._listing.row(caller.project_id, key)

    def _answer(self, operation: Operation, outcome: Outcome | Denied | Listed) -> Answer:
        if isinstance(outcome, Granted):
            body = lease_body(outcome.expires_at_ms, outcome.fencing_token)
            answer = Answer(operation.granted, body, outcome.how, [])
        elif isinstance(outcome, Released):
            answer = Answer(204, b"", "released" if outcome.ended is not None else "was_free", [])
        elif isinstance(outcome, State):
            answer = _state(outcome)
        elif isinstance(outcome, Listed):
            answer = Answer(200, outcome.body, "listed", [])
        elif isinstance(outcome, Refused):
            answer = _problem(outcome.code, outcome.message, None)
        else:
            answer = self._denied(outcome)
        return answer

    def _denied(self, denied: Denied) -> Answer:
        if denied.cause_code == "stopping":
            return _problem(denied.code, DRAINING_MESSAGE, denied.retry_after_seconds)
        if denied.code == "lock_service_unavailable":
            self._metrics.store_error(denied.cause_code)
            return _problem(denied.code, UNAVAILABLE_MESSAGE, denied.retry_after_seconds)
        if denied.code == "lock_rate_limited":
            self._metrics.quota_refusals += 1
        return _problem(denied.code, denied.message, denied.retry_after_seconds)

    def _failed(self, error: LockError, request: _Request) -> Answer:
        """The answer to a request that holds no command, or whose bearer could not be looked up."""
        message = error.message
        if isinstance(error, StoreUnavailableError):
            self._metrics.store_error(error.cause_code)
            message = UNAVAILABLE_MESSAGE
        if self._log.often():
            tell_failure(self._log, error, request.id.decode(), _project_of(request))
        answer = _problem(error.code, message, error.retry_after_seconds)
        if isinstance(error, MethodNotAllowedError):
            answer.headers.append((b"allow", error.allowed.encode()))
        return answer


def request_id_of(sent: bytes | None) -> tuple[bytes, LockError | None]:
    """The id to echo: the one sent, or a new one; and what is wrong with the one sent, if anything (HTTP-9)."""
    if sent is None:
        return new_request_id(), None
    try:
        return parse_request_id(sent.decode("latin-1")).encode(), None
    except LockError as error:
        return new_request_id(), error


def _routed(raw_path: bytes, method: str) -> tuple[Operation, bytes]:
    """The operation and the undecoded key, or LockError `not_found`, `method_not_allowed`.

    `GET /locks/events` is a read here: whether it asks for a stream is told by its query, which is parsed later.
    """
    if raw_path == ALL_LOCKS:
        raw_key, operations = b"", _ON_ALL_LOCKS
    elif raw_path.endswith(_LEASE) and len(raw_path) > len(PREFIX) + len(_LEASE) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_LEASE)], _ON_LEASE
    elif raw_path.endswith(_EVENTS) and len(raw_path) > len(PREFIX) + len(_EVENTS) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_EVENTS)], _ON_EVENTS
    else:
        raw_key, operations = raw_path[len(PREFIX) :], _ON_LOCK
    if b"/" in raw_key:
        raise LockError("not_found", "there is no such address: a key holds no /, a lease is at /locks/{key}/lease")
    operation = operations.get(method)
    if operation is None:
        raise MethodNotAllowedError(", ".join(operations))
    return operation, raw_key


def _refuse_unpermitted(operation: Operation, request: _Request, caller: Caller) -> None:
    """LockError if the key's permissions, the request id or the number of parameters do not let the request through."""
    if operation.changes_nothing:
        if not caller.may_read_locks:
            raise LockError("missing_permission", "this service key needs the permission locks.read, locks.manage or *")
    elif not caller.may_manage_locks:
        raise LockError("missing_permission", "this service key needs the permission locks.manage or *")
    if request.fault is not None:
        raise request.fault
    refuse_many_parameters(request.parameters)


async def _command(operation: Operation, request: _Request) -> tuple[LockKey, Command]:
    """What the path, the headers and the body ask for, or LockError."""
    key = lock_key(request.raw_key)
    found = request.found
    if not operation.on_lease:
        return key, Read() if operation is _READ else ForceRelease()
    token = found.get(LOCK_TOKEN)
    owner = OwnerToken.parse(None if token is None else token.decode("latin-1"))
    holder = found.get(LOCK_HOLDER)
    label = None if holder is None else parse_holder(holder.decode("latin-1"))
    if not operation.takes_ttl:
        return key, Release(owner.digest)
    body = await read_body(request.receive)
    if operation is _RENEW:
        return key, Renew(owner.digest, ttl_seconds(body), label)
    ttl, request.wait_ms = ttl_and_wait(body)
    return key, Acquire(owner.digest, ttl, label)


def _heard(gone: "asyncio.Task[None]") -> None:
    """A server that fails to say that its client is gone says so too."""
    if not gone.cancelled():
        gone.exception()


def _project_of(request: _Request) -> str | None:
    return None if request.caller is None else request.caller.project_id


def _state(state: State) -> Answer:
    if state.lease is None:
        return Answer(200, FREE_BODY, "free", [])
    return Answer(200, held_body(state.lease.expires_at_ms, state.lease.fencing_token), "held", [])


def _problem(code: str, message: str, retry_after_seconds: int | None) -> Answer:
    headers = problem_headers(code, retry_after_seconds)
    return Answer(STATUS_BY_CODE[code], problem_body(code, message), code, headers)


def _headers_of(request: _Request) -> Headers:
    """What every answer to a request tells: its id, and how the quota stands if it counted."""
    headers: Headers = [(REQUEST_ID, request.id)]
    admission = request.admission
    if admission is not None:
        headers.append((b"x-ratelimit-limit", b"%d" % admission.limit))
        headers.append((b"x-ratelimit-remaining", b"%d" % admission.remaining))
        headers.append((b"x-ratelimit-reset", b"%d" % admission.reset_at_seconds))
    return headers


async def _send(send: Send, answer: Answer, request: _Request) -> None:
    headers = answer.headers
    if answer.body:
        headers.append(JSON_TYPE)
        headers.append((b"content-length", b"%d" % len(answer.body)))
    headers += _headers_of(request)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
