"""Functions that run under a lock, with both clients (SDK-16)."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from volcano_locks import AsyncClient, Client, LockGuard, LockHeldError, LockOwnershipLostError
from volcano_locks.testing import FakeLocks, FaultyTransport, ManualClock


def decorated(client: Client | AsyncClient, body: Callable[..., Any], key: str = "report-{day}", **options: Any) -> Any:
    """A function of `day` under the lock, awaited with any_client client."""
    if isinstance(client, AsyncClient):

        @client.locks.exclusive(key, ttl=60, **options)
        async def report(day: str, guard: Any = None) -> Any:
            return await asyncio.to_thread(body, day, guard)

        return report

    @client.locks.exclusive(key, ttl=60, **options)
    def plain_report(day: str, guard: Any = None) -> Any:
        return body(day, guard)

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(plain_report, *args, **kwargs)

    return call


@pytest.fixture(params=["sync", "async"])
def any_client(request: pytest.FixtureRequest, client: Client, async_client: AsyncClient) -> Client | AsyncClient:
    return client if request.param == "sync" else async_client


async def test_the_function_runs_under_the_lock_of_its_arguments(
    any_client: Client | AsyncClient, server: FakeLocks
) -> None:
    seen: list[bool] = []

    def body(day: str, guard: LockGuard) -> str:
        with server.client() as other:
            seen.append(other.locks.get(f"report-{day}").held)
        return f"{day} {guard.key} {guard.lost}"

    report = decorated(any_client, body)
    assert await report("monday") == "monday report-monday False"
    assert await report(day="tuesday") == "tuesday report-tuesday False"
    assert seen == [True, True]
    with server.client() as other:
        assert [view.key for view in other.locks.list(state="held")] == []


async def test_contention_inside_the_function_is_raised_not_skipped(any_client: Client | AsyncClient) -> None:
    """SDK-16."""

    def body(day: str, guard: LockGuard) -> None:
        raise LockHeldError("another lock")

    with pytest.raises(LockHeldError, match="another lock"):
        await decorated(any_client, body, on_held="skip")("monday")


async def test_a_loss_is_raised(any_client: Client | AsyncClient, clock: ManualClock) -> None:
    """SDK-5, SDK-16: a call is a block like any other."""
    with pytest.raises(LockOwnershipLostError):
        await decorated(any_client, lambda day, guard: clock.jump(61))("monday")


def test_name_docstring_and_signature_are_kept(client: Client) -> None:
    @client.locks.exclusive("nightly", ttl=60)
    def rollup(day: str, factor: int = 2) -> int:
        """Add it up."""
        return len(day) * factor

    assert rollup("monday", factor=3) == 18
    assert (rollup.__name__, rollup.__doc__) == ("rollup", "Add it up.")
    assert list(inspect.signature(rollup).parameters) == ["day", "factor"]


def test_a_guard_passed_by_the_caller_is_kept(client: Client) -> None:
    @client.locks.exclusive("nightly", ttl=60)
    def rollup(guard: object = None) -> object:
        return guard

    assert rollup("mine") == "mine"
    assert rollup(guard=None) is None
    assert isinstance(rollup(), LockGuard)


@dataclass
class Order:
    """An argument with parts."""

    id: int


def test_a_template_is_filled_as_format_does(client: Client, network: FaultyTransport) -> None:
    @client.locks.exclusive("o.{order.id}-{day:%Y%m%d}-{size}", ttl=60)
    def ship(order: Order, *, day: date, size: str = "small") -> None: ...

    ship(Order(7), day=date(2026, 1, 2))
    assert network.seen[0].path == "/locks/o.7-20260102-small/lease"


class Shop:
    """Methods are functions of `self`."""

    def __init__(self, name: str) -> None:
        self.name = name


def test_methods_can_be_decorated(client: Client, network: FaultyTransport) -> None:
    @client.locks.exclusive("shop-{self.name}", ttl=60)
    def open_up(self: Shop) -> str:
        return self.name

    Shop.open_up = open_up  # type: ignore[attr-defined]
    assert Shop("a").open_up() == "a"  # type: ignore[attr-defined]
    assert network.seen[0].path == "/locks/shop-a/lease"


def test_mistakes_raise_at_decoration(client: Client, async_client: AsyncClient) -> None:
    """SDK-16: not at the first call."""

    def plain(day: str, guard: object = None) -> None: ...

    async def asynchronous(day: str) -> None: ...

    with pytest.raises(ValueError, match=r"has \{month\}, which is no argument of .*plain"):
        client.locks.exclusive("report-{month}", ttl=60)(plain)
    for key in ("report-{}", "report-{0}", "report-{guard}"):
        with pytest.raises(ValueError, match="which is no argument"):
            client.locks.exclusive(key, ttl=60)(plain)
    with pytest.raises(ValueError, match="on_held must be raise, skip or wait, got 'ignore'"):
        client.locks.exclusive("k", ttl=60, on_held="ignore")(plain)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="ttl must be from 5"):
        client.locks.exclusive("k", ttl=1)
    with pytest.raises(ValueError, match="hold_at_least must be at most 7776000"):
        client.locks.exclusive("k", ttl=60, hold_at_least=float("inf"))
    with pytest.raises(TypeError, match="must be a plain function"):
        client.locks.exclusive("k", ttl=60)(asynchronous)
    with pytest.raises(TypeError, match="must be an `async def` function"):
        async_client.locks.exclusive("k", ttl=60)(plain)  # type: ignore[type-var]


def test_an_invalid_key_raises_at_the_call(client: Client, network: FaultyTransport) -> None:
    @client.locks.exclusive("report-{day}", ttl=60)
    def report(day: str) -> None: ...

    with pytest.raises(ValueError, match="key must be"):
        report("a/b")
    with pytest.raises(TypeError, match="missing an argument: 'day'"):
        report()  # type: ignore[call-arg]
    assert network.seen == []
