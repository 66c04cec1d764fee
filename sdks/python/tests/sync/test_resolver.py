"""Look-ups of host names: time limits, shared threads, and the addresses found last (SDK-3, SDK-23)."""

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from volcano_locks.clock import SystemClock
from volcano_locks.sync import resolver
from volcano_locks.sync.call import Call, CallCancelled, TimeUp
from volcano_locks.sync.resolver import Resolver

from ..helpers import eventually

ADDRESSES = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 7420))]


class NameServer:
    """Replaces the system's look-up. While `hangs`, a look-up does not return. Literal addresses need no look-up."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real = real
        self.hangs = False
        self.lookups = 0
        self.goes_on = threading.Event()
        self.outcome: Any = ADDRESSES

    def getaddrinfo(self, host: Any, port: int, *args: Any, flags: int = 0, **options: Any) -> Any:
        if flags & socket.AI_NUMERICHOST:
            return self.real(host, port, *args, flags=flags, **options)
        self.lookups += 1
        if self.hangs:
            self.goes_on.wait(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    names = NameServer(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.goes_on.set()


@pytest.fixture
def resolving() -> Resolver:
    return Resolver("locks.example", 7420, SystemClock().now)


def lookup(resolver: Resolver, seconds: float, call: Call | None = None) -> Any:
    clock = SystemClock()
    return resolver.addresses(clock.now() + seconds, call or Call(clock))


def test_a_literal_address_starts_no_lookup(names: NameServer) -> None:
    for host in ("127.0.0.1", "::1"):
        assert [address[4][:2] for address in lookup(Resolver(host, 7420, SystemClock().now), 5)] == [(host, 7420)]
    assert names.lookups == 0


def test_a_name_server_that_hangs_ends_at_the_deadline(names: NameServer, resolving: Resolver) -> None:
    """SDK-23."""
    names.hangs = True
    with pytest.raises(TimeUp):
        lookup(resolving, 0.05)


def test_callers_share_one_lookup(names: NameServer, resolving: Resolver) -> None:
    """A name server that hangs costs one thread, not one per call."""
    names.hangs = True
    for _ in range(3):
        with pytest.raises(TimeUp):
            lookup(resolving, 0.02)
    results: list[Any] = []
    callers = [threading.Thread(target=lambda: results.append(lookup(resolving, 60))) for _ in range(5)]
    for caller in callers:
        caller.start()
    eventually(lambda: resolving._lookup is not None and len(resolving._lookup.waiting) == 8)
    names.goes_on.set()
    for caller in callers:
        caller.join(20)
    assert results == [ADDRESSES] * 5
    assert names.lookups == 1


def test_the_addresses_found_last_are_used_again(
    names: NameServer, resolving: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-3: a renewal goes on while the name server hangs or no longer knows the name."""
    monkeypatch.setattr(resolver, "LOOKUP_SECONDS_MAX", 0.05)
    assert lookup(resolving, 60) == ADDRESSES
    names.outcome = socket.gaierror(socket.EAI_AGAIN, "temporary failure")
    assert lookup(resolving, 60) == ADDRESSES
    names.hangs = True
    assert lookup(resolving, 60) == ADDRESSES
    names.outcome = moved = [(*ADDRESSES[0][:4], ("192.0.2.2", 7420))]
    names.hangs = False
    names.goes_on.set()
    eventually(lambda: lookup(resolving, 60) == moved)


def test_an_unknown_name_is_an_os_error_and_is_looked_up_again(names: NameServer, resolving: Resolver) -> None:
    names.outcome = socket.gaierror(socket.EAI_NONAME, "unknown name")
    with pytest.raises(socket.gaierror, match="unknown name"):
        lookup(resolving, 60)
    names.outcome = ADDRESSES
    assert lookup(resolving, 60) == ADDRESSES


def test_closing_the_client_ends_a_lookup(names: NameServer, resolving: Resolver) -> None:
    """SDK-23: the call ends at once, though the look-up cannot be ended."""
    names.hangs = True
    call = Call(SystemClock())
    threading.Timer(0.05, call.cancel).start()
    with pytest.raises(CallCancelled):
        lookup(resolving, 60, call)


def test_an_interrupt_before_the_lookup_leaves_no_lookup_that_never_ends(
    names: NameServer, resolving: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-23: later calls would wait for it."""

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(resolver, "start_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lookup(resolving, 60)
    assert lookup(resolving, 5) == ADDRESSES
