"""The harness of the HTTP tests: an in-process server under a manual clock, and a client for it."""

import asyncio
import io
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
import uvloop

from volcano_locks_server.http.lock_routes import LockRoutes
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import ManualClock

BOTH_LOOPS = ("test_accepting.py", "test_hostile_connections.py", "test_tls_connections.py")
ADMIN_TOKEN = "an-admin-token-for-tests"


def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The tests run on the event loop of `serve`; those of connections also on asyncio's own."""
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.name in BOTH_LOOPS:
        loops["asyncio"] = asyncio.new_event_loop
    return loops


def new_token() -> str:
    return str(uuid.uuid4())


@dataclass
class HttpHarness:
    """An open server and an in-process client, whose requests carry the service key by default."""

    server: Server
    client: httpx2.AsyncClient
    clock: ManualClock
    service_key: str
    project_id: str
    log: io.StringIO
    responses: list[bytes] = field(default_factory=list)

    async def request(self, method: str, path: str, *, key: str | None = "", **more: Any) -> httpx2.Response:
        """Send one request. If `key` is empty, it carries the project's service key; if None, no credential."""
        headers = dict(more.pop("headers", {}))
        if key is not None and "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = f"Bearer {key or self.service_key}"
        response = await self.client.request(method, path, headers=headers, **more)
        self.responses.append(repr(response.headers.raw).encode() + response.content)
        return response

    async def admin(self, method: str, path: str, **more: Any) -> httpx2.Response:
        return await self.request(method, path, key=ADMIN_TOKEN, **more)

    async def lease(
        self,
        method: str,
        lock: str,
        token: str,
        ttl: object = 30,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> httpx2.Response:
        body = {} if method == "DELETE" else {"json": {"ttl_seconds": ttl}}
        sent = {"X-Volcano-Lock-Token": token, **(headers or {})}
        return await self.request(method, f"/locks/{lock}/lease", headers=sent, **body, **more)

    async def acquire(self, lock: str, token: str, ttl: object = 30, **more: Any) -> httpx2.Response:
        return await self.lease("POST", lock, token, ttl, **more)

    async def renew(self, lock: str, token: str, ttl: object = 30, **more: Any) -> httpx2.Response:
        return await self.lease("PATCH", lock, token, ttl, **more)

    async def release(self, lock: str, token: str, **more: Any) -> httpx2.Response:
        return await self.lease("DELETE", lock, token, **more)

    async def read(self, lock: str, **more: Any) -> dict[str, object]:
        response: dict[str, object] = (await self.request("GET", f"/locks/{lock}", **more)).json()
        return response

    async def set_quota(self, requests_per_minute: int) -> None:
        changed = await self.admin(
            "PATCH", f"/projects/{self.project_id}", json={"requests_per_minute": requests_per_minute}
        )
        assert changed.status_code == 200

    async def new_key(self, name: str = "second", **fields: object) -> dict[str, Any]:
        made = await self.admin("POST", f"/projects/{self.project_id}/service-keys", json={"name": name, **fields})
        assert made.status_code == 201, made.text
        key: dict[str, Any] = made.json()
        return key


class LockRoutesApp:
    """The lock routes alone as an ASGI application, over parts that the test chose."""

    def __init__(self, routes: LockRoutes) -> None:
        self.routes = routes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.routes.serve(scope, scope["raw_path"], receive, send)


def problem(response: httpx2.Response) -> tuple[int, str]:
    """Status and code of an error response; its body has only these, a sentence and the lease of HTTP-28."""
    body = response.json()
    held = {"holder", "expires_at", "fencing_token"} if body["code"] == "lock_held" else set()
    assert set(body) == {"error", "code"} | held
    assert body["error"]
    return response.status_code, body["code"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log_level() -> str:
    return "debug"


@pytest.fixture
def log_grants() -> bool:
    return False


@pytest.fixture
def dashboard() -> bool:
    """Whether the server serves the dashboard, over TLS and under the name of the in-process client."""
    return False


@pytest.fixture
def over_socket() -> bool:
    """Whether the requests come over a socket, so that lease requests take the short way (`lease_requests`).

    A module whose tests must pass both ways uses `both_ways` in its place.
    """
    return False


both_ways = pytest.fixture(params=[False, True], ids=["asgi", "socket"], name="over_socket")(
    lambda request: request.param
)


@pytest.fixture
async def harness(
    clock: ManualClock, log_level: Any, log_grants: bool, over_socket: bool, dashboard: bool
) -> AsyncIterator[HttpHarness]:
    settings = Settings(
        store="memory://",
        port=0,
        admin_token=ADMIN_TOKEN,
        log_level=log_level,
        log_grants=log_grants,
        dashboard=dashboard,
        dashboard_hosts="locks.test" if dashboard else None,
    )
    log = io.StringIO()
    server = Server(settings, clock=clock, log_stream=log)
    await (server.start() if over_socket else server.open())
    issued = await server.issue_service_key("test", "first")
    transport = httpx2.AsyncHTTPTransport() if over_socket else httpx2.ASGITransport(app=server.app)
    url = server.url if over_socket else f"http{'s' * dashboard}://locks.test"
    async with httpx2.AsyncClient(transport=transport, base_url=url) as client:
        yield HttpHarness(server, client, clock, issued.secret, issued.project_id, log)
    await server.close()
