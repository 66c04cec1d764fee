"""Health, readiness, metrics, the wire's description, and what happens when the store or the program fails."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import yaml

from volcano_locks_server.http.app import App
from volcano_locks_server.http.auth import Authenticator
from volcano_locks_server.http.lock_list_routes import LockListReader
from volcano_locks_server.http.lock_routes import LockRoutes
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.telemetry import LineWriter
from volcano_locks_server.testing import FaultyStore

from .conftest import ADMIN_TOKEN, House, OnlyLocks, new_token, problem

SPEC = Path(__file__).parents[3] / "spec"
PACKAGED = Path(__file__).parents[2] / "src/volcano_locks_server/http/openapi.json"


@pytest.fixture
async def failing(house: House) -> AsyncIterator[FaultyStore]:
    """The house over a store that can be made to fail, with the same registry."""
    store = FaultyStore(MemoryStore(house.clock))
    server = house.server
    service = LockService(store, house.clock, on_batch=server.metrics.batch)
    registry = server.store.registry
    authenticator = Authenticator(registry, house.clock, ADMIN_TOKEN)
    app = App(
        service=service, store=store, registry=registry, authenticator=authenticator,
        clock=house.clock, log=server.log, metrics=server.metrics,
    )  # fmt: skip
    await house.client.aclose()
    house.client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://locks.test")
    yield store
    await house.client.aclose()
    await service.close()


async def test_health_and_readiness_need_no_credential(house: House) -> None:
    """OPS-1, OPS-2, OPS-5."""
    for path in ("/healthz", "/readyz"):
        answer = await house.ask("GET", path, key=None)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_a_store_that_cannot_answer_is_503(house: House, failing: FaultyStore) -> None:
    """LEASE-16, HTTP-19, HTTP-20, OPS-1, OPS-2: never "probably", and nothing of the store's own words."""
    token = new_token()
    await house.acquire("a", token)
    failing.failure = StoreUnavailableError("disk_full", "/var/lib/secret.db: no space left on device")
    for answer in (
        await house.renew("a", token),
        await house.ask("GET", "/locks/a"),
        await house.ask("GET", "/readyz"),
    ):
        assert problem(answer) == (503, "lock_service_unavailable")
        assert answer.headers["retry-after"] == "1"
        assert "secret.db" not in answer.text
    assert (await house.ask("GET", "/healthz")).status_code == 200
    metrics = (await house.ask("GET", "/metrics")).text
    assert 'volcano_locks_store_errors_total{cause="disk_full"} 2.0' in metrics
    assert "volcano_locks_held" not in metrics.replace("volcano_locks_held_", "")
    failing.failure = None
    assert (await house.renew("a", token)).status_code == 200
    assert (await house.ask("GET", "/readyz")).status_code == 200


async def test_many_probes_are_one_question(house: House, failing: FaultyStore) -> None:
    """HTTP-24, OPS-5: anybody may ask, so asking together costs the store no more than asking once."""
    answers = await asyncio.gather(*(house.ask("GET", "/readyz", key=None) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert failing.calls["ready"] < 20


async def test_many_scrapes_are_one_count(house: House, failing: FaultyStore) -> None:
    """HTTP-24, OPS-5: one after the other too, as counting takes the longer the more is held; a failure is no count."""
    failing.failure = StoreUnavailableError("disk_error", "the disk reports an error")
    for expected in (1, 2):
        assert "volcano_locks_held " not in (await house.ask("GET", "/metrics", key=None)).text
        assert failing.calls["count_held"] == expected
    failing.failure = None
    for _ in range(20):
        assert "volcano_locks_held 0.0" in (await house.ask("GET", "/metrics", key=None)).text
    assert failing.calls["count_held"] < 10


async def test_a_bug_is_500_and_its_trace_stays_inside(house: House, failing: FaultyStore) -> None:
    """HTTP-19: logged with its request id, answered without a trace; a bug in a store is lock_service_unavailable."""
    failing.failure = ZeroDivisionError("a secret of the store")
    answer = await house.ask("GET", "/readyz")
    assert problem(answer) == (500, "internal")
    assert "secret of the store" not in answer.text
    lock = await house.acquire("a", new_token())
    assert problem(lock) == (503, "lock_service_unavailable")
    house.server.log.writer.close()
    lines = [json.loads(line) for line in house.log.getvalue().splitlines()]
    (bug,) = [line for line in lines if line["event"] == "internal"]
    assert bug["request_id"] == answer.headers["x-volcano-request-id"]
    assert "ZeroDivisionError" in bug["exception"]
    assert any(line["event"] == "store_failed" for line in lines)


class BrokenClock:
    def now_ms(self) -> int:
        raise ZeroDivisionError("a secret of the clock")


async def test_a_bug_on_the_lock_routes_is_500(house: House) -> None:
    """HTTP-19: the caller learns its request id, the log the trace."""
    server, store = house.server, house.server.store
    service = LockService(store.locks, BrokenClock())
    authenticator = Authenticator(store.registry, house.clock, ADMIN_TOKEN)
    routes = LockRoutes(
        service, LockListReader(server.store.locks, lambda _key: 0), authenticator, server.log, server.metrics
    )
    app = OnlyLocks(routes)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as client:
        answer = await client.get("/locks/a", headers={"Authorization": f"Bearer {house.service_key}"})
    assert problem(answer) == (500, "internal")
    assert "secret of the clock" not in answer.text
    server.log.writer.close()
    (bug,) = [json.loads(line) for line in house.log.getvalue().splitlines() if '"internal"' in line]
    assert bug["request_id"] == answer.headers["x-volcano-request-id"]


async def test_the_description_of_the_wire_is_the_specs(house: House) -> None:
    """OPS-4: the packaged copy is spec/openapi.yaml. To renew it: python spec/publish.py."""
    spec = yaml.safe_load((SPEC / "openapi.yaml").read_text(encoding="utf-8"))
    assert json.loads(PACKAGED.read_text(encoding="utf-8")) == spec
    answer = await house.ask("GET", "/openapi.json", key=None)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == spec


async def test_metrics_tell_outcomes_and_no_names(house: House) -> None:
    """OPS-3, OPS-5, HTTP-16."""
    token, holder = new_token(), "worker-name"
    await house.acquire("some-lock", token, headers={"X-Volcano-Lock-Holder": holder})
    await house.acquire("some-lock", new_token())
    await house.acquire("some-lock", "bad")
    await house.renew("some-lock", token)
    await house.ask("GET", "/locks/some-lock")
    await house.ask("GET", "/locks/some-lock", key=None)
    await house.set_quota(1)
    await house.ask("GET", "/locks/some-lock")
    text = (await house.ask("GET", "/metrics", key=None)).text
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
    for name in ("some-lock", holder, token, house.project_id, house.service_key):
        assert name not in text


async def test_logs_tell_what_is_worth_telling(house: House) -> None:
    """OPS-6: one object a line; lapses, force releases, refusals and admin changes at info, grants at debug."""
    first, second = new_token(), new_token()
    granted = await house.acquire("a", first, 5, headers={"X-Volcano-Lock-Holder": "worker-1"})
    house.clock.advance(4_500)
    await house.renew("a", first)
    house.clock.advance(1_500)
    await house.acquire("a", second)
    await house.acquire("a", new_token())
    await house.ask("DELETE", "/locks/a")
    await house.release("a", second)
    await house.set_quota(1)
    await house.release("a", second)
    house.server.log.writer.close()
    lines = [json.loads(line) for line in house.log.getvalue().splitlines()]
    by_event = {line["event"]: line for line in lines}
    assert by_event["late_renewal"]["level"] == "info"
    lapsed = by_event["lease_lapsed"]
    assert (lapsed["level"], lapsed["key"], lapsed["lapsed_holder"]) == ("info", "a", "worker-1")
    assert lapsed["lapsed_fencing_token"] == granted.json()["fencing_token"]
    assert (by_event["force_released"]["level"], by_event["refused"]["level"]) == ("info", "info")
    assert {line["code"] for line in lines if line["event"] == "refused"} == {"lock_held", "lock_rate_limited"}
    assert by_event["project_changed"]["requests_per_minute"] == 1
    assert (by_event["granted"]["level"], by_event["released"]["level"]) == ("debug", "debug")
    assert granted.headers["x-volcano-request-id"] in {line["request_id"] for line in lines}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["at"]) for line in lines)


class TestAtInfo:
    @pytest.fixture
    def log_level(self) -> str:
        return "info"

    async def test_grants_and_releases_say_nothing(self, house: House) -> None:
        """OPS-6: what is the daily work is told at debug only."""
        token = new_token()
        await house.acquire("a", token)
        await house.renew("a", token)
        await self.wait_in_vain(house)
        await house.release("a", token)
        await house.new_key()
        house.server.log.writer.close()
        events = [json.loads(line)["event"] for line in house.log.getvalue().splitlines()]
        assert events == ["service_key_created"]

    async def wait_in_vain(self, house: House) -> None:
        """Who waits longer than a minute asks again and again: no more of a refusal than a renewal is."""
        body = {"ttl_seconds": 30, "wait_seconds": 0.5}
        headers = {"X-Volcano-Lock-Token": new_token()}
        waiting = asyncio.create_task(house.ask("POST", "/locks/a/lease", headers=headers, json=body))
        while house.clock.next_due_ms() is None:
            await asyncio.sleep(0)
        house.clock.advance(500)
        assert (await waiting).status_code == 409


async def test_secrets_are_nowhere(house: House) -> None:
    """HTTP-16, HTTP-19, LEASE-15, OPS-6: not in logs, lists, errors, metrics; only in the answer that made them."""
    token, key = new_token(), await house.new_key()
    house.answers.clear()
    secrets = [token, key["key_value"], house.service_key, ADMIN_TOKEN]
    for lock_key in (key["key_value"], house.service_key, "sk-" + "B" * 43):
        await house.acquire("a", token, key=lock_key)
        await house.renew("a", token + "x", key=lock_key)
        await house.release("a", token, key=lock_key)
        await house.acquire("a", token, key=lock_key)
    await house.ask("GET", "/locks/a", key=ADMIN_TOKEN)
    await house.ask("GET", "/projects")
    await house.ask("GET", "/locks/a", key=None, headers={"Authorization": f"Basic {key['key_value']}"})
    for path in (
        f"/projects/{house.project_id}/service-keys",
        f"/projects/{house.project_id}/service-keys/{key['id']}",
    ):
        await house.admin("GET", path)
    await house.ask("GET", "/metrics")
    await house.ask("GET", "/openapi.json")
    house.server.log.writer.close()
    told = b"\n".join(house.answers) + house.log.getvalue().encode() + repr(house.server.settings).encode()
    assert house.log.getvalue()
    for secret in secrets:
        assert secret.encode() not in told


class _StuckStream:
    """A pipe whose reader sleeps."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.gate.wait()
        self.written.append(text)
        return len(text)

    def flush(self) -> None:
        return


def test_a_slow_log_stream_never_holds_the_server_up() -> None:
    """OPS-6: lines beyond the queue are dropped and counted, and the rest arrives once the stream moves again."""
    stream = _StuckStream()
    writer = LineWriter(stream)  # type: ignore[arg-type]
    for number in range(25_000):
        writer.write(str(number))
    assert 5_000 <= writer.dropped < 25_000, (
        "10,000 wait, and as many may have been taken from the queue before it stuck"
    )
    stream.gate.set()
    writer.close()
    lines = "".join(stream.written).splitlines()
    assert len(lines) == 25_000 - writer.dropped
    assert lines[:3] == ["0", "1", "2"]
