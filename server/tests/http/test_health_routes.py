"""Health, readiness, metrics and the API description, even when the store or the program fails."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.http.codec import instant
from volcano_locks_server.http.failed_credentials import FailedCredentials
from volcano_locks_server.http.held_count import COUNT_EVERY_SECONDS
from volcano_locks_server.http.history_routes import HistoryReader
from volcano_locks_server.http.lock_list_routes import LockListReader
from volcano_locks_server.http.lock_routes import LockRoutes
from volcano_locks_server.http.readiness import PROBES_APART_MS
from volcano_locks_server.ports.lock_store import Step
from volcano_locks_server.rules.clock_history import NO_HISTORY
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore

from .conftest import ADMIN_TOKEN, HttpHarness, LockRoutesApp, new_token, problem

SPEC = Path(__file__).parents[3] / "spec"
PACKAGED = Path(__file__).parents[2] / "src/volcano_locks_server/http/openapi.json"


class FailingStore(MemoryStore):
    """A store that raises `failure`."""

    failure: Exception | None = None
    asked = 0

    async def update(self, keys: Any, step: Step) -> Any:
        self._fail()
        return await super().update(keys, step)

    async def ready(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        self._fail()

    async def count_held(self) -> int:
        self.asked += 1
        self._fail()
        return await super().count_held()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
async def failing(harness: HttpHarness) -> AsyncIterator[FailingStore]:
    """The harness over a store that can fail, with the same registry."""
    store = FailingStore(harness.clock)
    server = harness.server
    service = LockService(store, harness.clock, on_batch=server.metrics.batch)
    registry = server.store.registry
    tokens = server.store.admin_tokens
    authenticator = Authenticator(registry, harness.clock, ADMIN_TOKEN, tokens)
    app = App(
        service=service, store=store, registry=registry, admin_tokens=tokens, audit=server.store.audit,
        authenticator=authenticator,
        clock=harness.clock, log=server.log, metrics=server.metrics,
    )  # fmt: skip
    await harness.client.aclose()
    harness.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://locks.test")
    yield store
    await harness.client.aclose()
    await service.close()


async def test_health_and_readiness_need_no_credential(harness: HttpHarness) -> None:
    """OPS-1, OPS-2, OPS-5."""
    for path in ("/healthz", "/readyz"):
        response = await harness.request("GET", path, key=None)
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


async def test_a_store_that_cannot_answer_is_503(harness: HttpHarness, failing: FailingStore) -> None:
    """LEASE-16, HTTP-19, HTTP-20, OPS-1, OPS-2: without the store's own error text."""
    token = new_token()
    await harness.acquire("a", token)
    failing.failure = StoreUnavailableError("disk_full", "/var/lib/secret.db: no space left on device")
    for response in (
        await harness.renew("a", token),
        await harness.request("GET", "/locks/a"),
        await harness.request("GET", "/readyz"),
    ):
        assert problem(response) == (503, "lock_service_unavailable")
        assert response.headers["retry-after"] == "1"
        assert "secret.db" not in response.text
    assert (await harness.request("GET", "/healthz")).status_code == 200
    metrics = (await harness.request("GET", "/metrics")).text
    assert 'volcano_locks_store_errors_total{cause="disk_full"} 2.0' in metrics
    assert "volcano_locks_held" not in metrics.replace("volcano_locks_held_", "")
    failing.failure = None
    assert (await harness.renew("a", token)).status_code == 200
    harness.clock.advance(PROBES_APART_MS)
    assert (await harness.request("GET", "/readyz")).status_code == 200


async def test_concurrent_probes_share_one_store_call(harness: HttpHarness, failing: FailingStore) -> None:
    """HTTP-24, OPS-5, OPS-10: anyone can ask, so all share one probe a second, whether it succeeds or fails."""
    for failing.failure, status in ((None, 200), (StoreUnavailableError("store_busy", "locked"), 503)):
        failing.asked = 0
        for elapsed_ms in (PROBES_APART_MS, PROBES_APART_MS - 1):
            harness.clock.advance(elapsed_ms)
            responses = await asyncio.gather(*(harness.request("GET", "/readyz", key=None) for _ in range(20)))
            assert {response.status_code for response in responses} == {status}
        assert failing.asked == 1


async def test_many_scrapes_share_one_count(harness: HttpHarness, failing: FailingStore) -> None:
    """HTTP-24, OPS-3, OPS-5: scrapes share a count, and a failed one, because counting can be slow."""
    failing.failure = StoreUnavailableError("disk_error", "the disk reports an error")
    for _ in range(20):
        assert "volcano_locks_held " not in (await harness.request("GET", "/metrics", key=None)).text
    assert failing.asked == 1
    failing.failure = None
    harness.clock.advance(round(COUNT_EVERY_SECONDS * 1_000))
    await asyncio.sleep(0)  # the timer fires, and the count begins
    for _ in range(20):
        await asyncio.sleep(0)
        scrape = await harness.request("GET", "/metrics", key=None)
    assert "volcano_locks_held 0.0" in scrape.text
    assert failing.asked == 2


async def test_a_bug_is_500_without_its_trace(harness: HttpHarness, failing: FailingStore) -> None:
    """HTTP-19: the bug is logged with the request id; a bug in a store is lock_service_unavailable."""
    failing.failure = ZeroDivisionError("a secret of the store")
    response = await harness.request("GET", "/readyz")
    assert problem(response) == (500, "internal")
    assert "secret of the store" not in response.text
    lock = await harness.acquire("a", new_token())
    assert problem(lock) == (503, "lock_service_unavailable")
    harness.server.log.writer.close()
    lines = [json.loads(line) for line in harness.log.getvalue().splitlines()]
    (bug,) = [line for line in lines if line["event"] == "internal"]
    assert bug["request_id"] == response.headers["x-volcano-request-id"]
    assert "ZeroDivisionError" in bug["exception"]
    assert any(line["event"] == "store_failed" for line in lines)


class BrokenClock:
    def now_ms(self) -> int:
        raise ZeroDivisionError("a secret of the clock")


async def test_a_bug_on_the_lock_routes_is_500(harness: HttpHarness) -> None:
    """HTTP-19: the client gets the request id, the log gets the trace."""
    server, store = harness.server, harness.server.store
    service = LockService(store.locks, BrokenClock())
    authenticator = Authenticator(store.registry, harness.clock, ADMIN_TOKEN, store.admin_tokens)
    routes = LockRoutes(
        service,
        LockListReader(server.store.locks, lambda _key: 0, server.log, server.budgets),
        authenticator,
        server.log,
        server.metrics,
        history=HistoryReader(server.store.locks, server.budgets),
        failures=FailedCredentials(harness.clock, server.metrics),
    )
    app = LockRoutesApp(routes)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as client:
        response = await client.get("/locks/a", headers={"Authorization": f"Bearer {harness.service_key}"})
    assert problem(response) == (500, "internal")
    assert "secret of the clock" not in response.text
    server.log.writer.close()
    (bug,) = [json.loads(line) for line in harness.log.getvalue().splitlines() if '"internal"' in line]
    assert bug["request_id"] == response.headers["x-volcano-request-id"]


async def test_the_api_description_is_that_of_the_spec(harness: HttpHarness) -> None:
    """OPS-4: the packaged copy equals spec/openapi.yaml; python spec/publish.py updates it."""
    spec = yaml.safe_load((SPEC / "openapi.yaml").read_text(encoding="utf-8"))
    assert json.loads(PACKAGED.read_text(encoding="utf-8")) == spec
    response = await harness.request("GET", "/openapi.json", key=None)
    assert response.headers["content-type"] == "application/json"
    assert response.json() == spec


async def test_metrics_count_outcomes_and_show_no_names(harness: HttpHarness) -> None:
    """OPS-3, OPS-5, HTTP-16."""
    token, holder = new_token(), "worker-name"
    await harness.acquire("some-lock", token, headers={"X-Volcano-Lock-Holder": holder})
    await harness.acquire("some-lock", new_token())
    await harness.acquire("some-lock", "bad")
    await harness.renew("some-lock", token)
    await harness.request("GET", "/locks/some-lock")
    await harness.request("GET", "/locks/some-lock", key=None)
    await harness.set_quota(1)
    await harness.request("GET", "/locks/some-lock")
    text = (await harness.request("GET", "/metrics", key=None)).text
    for operation, outcome in [
        ("acquire", "acquired"), ("acquire", "lock_held"), ("acquire", "invalid_lock_token"), ("renew", "renewed"),
        ("read", "held"), ("read", "invalid_credentials"), ("read", "lock_rate_limited"),
    ]:  # fmt: skip
        assert f'volcano_locks_requests_total{{operation="{operation}",outcome="{outcome}"}} 1.0' in text
    assert "volcano_locks_held 1.0" in text
    assert "volcano_locks_quota_refusals_total 1.0" in text
    assert 'volcano_locks_batch_size_bucket{le="1.0"} 4.0' in text
    assert "volcano_locks_commit_seconds_count 4.0" in text
    assert 'volcano_locks_request_seconds_count{operation="acquire"} 3.0' in text
    for name in ("some-lock", holder, token, harness.project_id, harness.service_key):
        assert name not in text


async def test_readiness_says_until_when_takeovers_are_held(harness: HttpHarness, failing: FailingStore) -> None:
    """OPS-2, LEASE-17: the server is ready all the same."""
    now_ms = harness.clock.now_ms()
    failing.history = NO_HISTORY.after_jump(now_ms, 60_000, now_ms - 60_000 + 30_000)
    response = await harness.request("GET", "/readyz", key=None)
    assert response.status_code == 200
    held = response.json()["takeovers_held"]
    assert held["until"] == instant(now_ms + 30_000)
    assert held["seconds"] == 30
    assert "moved ahead by 60.0 s" in held["why"]
    harness.clock.advance(30_000)
    assert (await harness.request("GET", "/readyz", key=None)).json() == {"status": "ok"}


async def test_a_hold_after_the_record_of_the_clock_was_lost_has_its_own_reason(
    harness: HttpHarness, failing: FailingStore
) -> None:
    """LEASE-17, LEASE-18: a duration of fifty years would explain nothing."""
    now_ms = harness.clock.now_ms()
    for last_ms in (now_ms + 5_000, 0):
        failing.history = NO_HISTORY.rewritten(now_ms, last_ms, 0)
        response = await harness.request("GET", "/readyz", key=None)
        why = response.json().get("takeovers_held", {}).get("why", "")
        assert ("was lost" in why) == (last_ms > 0)
        assert "moved ahead" not in why
