"""HTTP-35: failed credentials are slowed down by address, and valid ones never."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from volcano_locks_server.http import failed_credentials
from volcano_locks_server.http.failed_credentials import DELAY_MS_MAX, FREE_FAILURES, FailedCredentials
from volcano_locks_server.telemetry import Metrics
from volcano_locks_server.testing import ManualClock

from .conftest import ADMIN_TOKEN, HttpHarness, both_ways, problem

over_socket = both_ways
UNKNOWN = "sk-" + "A" * 43


async def fail(harness: HttpHarness, count: int, key: str | None = UNKNOWN, path: str = "/locks/a") -> None:
    for _ in range(count):
        assert (await harness.request("GET", path, key=key)).status_code in (401, 403)


async def delayed(harness: HttpHarness, request: Awaitable[object]) -> "asyncio.Task[object]":
    """The request, once its response waits for the clock."""
    task = asyncio.ensure_future(request)
    before = harness.server.metrics.delayed_credentials
    async with asyncio.timeout(10):
        while harness.server.metrics.delayed_credentials == before:
            await asyncio.sleep(0.001)
            assert not task.done()
    return task


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("key", "path"),
    [
        (UNKNOWN, "/locks/a"), (None, "/locks/a"), ("nonsense", "/locks/a"), ("ak-0123456789", "/locks/a"),
        (UNKNOWN, "/projects"), ("admin-" + "A" * 43, "/projects"), ("e30.e30.x", "/admin-tokens"),
    ],
)  # fmt: skip
async def test_failures_after_the_first_ten_wait(harness: HttpHarness, key: str | None, path: str) -> None:
    """HTTP-35, HTTP-14: on every address and for every kind, up to a second each, with the same response."""
    await fail(harness, FREE_FAILURES, key, path)
    waiting = await delayed(harness, harness.request("GET", path, key=key))
    harness.clock.advance(DELAY_MS_MAX - 1)
    await asyncio.sleep(0.02)
    assert not waiting.done()
    harness.clock.advance(1)
    response = await waiting
    assert problem(response)[0] in (401, 403)  # type: ignore[arg-type]
    assert harness.server.metrics.failed_credentials == FREE_FAILURES + 1


async def test_a_valid_key_behind_the_same_address_is_never_delayed(harness: HttpHarness) -> None:
    """HTTP-35: neither one that is cached nor one that is used for the first time, nor an admin token."""
    new = (await harness.new_key())["key_value"]
    await fail(harness, FREE_FAILURES + 0)
    waiting = [await delayed(harness, harness.request("GET", "/locks/a", key=UNKNOWN)) for _ in range(3)]
    async with asyncio.timeout(10):
        for key in (harness.service_key, new):
            assert (await harness.request("GET", "/locks/a", key=key)).status_code == 200
        assert (await harness.request("GET", "/projects", key=ADMIN_TOKEN)).status_code == 200
        assert (await harness.request("GET", "/projects", key=new)).status_code == 403, "valid, but of the wrong kind"
    assert not any(one.done() for one in waiting)
    harness.clock.advance(DELAY_MS_MAX)
    await asyncio.gather(*waiting)


async def test_an_address_is_forgiven_with_time(harness: HttpHarness) -> None:
    await fail(harness, FREE_FAILURES)
    harness.clock.advance(FREE_FAILURES * failed_credentials.FAILURE_EVERY_MS)
    await fail(harness, FREE_FAILURES)
    assert harness.server.metrics.delayed_credentials == 0


async def test_a_stopping_server_waits_for_no_delay(harness: HttpHarness) -> None:
    """HTTP-23."""
    await fail(harness, FREE_FAILURES)
    waiting = await delayed(harness, harness.request("GET", "/locks/a", key=UNKNOWN))
    assert await harness.server.app.drain(10)
    assert problem(await waiting) == (401, "invalid_credentials")  # type: ignore[arg-type]


class Failures:
    """FailedCredentials, called directly."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.failed = FailedCredentials(self.clock, self.metrics)

    async def fail(self, address: str | None, count: int = FREE_FAILURES) -> None:
        for _ in range(count):
            async with asyncio.timeout(5):
                await self.failed.slow_down(address)

    def start(self, address: str | None) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self.failed.slow_down(address))


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
async def is_delayed(failures: Failures) -> Callable[[str | None], Awaitable[bool]]:
    async def ask(address: str | None) -> bool:
        one = failures.start(address)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        is_done = one.done()
        one.cancel()
        return not is_done

    return ask


async def test_an_ipv6_network_counts_as_one_address(
    failures: Failures, is_delayed: Callable[[str | None], Awaitable[bool]]
) -> None:
    for end in range(FREE_FAILURES):
        await failures.fail(f"2001:db8:1:2::{end:x}", 1)
    assert await is_delayed("2001:db8:1:2:ffff::1")
    assert not await is_delayed("2001:db8:1:3::1")
    assert not await is_delayed("192.0.2.1")


async def test_an_unknown_address_counts_as_one(
    failures: Failures, is_delayed: Callable[[str | None], Awaitable[bool]]
) -> None:
    await failures.fail(None)
    assert await is_delayed(None)


async def test_memory_is_bounded(failures: Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-35: the address that has not failed for longest is forgotten."""
    monkeypatch.setattr(failed_credentials, "ADDRESSES_MAX", 8)
    await failures.fail("192.0.2.200")
    for end in range(7):
        await failures.fail(f"192.0.2.{end}", 1)
    waiting = failures.start("192.0.2.200")
    await asyncio.sleep(0)
    assert failures.failed.address_count == 8
    await failures.fail("192.0.2.100", 1)
    assert failures.failed.address_count == 8
    await failures.fail("192.0.2.0")  # forgotten, so its failures count anew
    waiting.cancel()


async def test_waiting_responses_are_bounded(failures: Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-35, HTTP-24: past the limits, a response is sent at once; a client that disconnects frees its place."""
    monkeypatch.setattr(failed_credentials, "DELAYED_MAX", 5)
    monkeypatch.setattr(failed_credentials, "DELAYED_PER_ADDRESS_MAX", 3)
    for address in ("192.0.2.1", "192.0.2.2"):
        await failures.fail(address)
    waiting = [failures.start("192.0.2.1") for _ in range(3)]
    await asyncio.sleep(0)
    await failures.fail("192.0.2.1", 20)
    waiting += [failures.start("192.0.2.2") for _ in range(2)]
    await asyncio.sleep(0)
    await failures.fail("192.0.2.2", 20)
    assert not any(one.done() for one in waiting)
    waiting[0].cancel()
    await asyncio.sleep(0)
    again = failures.start("192.0.2.1")
    await asyncio.sleep(0.01)
    assert not again.done()
    failures.clock.advance(DELAY_MS_MAX)
    await asyncio.gather(*waiting[1:], again)
    assert failures.metrics.delayed_credentials == 6


async def test_a_clock_that_is_set_back_delays_no_longer(failures: Failures) -> None:
    await failures.fail("192.0.2.1")
    failures.clock.jump(-3_600_000)
    waiting = failures.start("192.0.2.1")
    await asyncio.sleep(0)
    failures.clock.advance(DELAY_MS_MAX)
    await asyncio.wait_for(waiting, 5)
    failures.clock.advance(20_000)
    await failures.fail("192.0.2.1")
