"""The lease rules in memory, behind the same wire, under the test's clock.

The clients are the real ones: what is faked is the server, at the transport. One `FakeLocks` may serve any
number of clients, threads and loops.
"""

import json
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2

from volcano_locks.async_client import AsyncClient
from volcano_locks.client import Client
from volcano_locks.errors import LOCK_HELD, LOCK_OWNERSHIP_LOST
from volcano_locks.messages import TTL_SECONDS_MAX
from volcano_locks.testing.clock import ManualClock

MARGIN_SECONDS = 1.0
GRACE_SECONDS = 1.0
FAKE_URL = "http://fake.invalid"
FAKE_SERVICE_KEY = "sk-fake"


@dataclass(slots=True)
class _Lock:
    fencing_token: int = 0
    owner: str | None = field(default=None, repr=False)
    lapsed_owner: str | None = field(default=None, repr=False)
    expires_at: float = 0.0
    deadline: float = 0.0
    retired: set[str] = field(default_factory=set, repr=False)


class FakeLocks(httpx2.AsyncBaseTransport):
    """A lock server without a network. Pass it as `transport=`, or ask it for a client."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self._mutex = threading.Lock()
        self._locks: dict[str, _Lock] = {}

    def client(self, **options: Any) -> Client:
        """A threaded client of these locks under this clock; options as for `Client`."""
        return Client(FAKE_URL, FAKE_SERVICE_KEY, **{"clock": self.clock, "transport": self, **options})

    def async_client(self, **options: Any) -> AsyncClient:
        """An asyncio client of these locks under this clock; options as for `AsyncClient`."""
        return AsyncClient(FAKE_URL, FAKE_SERVICE_KEY, **{"clock": self.clock, "transport": self, **options})

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Serve one request at the clock's instant."""
        _, _, key, *rest = request.url.path.split("/")
        token = request.headers.get("X-Volcano-Lock-Token", "")
        ttl = json.loads(request.content)["ttl_seconds"] if request.content else 0
        with self._mutex:
            lock = self._locks.setdefault(key, _Lock())
            self._lapse(lock)
            match request.method, bool(rest):
                case "POST", True:
                    return self._acquire(lock, token, ttl)
                case "PATCH", True:
                    return self._renew(lock, token, ttl)
                case "DELETE", True:
                    return self._release(lock, token)
                case "GET", False:
                    return self._read(lock)
                case "DELETE", False:
                    return self._free(lock, lock.owner or lock.lapsed_owner)
        return _refused(404, "not_found")

    def _lapse(self, lock: _Lock) -> None:
        if lock.owner is not None and self.clock.now() >= lock.expires_at + GRACE_SECONDS:
            lock.lapsed_owner, lock.owner = lock.owner, None

    def _acquire(self, lock: _Lock, token: str, ttl: int) -> httpx2.Response:
        if lock.owner == token:
            return self._renew(lock, token, ttl, status=201)
        if lock.owner is not None:
            return _refused(409, LOCK_HELD)
        if token in lock.retired:
            return _refused(409, LOCK_OWNERSHIP_LOST)
        lock.owner, lock.lapsed_owner, lock.retired = token, None, set()
        lock.deadline = self.clock.now() + TTL_SECONDS_MAX
        lock.fencing_token = max(lock.fencing_token + 1, int(self.clock.utc_now().timestamp() * 1000))
        return self._granted(lock, ttl, 201)

    def _renew(self, lock: _Lock, token: str, ttl: int, status: int = 200) -> httpx2.Response:
        if lock.owner != token or self.clock.now() >= lock.expires_at - MARGIN_SECONDS:
            return _refused(409, LOCK_OWNERSHIP_LOST)
        return self._granted(lock, ttl, status)

    def _release(self, lock: _Lock, token: str) -> httpx2.Response:
        if lock.owner not in (None, token):
            return _refused(409, LOCK_OWNERSHIP_LOST)
        return self._free(lock, token)

    def _free(self, lock: _Lock, retired: str | None) -> httpx2.Response:
        lock.owner = None
        if retired is not None:
            lock.retired.add(retired)
        return httpx2.Response(204)

    def _granted(self, lock: _Lock, ttl: int, status: int) -> httpx2.Response:
        lock.expires_at = min(self.clock.now() + ttl, lock.deadline)
        return httpx2.Response(status, json=self._term(lock))

    def _read(self, lock: _Lock) -> httpx2.Response:
        if lock.owner is None:
            return httpx2.Response(200, json={"held": False})
        return httpx2.Response(200, json={"held": True, **self._term(lock)})

    def _term(self, lock: _Lock) -> dict[str, Any]:
        expires_at = self.clock.utc_now() + timedelta(seconds=lock.expires_at - self.clock.now())
        text = expires_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"expires_at": text, "fencing_token": lock.fencing_token}


class FakeClient(Client):
    """A `Client` with a lock server of its own in memory, or the one given."""

    def __init__(self, clock: ManualClock | None = None, *, server: FakeLocks | None = None) -> None:
        self.server = server or FakeLocks(clock)
        self.clock = self.server.clock
        super().__init__(FAKE_URL, FAKE_SERVICE_KEY, clock=self.clock, transport=self.server)


class FakeAsyncClient(AsyncClient):
    """An `AsyncClient` with a lock server of its own in memory, or the one given."""

    def __init__(self, clock: ManualClock | None = None, *, server: FakeLocks | None = None) -> None:
        self.server = server or FakeLocks(clock)
        self.clock = self.server.clock
        super().__init__(FAKE_URL, FAKE_SERVICE_KEY, clock=self.clock, transport=self.server)


def _refused(status: int, code: str) -> httpx2.Response:
    return httpx2.Response(status, json={"error": code.replace("_", " "), "code": code})
