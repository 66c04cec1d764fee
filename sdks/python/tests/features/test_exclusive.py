"""Functions that run under a lock, with both clients (SDK-16)."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import pytest

from volcano_locks import AsyncClient, Client, LockGuard, LockHeldError, LockOwnershipLostError
from volcano_locks.testing import FakeLocks, FaultyTransport, ManualClock

from ..client_targets import AsyncTarget, Target


def decorated(client: Client | AsyncClient, body: Callable[..., Any], key: str = "report-{day}", **options: Any) -> Any:
    """A function of `day` under the lock; its calls are awaited with either client."""
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
        async_client.locks.exclusive("k", ttl=60)(plain)  # type: ignore[arg-type]


def test_an_invalid_key_raises_at_the_call(client: Client, network: FaultyTransport) -> None:
    @client.locks.exclusive("report-{day}", ttl=60)
    def report(day: str) -> None: ...

    with pytest.raises(ValueError, match="key must be"):
        report("a/b")
    with pytest.raises(TypeError, match="missing an argument: 'day'"):
        report()  # type: ignore[call-arg]
    assert network.seen == []


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


class CallableObject:
    """Is called through its `__call__`."""

    def __init__(self, result: Callable[[], Any]) -> None:
        self.result = result

    def __call__(self) -> Any:
        return self.result()


class AsyncCallableObject(CallableObject):
    """Is awaited."""

    async def __call__(self) -> Any:
        return self.result()


class GeneratorObject:
    """Is called through its `__call__`, whose body runs later."""

    def __call__(self) -> Iterator[int]:
        yield 1


class AsyncGeneratorObject:
    """As `GeneratorObject`, in an event loop."""

    async def __call__(self) -> AsyncIterator[int]:
        yield 1


def guards(client: Client | AsyncClient) -> list[Callable[[Any], Any]]:
    """Both decorators."""
    return [client.locks.exclusive("k", ttl=30), client.locks.with_lock("k", ttl=30)]


def call(target: Target, function: Callable[[], Any]) -> Awaitable[Any]:
    """Call a decorated function of this client."""
    if isinstance(target, AsyncTarget):
        result: Awaitable[Any] = function()
        return result
    return asyncio.to_thread(function)


def returning(result: object) -> object:
    return result


RUN_LATER = [generator, async_generator, GeneratorObject(), AsyncGeneratorObject(), "no function"]
PLAIN = [*RUN_LATER, coroutine, AsyncCallableObject(int)]
NOT_ASYNC = [*RUN_LATER, int, CallableObject(int)]


async def test_a_function_whose_body_would_run_later_is_refused(target: Target, network: FaultyTransport) -> None:
    """SDK-16, case 44: also an object with such a `__call__`, and a partial of it."""
    for guard in guards(target.client):
        for function in NOT_ASYNC if isinstance(target, AsyncTarget) else PLAIN:
            with pytest.raises(TypeError, match=r"must be a(n `async def`| plain) function"):
                guard(function)
            if callable(function):
                with pytest.raises(TypeError, match=r"must be a(n `async def`| plain) function"):
                    guard(partial(partial(function)))
    assert network.seen == []


async def test_a_result_that_would_run_later_is_refused_and_the_lock_released(
    target: Target, network: FaultyTransport
) -> None:
    """SDK-16, case 44: a function need not look like what it returns. An unawaited coroutine would warn."""
    loop = asyncio.get_running_loop()
    for guard in guards(target.client):
        for kind in (generator, async_generator, coroutine, loop.create_future):
            function = AsyncCallableObject(kind) if isinstance(target, AsyncTarget) else CallableObject(kind)
            with pytest.raises(TypeError, match="run after the release"):
                await call(target, guard(function))
            assert network.seen.pop().method == "DELETE"
            assert network.seen.pop().method == "POST"


async def test_partials_callable_objects_and_lazy_results_pass(target: Target) -> None:
    """SDK-16: an iterator may be a cursor that was fetched already."""
    for guard in guards(target.client):
        for result in (5, iter([1]), map(str, [1]), None):
            returned = CallableObject(partial(returning, result))
            function = AsyncCallableObject(returned) if isinstance(target, AsyncTarget) else returned
            assert await call(target, guard(function)) is result
            assert await call(target, guard(partial(function))) is result


async def test_with_lock_is_a_decorator(target: Target, network: FaultyTransport, rival: AsyncClient) -> None:
    """SDK-16: each call is a block of its own, with the arguments of `with_lock`, and raises the function's error."""
    seen: list[tuple[str, bool]] = []
    guard: Any = target.client.locks.with_lock("k", ttl=60, request_id="AAAAAAAA-2222-4333-8444-555555555555")

    async def check(name: str) -> str:
        seen.append((name, (await rival.locks.get("k")).held))
        if name == "bad":
            raise ZeroDivisionError
        return name

    if isinstance(target, AsyncTarget):
        guarded = guard(check)
    else:
        loop = asyncio.get_running_loop()

        def plain_check(name: str) -> str:
            return asyncio.run_coroutine_threadsafe(check(name), loop).result(20)

        guarded = partial(asyncio.to_thread, guard(plain_check))
    assert [await guarded("one"), await guarded("two")] == ["one", "two"]
    with pytest.raises(ZeroDivisionError):
        await guarded("bad")
    assert seen == [("one", True), ("two", True), ("bad", True)]
    assert not (await rival.locks.get("k")).held
    acquires = [request for request in network.seen if request.method == "POST"]
    assert len({request.token for request in acquires}) == 3
    assert {request.request_id for request in acquires} == {"AAAAAAAA-2222-4333-8444-555555555555"}
    assert all(b'"ttl_seconds":60' in request.body for request in acquires)


async def test_with_lock_with_a_token_is_no_decorator(target: Target) -> None:
    """SDK-16, case 19: the second call would repeat the token of a released lease."""
    block: Any = target.client.locks.with_lock("k", ttl=30, token="11111111-2222-4333-8444-555555555555")
    with pytest.raises(TypeError, match="takes no token"):
        block(coroutine if isinstance(target, AsyncTarget) else print)


def test_a_method_can_be_decorated_with_with_lock(client: Client, network: FaultyTransport) -> None:
    class Job:
        @client.locks.with_lock("k", ttl=30)
        def run(self, number: int = 1, *, factor: int = 1, guard: LockGuard | None = None) -> int:
            """Multiply."""
            assert guard is not None
            assert not guard.lost
            return number * factor

    assert Job().run(3, factor=2) == 6
    assert (Job.run.__name__, Job.run.__doc__) == ("run", "Multiply.")
    assert [seen.method for seen in network.seen] == ["POST", "DELETE"]
