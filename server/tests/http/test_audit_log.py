"""The log lines about requests: what is logged at which level, and that secrets are not."""

import asyncio
import json
import re

import pytest

from .conftest import ADMIN_TOKEN, HttpHarness, new_token


async def test_each_event_is_logged_at_its_level(harness: HttpHarness) -> None:
    """OPS-6: one object a line; expired leases, force releases, refusals and admin changes at info, grants at debug."""
    first, second = new_token(), new_token()
    granted = await harness.acquire("a", first, 5, headers={"X-Volcano-Lock-Holder": "worker-1"})
    harness.clock.advance(4_500)
    await harness.renew("a", first)
    harness.clock.advance(1_500)
    await harness.acquire("a", second)
    await harness.acquire("a", new_token())
    await harness.request("DELETE", "/locks/a")
    await harness.release("a", second)
    await harness.set_quota(1)
    await harness.release("a", second)
    harness.server.log.writer.close()
    lines = [json.loads(line) for line in harness.log.getvalue().splitlines()]
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

    async def test_grants_and_releases_are_not_logged_at_info(self, harness: HttpHarness) -> None:
        """OPS-6: ordinary work is logged at debug only."""
        token = new_token()
        await harness.acquire("a", token)
        await harness.renew("a", token)
        await self.time_out_a_wait(harness)
        await harness.release("a", token)
        await harness.new_key()
        harness.server.log.writer.close()
        events = [json.loads(line)["event"] for line in harness.log.getvalue().splitlines()]
        assert events == ["service_key_created"]

    async def time_out_a_wait(self, harness: HttpHarness) -> None:
        """A wait that times out; a client with a long wait repeats such waits."""
        body = {"ttl_seconds": 30, "wait_seconds": 0.5}
        headers = {"X-Volcano-Lock-Token": new_token()}
        waiting = asyncio.create_task(harness.request("POST", "/locks/a/lease", headers=headers, json=body))
        while harness.clock.next_due_ms() is None:
            await asyncio.sleep(0)
        harness.clock.advance(500)
        assert (await waiting).status_code == 409


async def test_no_secret_is_shown(harness: HttpHarness) -> None:
    """HTTP-16, HTTP-19, LEASE-15, OPS-6: a secret appears only in the response that created it."""
    token, key = new_token(), await harness.new_key()
    harness.responses.clear()
    secrets = [token, key["key_value"], harness.service_key, ADMIN_TOKEN]
    for lock_key in (key["key_value"], harness.service_key, "sk-" + "B" * 43):
        await harness.acquire("a", token, key=lock_key)
        await harness.renew("a", token + "x", key=lock_key)
        await harness.release("a", token, key=lock_key)
        await harness.acquire("a", token, key=lock_key)
    await harness.request("GET", "/locks/a", key=ADMIN_TOKEN)
    await harness.request("GET", "/projects")
    await harness.request("GET", "/locks/a", key=None, headers={"Authorization": f"Basic {key['key_value']}"})
    for path in (
        f"/projects/{harness.project_id}/service-keys",
        f"/projects/{harness.project_id}/service-keys/{key['id']}",
    ):
        await harness.admin("GET", path)
    await harness.request("GET", "/metrics")
    await harness.request("GET", "/openapi.json")
    harness.server.log.writer.close()
    shown = b"\n".join(harness.responses) + harness.log.getvalue().encode() + repr(harness.server.settings).encode()
    assert harness.log.getvalue()
    for secret in secrets:
        assert secret.encode() not in shown
