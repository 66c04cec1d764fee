"""A signal handler runs at every instant of a call at which Python can run it. It raises, or uses the client itself.

Python checks for signals when a function begins, when a generator continues after its own `yield`, and when a function
in C has returned.

Not promised, and not tested: the very first instruction of leaving a block and of `release`, which Python does not
allow to guard. The lease then expires.
"""

import faulthandler
import gc
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from volcano_locks import Client, VolcanoError
from volcano_locks.sync.block import LockBlock
from volcano_locks.sync.client import Locks

from ..socket_server import FREED, GRANTED, ServerConnection, header, socket_server

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("dropped_sockets")]

INTERRUPT_SECONDS_MAX = 5
UNGUARDED = {LockBlock.__exit__.__code__, Locks.release.__code__}

Call = Callable[[Client], Any]


class GrantingServer:
    """A server that grants every acquire and records the tokens that were not released.

    A token that was released first stays so (LEASE-11), because the two requests may use different connections.
    """

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.retired: set[str] = set()

    def __call__(self, connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            token = header(head, "X-Volcano-Lock-Token")
            if head.startswith("POST"):
                self.held |= {token} - self.retired
                connection.respond(GRANTED)
            elif head.startswith("PATCH"):
                connection.respond(GRANTED.replace(b"201 Created", b"200 OK"))
            else:
                self.retired.add(token)
                self.held.discard(token)
                connection.respond(FREED)


@pytest.fixture
def server() -> GrantingServer:
    return GrantingServer()


@pytest.fixture
def granted(server: GrantingServer) -> Iterator[Client]:
    with socket_server(server) as url, Client(url, "sk-x") as client:
        yield client


def acquires(client: Client) -> None:
    client.locks.acquire("k", ttl=30)


def acquires_with_its_own_token(client: Client) -> None:
    client.locks.acquire("k", ttl=30, token=str(uuid.uuid4()))


def waits(client: Client) -> None:
    client.locks.acquire("k", ttl=30, wait=60)


def holds(client: Client) -> None:
    with client.locks.with_lock("k", ttl=30, wait=60):
        pass


def leads(client: Client) -> None:
    client.locks.lead("k", lambda guard: None, ttl=30)


def runs_exclusively(client: Client) -> None:
    client.locks.exclusive("k", ttl=30, on_held="wait")(lambda: None)()


def renews(client: Client) -> None:
    lease = client.locks.acquire("k", ttl=30)
    try:
        client.locks.renew("k", lease)
    finally:
        client.locks.release("k", lease)


def releases(client: Client) -> None:
    client.locks.release("k", client.locks.acquire("k", ttl=30))


@pytest.fixture(autouse=True)
def _no_deadlock() -> Iterator[None]:
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.mark.parametrize(
    "call", [acquires, acquires_with_its_own_token, waits, holds, leads, runs_exclusively, renews, releases]
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt may hit a finalizer
def test_an_interrupt_leaves_nothing_held(call: Call, granted: Client, server: GrantingServer) -> None:
    """SDK-2, SDK-5, SDK-11, SDK-18, SDK-23: case 16, case 17, case 43, at any instant, and without delay."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    call(granted)
    server.held.clear()
    for number in range(1, 5_000):
        began = time.monotonic()
        try:
            if not handled_at(number, interrupt, lambda: call(granted)):
                break
            pytest.fail(f"the interrupt at instant {number} was swallowed")
        except KeyboardInterrupt:
            assert server.held == set(), f"at instant {number}"
            assert time.monotonic() - began < INTERRUPT_SECONDS_MAX, f"at instant {number}"
    assert number > 50


@pytest.mark.parametrize("call", [acquires, waits, holds, renews])
def test_a_handler_may_release_and_hold_at_any_instant(call: Call, granted: Client, server: GrantingServer) -> None:
    """SDK-23, case 42: `release`, a block and `lost`, over the client that it interrupts."""
    with granted.locks.with_lock("outer", ttl=30) as guard:
        for number in range(1, 5_000):
            lease = granted.locks.acquire("other", ttl=30)

            def handler() -> None:
                granted.locks.release("other", lease)  # noqa: B023 - called in this round only
                with granted.locks.with_lock("inner", ttl=30):
                    assert not guard.lost

            began = time.monotonic()
            handled = handled_at(number, handler, lambda: call(granted))
            assert time.monotonic() - began < INTERRUPT_SECONDS_MAX, f"at instant {number}"
            if not handled:
                break
            assert lease.token in server.retired, f"at instant {number}"
    assert number > 50


@pytest.mark.parametrize("call", [acquires, waits, holds, renews])
def test_a_handler_may_close_the_client_at_any_instant(call: Call, server: GrantingServer) -> None:
    """SDK-23, case 42: the interrupted call ends as usual, or raises that the client is closed and leaves nothing."""
    with socket_server(server) as url:
        for number in range(1, 5_000):
            client = Client(url, "sk-x")
            began = time.monotonic()
            failure = ""
            try:
                handled = handled_at(number, client.close, lambda: call(client))  # noqa: B023 - called in this round only
            except VolcanoError as error:
                failure, handled = str(error), True
            client.close()
            if not handled:
                break
            assert failure in {"", "this client is closed"}
            assert not failure or call is renews or server.held == set(), f"at instant {number}"
            assert time.monotonic() - began < INTERRUPT_SECONDS_MAX, f"at instant {number}"
            server.held.clear()
    assert number > 50


def handled_at(number: int, handler: Callable[[], None], call: Callable[[], None]) -> bool:
    """Interrupt `call` by `handler` at its `number`-th instant. Returns whether it got that far."""
    instants = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal instants
        if event == "call":
            continues_inner_generator = frame.f_code.co_code[frame.f_lasti + 1] > 1
            if frame.f_code in UNGUARDED or continues_inner_generator:
                return
        elif event != "c_return":
            return
        if frame.f_globals.get("__name__") not in {__name__, "collections.abc"}:  # the annotations of a decorator
            instants += 1
            if instants == number:
                sys.setprofile(None)
                handler()

    gc.disable()  # Python ignores an error in a callback of the garbage collector, such as that of a test library
    try:
        sys.setprofile(count)
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return instants >= number
