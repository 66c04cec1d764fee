"""`FakeLocks`, a lock server in memory behind the same HTTP interface, under the test's clock.

The clients are the real ones; only the server is faked, at the transport. One `FakeLocks` serves any number of clients,
threads and event loops.
"""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from volcano_locks.asyncio.client import AsyncClient
from volcano_locks.errors import LOCK_HELD
from volcano_locks.protocol.messages import Response
from volcano_locks.sync.client import Client
from volcano_locks.testing.clock import ManualClock
from volcano_locks.testing.event_log import EventLog
from volcano_locks.testing.fake_lock import FakeHold, FakeLock, LeaseRequest, LockEvent
from volcano_locks.testing.in_memory import HttpRequest, InMemoryTransport, NewWakeup, Pause, Serving, StreamedReply

FAKE_URL = "http://fake.invalid"
FAKE_SERVICE_KEY = "sk-fake"


class FakeLocks(InMemoryTransport):
    """A lock server without a network. Pass it as `transport=`, or use its clients."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self._mutex = threading.RLock()
        self._locks: dict[str, FakeLock] = {}
        self._log = EventLog(self.clock)

    def client(self, **options: Any) -> Client:
        """A threaded client of these locks under this clock; options as for `Client`."""
        return Client(FAKE_URL, FAKE_SERVICE_KEY, **{"clock": self.clock, "transport": self, **options})

    def async_client(self, **options: Any) -> AsyncClient:
        """An asyncio client of these locks under this clock; options as for `AsyncClient`."""
        return AsyncClient(FAKE_URL, FAKE_SERVICE_KEY, **{"clock": self.clock, "transport": self, **options})

    def waiters(self, key: str) -> int:
        """The number of requests that wait for this lock now."""
        with self._mutex:
            return self._lock(key).waiters

    def restart(self) -> None:
        """Act like a node that restarts: waiters get a 503, event streams end, and events are forgotten."""
        with self._mutex:
            for lock in self._locks.values():
                lock.cancel_waiters()
            self._log.restart()

    def serve(self, request: HttpRequest, new_wakeup: NewWakeup) -> Serving:
        """Serve one request at the clock's instant; a waiting acquire takes as long as it waits."""
        root, *parts = urlsplit(request.path).path.strip("/").split("/")
        if root == "history":
            with self._mutex:
                return self._history(request, None)
        if request.method == "POST" and parts[1:] == ["lease"]:
            seconds = _json(request).get("wait_seconds", 0)
            return (yield from self._acquire(parts[0], _lease_request(request), seconds, new_wakeup))
        with self._mutex:
            return self._respond(request, parts, new_wakeup)

    def _respond(self, request: HttpRequest, parts: list[str], new_wakeup: NewWakeup) -> Response | StreamedReply:
        parameters = dict(parse_qsl(urlsplit(request.path).query, keep_blank_values=True))
        match request.method, parts:
            case "GET", []:
                response: Response | StreamedReply = self._page_response(parameters)
            case "GET", ["events"] if "prefix" in parameters:
                prefix = parameters["prefix"]
                response = self._stream(lambda key: key.startswith(prefix), request, new_wakeup)
            case "GET", [key, "events"]:
                response = self._stream(lambda other: other == key, request, new_wakeup)
            case "GET", [key, "history"]:
                response = self._history(request, key)
            case "GET", [key]:
                response = self._state_response(self._lock(key), full=parameters.get("view") == "full")
            case "DELETE", [key]:
                response = self._force_release(key, None, request)
            case "DELETE", [key, "leases", fencing_token]:
                response = self._force_release(key, int(fencing_token), request)
            case "PATCH" | "DELETE", [key, "lease"]:
                response = self._renew_or_release(request.method, self._lock(key), _lease_request(request))
            case _:
                response = _error(404, "not_found")
        return response

    def _acquire(self, key: str, lease_request: LeaseRequest, wait_seconds: float, new_wakeup: NewWakeup) -> Serving:
        until = self.clock.now() + wait_seconds
        with self._mutex:
            lock = self._lock(key)
            refusal = lock.acquire(lease_request, self.clock.now(), self._utc_ms())
            if refusal != LOCK_HELD or wait_seconds == 0:
                return self._lease_response(lock, refusal, 201)
            waiter = lock.enqueue(lease_request)
        try:
            while True:
                with self._mutex:
                    self._lock(key)
                    if waiter.outcome is not None:
                        return self._lease_response(lock, waiter.outcome, 201)
                    if self.clock.now() >= until:
                        lock.end_wait(waiter, self.clock.now())
                        return self._held_response(lock)
                    waiter.wakeup = wakeup = new_wakeup()
                    due = min(until, lock.takeover_at)
                yield Pause(due, wakeup)
        except BaseException:
            with self._mutex:
                lock.disconnect(waiter)
                self._lock(key)
            raise

    def _renew_or_release(self, method: str, lock: FakeLock, lease_request: LeaseRequest) -> Response:
        if method == "PATCH":
            return self._lease_response(lock, lock.renew(lease_request, self.clock.now()), 200)
        refusal = lock.release(lease_request.token)
        self._lock(lock.key)
        return self._lease_response(lock, refusal, 204)

    def _force_release(self, key: str, fencing_token: int | None, request: HttpRequest) -> Response:
        lock = self._lock(key)
        if fencing_token not in (None, lock.fencing_token):
            return _error(409, "lock_changed")
        lock.free("forced", None, unquote(request.headers.get("x-volcano-reason", "")) or None)
        self._lock(key)
        return Response(204, {}, b"")

    def _history(self, request: HttpRequest, key: str | None) -> Response:
        """All entries on one page; the fake knows no service keys, addresses and clients."""
        parameters = dict(parse_qsl(urlsplit(request.path).query, keep_blank_values=True))
        prefix = parameters.get("prefix", "")
        locks = [
            self._lock(one) for one in sorted(self._locks) if (one.startswith(prefix) if key is None else one == key)
        ]
        items = [self._entry(lock.key, hold) for lock in locks for hold in reversed(lock.history)]
        since, before, at = (parameters.get(name) for name in ("from", "to", "at"))
        shown = [
            one
            for one in items
            if (since is None or one["ended_at"] is None or one["ended_at"] > since)
            and (before is None or one["began_at"] < before)
            and (at is None or (one["began_at"] <= at and (one["ended_at"] is None or one["ended_at"] > at)))
        ]
        return _json_response(200, {"items": shown, "next_cursor": None})

    def _entry(self, key: str, hold: FakeHold) -> dict[str, Any]:
        until = self.clock.now() if hold.ended_at is None else hold.ended_at
        return {
            "key": key,
            "fencing_token": hold.fencing_token,
            "holder": hold.holder,
            **dict.fromkeys(("key_id", "key_name", "address", "client", "waited_seconds", "ended_by")),
            "began": hold.began,
            "began_at": self._date(hold.began_at),
            "renewals": hold.renewals,
            "renewed_at": None if hold.renewed_at is None else self._date(hold.renewed_at),
            "ended": hold.ended,
            "reason": hold.reason,
            "ended_at": None if hold.ended_at is None else self._date(hold.ended_at),
            "expires_at": self._date(hold.expires_at),
            "held_seconds": round(until - hold.began_at, 3),
        }

    def _lock(self, key: str) -> FakeLock:
        if key not in self._locks:
            self._locks[key] = FakeLock(key, self._publish)
        self._locks[key].process_due(self.clock.now(), self._utc_ms())
        return self._locks[key]

    def _publish(self, key: str, event: LockEvent) -> None:
        body: dict[str, Any] = {
            "key": key,
            "fencing_token": event.fencing_token,
            "holder": event.holder,
            "at": self._date(self.clock.now()),
            "why": event.why,
        }
        if event.expires_at is not None:
            body["expires_at"] = self._date(event.expires_at)
        if event.reason is not None:
            body["reason"] = event.reason
        self._log.publish(key, event.kind, body)

    def _stream(self, wanted: Callable[[str], bool], request: HttpRequest, new_wakeup: NewWakeup) -> StreamedReply:
        def due() -> float:
            with self._mutex:
                locks = [self._lock(key) for key in list(self._locks) if wanted(key)]
                return min((lock.takeover_at for lock in locks if lock.owner is not None), default=inf)

        return self._log.stream(wanted, request.headers.get("last-event-id"), due, new_wakeup)

    def _state_response(self, lock: FakeLock, *, full: bool) -> Response:
        if full:
            return _json_response(200, self._row(lock))
        if lock.owner is None:
            return _json_response(200, {"held": False})
        return _json_response(200, {"held": True, **self._term(lock)})

    def _page_response(self, parameters: dict[str, str]) -> Response:
        prefix, after = parameters.get("prefix", ""), parameters.get("cursor", "")
        held = {"held": (True,), "free": (False,)}.get(parameters.get("state", "all"), (True, False))
        keys = [key for key in sorted(self._locks) if key.startswith(prefix) and key > after]
        found = [lock for lock in map(self._lock, keys) if (lock.owner is not None) in held and lock.fencing_token]
        limit = int(parameters.get("limit", "100"))
        cursor = found[limit - 1].key if len(found) > limit else None
        return _json_response(200, {"items": [self._row(lock) for lock in found[:limit]], "next_cursor": cursor})

    def _row(self, lock: FakeLock) -> dict[str, Any]:
        held = lock.owner is not None
        return {
            "key": lock.key,
            "held": held,
            "holder": lock.holder if held else None,
            "acquired_at": self._date(lock.acquired_at) if held else None,
            "renewed_at": self._date(lock.renewed_at) if held else None,
            "expires_at": self._date(lock.expires_at) if held else None,
            "ttl_seconds": lock.ttl_seconds if held else None,
            "fencing_token": lock.fencing_token or None,
            "waiters": lock.waiters,
        }

    def _lease_response(self, lock: FakeLock, refusal: str, status: int) -> Response:
        if refusal == LOCK_HELD:
            return self._held_response(lock)
        if refusal:
            return _error(503 if refusal == "lock_service_unavailable" else 409, refusal)
        return Response(204, {}, b"") if status == 204 else _json_response(status, self._term(lock))

    def _held_response(self, lock: FakeLock) -> Response:
        return _json_response(409, {"error": "lock held", "code": LOCK_HELD, "holder": lock.holder, **self._term(lock)})

    def _term(self, lock: FakeLock) -> dict[str, Any]:
        return {"expires_at": self._date(lock.expires_at), "fencing_token": lock.fencing_token}

    def _date(self, instant: float) -> str:
        date = self.clock.utc_now() + timedelta(seconds=instant - self.clock.now())
        return date.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _utc_ms(self) -> int:
        return int(self.clock.utc_now().timestamp() * 1000)


class FakeClient(Client):
    """A `Client` with its own lock server in memory, or with the one passed."""

    def __init__(self, clock: ManualClock | None = None, *, server: FakeLocks | None = None) -> None:
        self.server = server or FakeLocks(clock)
        self.clock = self.server.clock
        super().__init__(FAKE_URL, FAKE_SERVICE_KEY, clock=self.clock, transport=self.server)


class FakeAsyncClient(AsyncClient):
    """An `AsyncClient` with its own lock server in memory, or with the one passed."""

    def __init__(self, clock: ManualClock | None = None, *, server: FakeLocks | None = None) -> None:
        self.server = server or FakeLocks(clock)
        self.clock = self.server.clock
        super().__init__(FAKE_URL, FAKE_SERVICE_KEY, clock=self.clock, transport=self.server)


def _json(request: HttpRequest) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request.body) if request.body else {}
    return body


def _json_response(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(status, {"content-type": "application/json", **(headers or {})}, json.dumps(body).encode())


def _lease_request(request: HttpRequest) -> LeaseRequest:
    holder = request.headers.get("x-volcano-lock-holder")
    return LeaseRequest((request.token or "").lower(), _json(request).get("ttl_seconds", 0), holder)


def _error(status: int, code: str) -> Response:
    headers = {"retry-after": "1"} if status == 503 else {}
    return _json_response(status, {"error": code.replace("_", " "), "code": code}, headers)
