"""A damaged record over HTTP: its own requests get 503 `lock_record_damaged`, the log names it (LEASE-18, case 63)."""

import asyncio
import json

import pytest

from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.lease import Damaged
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores.memory import MemoryStore

from .conftest import HttpHarness, new_token, problem

DAMAGED = (503, "lock_record_damaged")


def spoil(harness: HttpHarness, name: str) -> None:
    locks = harness.server.store.locks
    assert isinstance(locks, MemoryStore)
    locks.records[RecordKey(harness.project_id, LockKey(name))] = Damaged("fencing_token is out of range")


def logged(harness: HttpHarness) -> list[dict[str, object]]:
    lines = map(json.loads, harness.log.getvalue().splitlines())
    return [line for line in lines if line["event"] == "record_damaged"]


async def test_every_request_on_a_damaged_lock_is_refused_without_a_retry_after(harness: HttpHarness) -> None:
    """LEASE-18, case 63: the store did answer, so this is no `lock_service_unavailable`."""
    spoil(harness, "a")
    token = new_token()
    for response in (
        await harness.acquire("a", token),
        await harness.renew("a", token),
        await harness.release("a", token),
        await harness.request("GET", "/locks/a"),
        await harness.request("GET", "/locks/a?view=full"),
        await harness.request("DELETE", "/locks/a"),
    ):
        assert problem(response) == DAMAGED
        assert "retry-after" not in response.headers
        assert "fencing_token" not in response.text
        assert "x-ratelimit-limit" in response.headers
    assert (await harness.acquire("b", token)).status_code == 201
    listed = (await harness.request("GET", "/locks")).json()
    assert [row["key"] for row in listed["items"]] == ["b"]
    assert (await harness.request("GET", "/readyz")).status_code == 200
    metrics = (await harness.request("GET", "/metrics")).text
    assert "volcano_locks_held 1.0" in metrics
    assert 'volcano_locks_requests_total{operation="acquire",outcome="lock_record_damaged"} 1.0' in metrics
    async with asyncio.timeout(30):  # the log is written by a thread
        while len(lines := logged(harness)) < 7:
            await asyncio.sleep(0.005)
    assert len(lines) == 7, "each request, and the list"
    assert all(line["reason"] == "fencing_token is out of range" and line["level"] == "warning" for line in lines)
    assert {line.get("key") or line["record"] for line in lines} == {"a", f"lock/{harness.project_id}/a"}


async def test_waiters_of_a_lock_whose_record_is_damaged_are_refused(harness: HttpHarness) -> None:
    """LEASE-18: they do not wait until their time is up."""
    holder = new_token()
    await harness.acquire("a", holder)
    body = {"ttl_seconds": 30, "wait_seconds": 60}
    waits = []
    for _ in range(3):
        headers = {"X-Volcano-Lock-Token": new_token()}
        waits.append(asyncio.create_task(harness.request("POST", "/locks/a/lease", headers=headers, json=body)))
    while harness.server.service.queues.table.request_count < 3:
        await asyncio.sleep(0)
    spoil(harness, "a")
    assert problem(await harness.renew("a", holder)) == DAMAGED
    assert [problem(response) for response in await asyncio.gather(*waits)] == [DAMAGED] * 3
    headers = {"X-Volcano-Lock-Token": new_token()}
    response = await harness.request("POST", "/locks/a/lease", headers=headers, json=body)
    assert problem(response) == DAMAGED


@pytest.mark.parametrize("owner_only", [False, True])
async def test_a_spent_quota_does_not_hide_the_damage(harness: HttpHarness, owner_only: bool) -> None:
    """LEASE-18, QUOTA-5."""
    token = new_token()
    await harness.acquire("a", token)
    spoil(harness, "a")
    if owner_only:
        await harness.set_quota(1)
        await harness.request("GET", "/locks/b")
    assert problem(await harness.renew("a", token)) == DAMAGED
