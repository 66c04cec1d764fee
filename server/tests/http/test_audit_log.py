"""The log lines about requests: what is logged at which level, and that secrets are not."""

import asyncio
import json
import re

import pytest

from .conftest import ADMIN_TOKEN, HttpHarness, both_ways, new_token

over_socket = both_ways


async def test_each_event_is_logged_at_its_level(harness: HttpHarness) -> None:
    """OPS-6: expired leases, force releases, refusals and admin changes at info; grants and contention at debug."""
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
    assert by_event["force_released"]["level"] == "info"
    refused = {line["code"]: line["level"] for line in lines if line["event"] == "refused"}
    assert refused == {"lock_held": "debug", "lock_rate_limited": "info"}
    assert by_event["project_changed"]["requests_per_minute"] == 1
    assert {by_event[name]["address"] for name in ("refused", "force_released", "project_changed")} == {"127.0.0.1"}
    assert (by_event["granted"]["level"], by_event["released"]["level"]) == ("debug", "debug")
    assert granted.headers["x-volcano-request-id"] in {line.get("request_id") for line in lines}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["at"]) for line in lines)


async def test_every_line_names_who_did_it(harness: HttpHarness) -> None:
    """OPS-14, HTTP-30: the address, the key's id and name, the reason and the request id."""
    reader = await harness.new_key("reader", permissions=["locks.read"])
    short = await harness.new_key("short", expires_at="2026-07-20T14:00:10Z")
    (first,) = [
        key.id
        for key in (await harness.server.store.registry.service_keys(harness.project_id, limit=10, cursor=None)).items
        if key.name == "first"
    ]
    harness.clock.advance(10_000)
    token = new_token()
    await harness.acquire("a", token, headers={"X-Volcano-Lock-Holder": "web-1"})
    await harness.acquire("a", new_token())
    await harness.request("DELETE", "/locks/a")
    await harness.request("DELETE", "/locks/a", key=reader["key_value"])
    await harness.request("GET", "/locks/a", key=short["key_value"])
    await harness.request("GET", "/locks/a", key="sk-" + "A" * 43)
    await harness.request("GET", "/projects", key=reader["key_value"])
    await harness.set_quota(1)
    await harness.request("GET", "/locks/a")
    harness.server.log.writer.close()
    lines = [json.loads(line) for line in harness.log.getvalue().splitlines()]
    lines = [line for line in lines if line["event"] in ("granted", "force_released", "refused")]
    who = [(line["event"], line.get("code"), line["key_id"], line["key_name"]) for line in lines]
    assert who == [
        ("granted", None, first, "first"),
        ("refused", "lock_held", first, "first"),
        ("force_released", None, first, "first"),
        ("refused", "missing_permission", reader["id"], "reader"),
        ("refused", "invalid_credentials", short["id"], "short"),
        ("refused", "invalid_credentials", None, None),
        ("refused", "admin_token_required", reader["id"], "reader"),
        ("refused", "lock_rate_limited", first, "first"),
    ]
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    assert all(re.fullmatch(r"[0-9a-f-]{36}", line["request_id"]) for line in lines)
    assert all(line["reason"] for line in lines if line["event"] == "refused")
    assert {line["project_id"] for line in lines} == {harness.project_id, None}
    assert lines[0]["holder"] == "web-1"


class TestLogGrants:
    @pytest.fixture
    def log_level(self) -> str:
        return "info"

    @pytest.fixture
    def log_grants(self) -> bool:
        return True

    async def test_grants_and_releases_are_logged_with_their_holders(self, harness: HttpHarness) -> None:
        """OPS-6: with --log-grants at info; renewals and contention stay at debug."""
        token = new_token()
        label = {"X-Volcano-Lock-Holder": "web-1"}
        await harness.acquire("a", token, headers=label)
        await harness.acquire("a", token, headers=label)
        await harness.renew("a", token, headers=label)
        await harness.acquire("a", new_token())
        await harness.read("a")
        await harness.release("a", token)
        harness.server.log.writer.close()
        lines = [json.loads(line) for line in harness.log.getvalue().splitlines()][-3:]
        assert [(line["event"], line.get("how"), line["level"], line["holder"]) for line in lines] == [
            ("granted", "acquired", "info", "web-1"),
            ("granted", "repeated", "info", "web-1"),
            ("released", None, "info", "web-1"),
        ]
        assert "renewed" not in harness.log.getvalue()
        assert token not in harness.log.getvalue()


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
        assert [event for event in events if event != "started"] == ["service_key_created"]

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
    named = (await harness.admin("POST", "/admin-tokens", json={"name": "ann"})).json()
    harness.responses.clear()
    secrets = [token, key["key_value"], harness.service_key, ADMIN_TOKEN, named["token_value"]]
    for lock_key in (key["key_value"], harness.service_key, "sk-" + "B" * 43):
        await harness.acquire("a", token, key=lock_key)
        await harness.renew("a", token + "x", key=lock_key)
        await harness.release("a", token, key=lock_key)
        await harness.acquire("a", token, key=lock_key)
    await harness.request("GET", "/locks/a", key=ADMIN_TOKEN)
    await harness.request("GET", "/projects")
    for secret in (token, harness.service_key, named["token_value"]):  # in wrong places
        wrong = {"X-Volcano-Lock-Holder": f"my {secret}", "X-Volcano-Request-Id": secret + "-"}
        await harness.request("GET", f"/locks?after={secret}.", headers=wrong)
        await harness.acquire("a", new_token(), headers={"X-Volcano-Lock-Holder": f"my {secret}"})
        await harness.admin("POST", "/admin-tokens", json={"name": f"{secret}."})
    harness.responses.clear()  # an error repeats what its client sent
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
