"""Force releases over HTTP: of the lease that an operator saw (LEASE-20), with a reason for the log and the event."""

import json
from urllib.parse import quote

import httpx2
import pytest

from .conftest import HttpHarness, both_ways, new_token, problem
from .test_event_stream import turns, watching

over_socket = both_ways

LAST_CHARACTER = "\U0010ffff"


async def force(harness: HttpHarness, address: str, reason: str | None = None) -> httpx2.Response:
    return await harness.request("DELETE", address, headers={} if reason is None else {"X-Volcano-Reason": reason})


async def test_only_the_lease_of_the_address_is_freed(harness: HttpHarness) -> None:
    """HTTP-34, LEASE-20, case 66."""
    first, second = new_token(), new_token()
    seen = (await harness.acquire("job:1", first)).json()["fencing_token"]
    await harness.release("job:1", first)
    current = (await harness.acquire("job:1", second)).json()["fencing_token"]
    refused = await force(harness, f"/locks/job%3A1/leases/{seen}")
    assert problem(refused) == (409, "lock_changed")
    assert str(seen) in refused.json()["error"]
    assert str(current) in refused.json()["error"]
    assert (await harness.renew("job:1", second)).status_code == 200
    for _ in range(2):
        freed = await force(harness, f"/locks/job%3A1/leases/{current}")
        assert (freed.status_code, freed.content) == (204, b"")
    assert await harness.read("job:1") == {"held": False}


@pytest.mark.parametrize(
    "token", ["0", "01", "-1", "+1", "1.0", "1e3", "x", "%31", str(2**53), "9" * 17, "9" * 4_000, "1%20", "lease%2F"]
)
async def test_a_fencing_token_is_a_whole_number(harness: HttpHarness, token: str) -> None:
    """HTTP-34."""
    await harness.acquire("a", new_token())
    assert problem(await force(harness, f"/locks/a/leases/{token}")) == (400, "invalid_request")
    assert (await harness.read("a"))["held"]


@pytest.mark.parametrize(
    "address", ["/locks/a/leases/", "/locks/a/leases", "/locks/leases/7", "/locks/a/b/leases/7", "/locks/a/leases/7/",
                "/locks/a/leases/7/8", "/locks/a/leases/7/lease", "/locks/a/leases/7/events", "/locks/a/lease/7"]
)  # fmt: skip
async def test_similar_addresses_free_nothing(harness: HttpHarness, address: str) -> None:
    """HTTP-6, HTTP-34: a client of another release gets a 404, never a free lock."""
    for key in ("a", "leases"):
        await harness.acquire(key, new_token())
    assert problem(await force(harness, address)) == (404, "not_found")
    assert (await harness.read("a"))["held"]
    assert (await harness.read("leases"))["held"]


async def test_the_address_takes_no_other_method(harness: HttpHarness) -> None:
    """HTTP-6; and a lock may be called `leases`."""
    for method in ("GET", "POST", "PATCH"):
        response = await harness.request(method, "/locks/a/leases/7")
        assert problem(response) == (405, "method_not_allowed")
        assert response.headers["allow"] == "DELETE"
    token = (await harness.acquire("leases", new_token())).json()["fencing_token"]
    assert (await force(harness, f"/locks/leases/leases/{token}")).status_code == 204


@pytest.mark.parametrize(
    "sent",
    [
        "a b", "caf\xe9", "%", "%4", "%zz", "%ff", "%c3", "%ed%a0%80", "%00", "a%0Ab", "a%1B%5B2J", "%7F", "%C2%9B",
        "%e2%80%a8", "%E2%80%AE", "%e2%81%a6", "a%E2%80%8Bb", "%EF%BB%BF", "%C2%AD", "%F3%A0%81%81", "r" * 201,
        quote("\xe9" * 201), quote(LAST_CHARACTER * 201), "%20" * 9_000,
    ],
)  # fmt: skip
async def test_an_invalid_reason_is_refused(harness: HttpHarness, sent: str) -> None:
    """HTTP-34: nothing is freed without its reason."""
    token = (await harness.acquire("a", new_token())).json()["fencing_token"]
    for address in ("/locks/a", f"/locks/a/leases/{token}"):
        response = await harness.request("DELETE", address, headers={"X-Volcano-Reason": sent.encode("latin-1")})
        assert problem(response) == (400, "invalid_reason")
        assert "X-Volcano-Reason" in response.json()["error"]
        assert "200" in response.json()["error"]
    assert (await harness.read("a"))["held"]


async def test_a_reason_that_is_sent_twice_is_refused(harness: HttpHarness) -> None:
    """HTTP-34."""
    headers = [("Authorization", f"Bearer {harness.service_key}"), *[("X-Volcano-Reason", "once")] * 2]
    assert problem(await harness.client.request("DELETE", "/locks/a", headers=headers)) == (400, "invalid_reason")


@pytest.mark.parametrize("reason", ["x", "a+b&c=d", 'it "hangs" \\ {"x":1}', "\xe9" * 200, LAST_CHARACTER * 200, " "])
async def test_a_reason_is_in_the_log_and_in_the_event(harness: HttpHarness, reason: str) -> None:
    """HTTP-34, EVENT-10, OPS-6; a refusal has the sentence of its error as its reason (OPS-14)."""
    token = (await harness.acquire("a", new_token())).json()["fencing_token"]
    async with watching(harness, "/locks/a/events") as stream:
        assert problem(await force(harness, f"/locks/a/leases/{token + 1}", quote(reason))) == (409, "lock_changed")
        assert (await force(harness, f"/locks/a/leases/{token}", quote(reason, safe=""))).status_code == 204
        await turns()
        ((_, name, data),) = stream.news()
    assert (name, data["why"], data["reason"]) == ("force_released", "forced", reason)
    harness.server.log.writer.close()
    lines = [json.loads(line) for line in harness.log.getvalue().splitlines()]
    refused, forced = [line for line in lines if line.get("operation") == "force_release"]
    assert (refused["event"], refused["code"]) == ("refused", "lock_changed")
    assert (forced["event"], forced["reason"]) == ("force_released", reason)


async def test_without_a_reason_the_event_has_none(harness: HttpHarness) -> None:
    """HTTP-34, EVENT-10: an empty reason is none."""
    async with watching(harness, "/locks/a/events") as stream:
        for reason in (None, ""):
            await harness.acquire("a", new_token())
            assert (await force(harness, "/locks/a", reason)).status_code == 204
        await turns()
        forced = [data for _, name, data in stream.news() if name == "force_released"]
    assert [sorted(data) for data in forced] == [["at", "fencing_token", "holder", "key", "why"]] * 2


async def test_other_requests_ignore_the_field(harness: HttpHarness) -> None:
    """HTTP-34."""
    sent = {"X-Volcano-Reason": "%"}
    assert (await harness.acquire("a", new_token(), headers=sent)).status_code == 201
    assert (await harness.request("GET", "/locks/a", headers=sent)).status_code == 200
