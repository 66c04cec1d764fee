"""A store that accepts connections and answers nothing: every request gets its response in time (OPS-12)."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx2
import pytest
from testsupport.engines import etcd, postgres
from testsupport.fault_proxy import FaultProxy

from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings

from .conftest import ADMIN_TOKEN, new_token

ANSWER_SECONDS_MAX = 3.0

pytestmark = pytest.mark.real_time

Ask = Callable[..., Awaitable[httpx2.Response]]


@pytest.fixture(params=["postgresql", "etcd"])
async def proxied(request: pytest.FixtureRequest) -> AsyncIterator[tuple[FaultProxy, Ask, str]]:
    """A server whose traffic with its store passes a proxy, a function that sends it requests, and a service key."""
    async with AsyncExitStack() as opened:
        if request.param == "etcd":
            host = etcd.shared().members[0].host
            proxy = await opened.enter_async_context(FaultProxy(int(host.partition(":")[2])))
            url = etcd.shared().url().replace(host, f"127.0.0.1:{proxy.port}")
        else:
            engine = postgres.shared()
            proxy = await opened.enter_async_context(FaultProxy(engine.port))
            url = engine.url(engine.new_database()).replace(f":{engine.port}/", f":{proxy.port}/")
        server = Server(
            Settings(store=url, port=0, admin_token=ADMIN_TOKEN, log_level="error"), log_stream=io.StringIO()
        )
        await server.open()
        opened.push_async_callback(server.close)
        opened.callback(proxy.forward_all)
        transport = httpx2.ASGITransport(server.app)
        client = await opened.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://s"))
        key = (await server.issue_service_key("project", "key")).secret

        async def ask(method: str, path: str, credential: str = key, **more: object) -> httpx2.Response:
            headers = {"Authorization": f"Bearer {credential}", "X-Volcano-Lock-Token": new_token()}
            return await client.request(method, path, headers=headers, timeout=60, **more)  # type: ignore[arg-type]

        assert (await ask("POST", "/locks/a/lease", json={"ttl_seconds": 30})).status_code == 201
        yield proxy, ask, key


async def test_every_request_is_answered_within_3_seconds(proxied: tuple[FaultProxy, Ask, str]) -> None:
    """OPS-12, LEASE-16: with 503, at the first request after the store hangs and later."""
    proxy, ask, _ = proxied
    lease = {"ttl_seconds": 30}
    requests: list[tuple[str, str, dict[str, object]]] = [
        ("POST", "/locks/a/lease", {"json": lease}),
        ("POST", "/locks/b/lease", {"json": {**lease, "wait_seconds": 20}}),
        ("PATCH", "/locks/a/lease", {"json": lease}),
        ("DELETE", "/locks/a/lease", {}),
        ("DELETE", "/locks/c", {}),
        ("GET", "/locks/a", {}),
        ("GET", "/locks/a?view=full", {}),
        ("GET", "/locks", {}),
        ("GET", "/locks/d", {"credential": "sk-unknown-unknown-unknown"}),
        ("GET", "/readyz", {}),
        ("GET", "/projects", {"credential": ADMIN_TOKEN}),
        ("POST", "/projects", {"credential": ADMIN_TOKEN, "json": {"name": "another"}}),
    ]

    async def timed(method: str, path: str, more: dict[str, object]) -> tuple[str, int, float]:
        began = time.monotonic()
        response = await ask(method, path, **more)
        return f"{method} {path}", response.status_code, time.monotonic() - began

    proxy.hold_all()
    for _ in range(3):
        answers = await asyncio.gather(*(timed(*each) for each in requests))
        assert {what: status for what, status, _ in answers if status != 503} == {}
        assert {what: seconds for what, _, seconds in answers if seconds > ANSWER_SECONDS_MAX} == {}
    proxy.cut()
    proxy.forward_all()
    async with asyncio.timeout(15):
        while (await ask("POST", "/locks/e/lease", json=lease)).status_code != 201:
            await asyncio.sleep(0.05)
