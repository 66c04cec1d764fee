# ruff: noqa: PT012, SIM117 - a block is entered, used and left in one statement
"""What only the threaded client promises: one quiet thread, interrupts, forks, the end of the process."""

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import httpx2
import pytest

from volcano_locks import Client, LockOwnershipLostError, VolcanoError
from volcano_locks.holding.guard import Hold, LockGuard
from volcano_locks.sync.background_loop import CLEAN_UP_SECONDS_MAX, Background
from volcano_locks.testing import DropBeforeSend, FakeClient, FakeLocks, FlakyTransport, Hang, ManualClock

from .conftest import in_a_fork

OURS = "volcano-locks"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == OURS]


def eventually(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up, "it never came to be"
        time.sleep(0.001)


def test_one_thread_renews_every_lock_of_a_client(client: Client, clock: ManualClock) -> None:
    """SDK-6: started by the first request, a daemon, ended by `close`."""
    assert not threads()
    blocks = [client.locks.with_lock(f"k{n}", ttl=30) for n in range(30)]
    guards = [block.__enter__() for block in blocks]
    assert [thread.daemon for thread in threads()] == [True]
    clock.advance(200)
    assert not any(guard.lost for guard in guards)
    for block in blocks:
        block.__exit__(None, None, None)
    client.close()
    assert not threads()
    with pytest.raises(VolcanoError, match="this client is closed"):
        client.locks.get("k0")


@pytest.mark.real_time
def test_an_idle_client_ends_its_thread_and_starts_another(server: FakeLocks, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: nothing stays behind a client nobody uses; a held lock is use."""
    monkeypatch.setattr("volcano_locks.sync.background_loop.IDLE_SECONDS_MAX", 0.01)
    with server.client() as client:
        with client.locks.with_lock("k", ttl=30):
            eventually(lambda: len(threads()) == 1)
            time.sleep(0.05)
            assert len(threads()) == 1
        eventually(lambda: not threads())
        assert not client.locks.get("k").held
        eventually(lambda: not threads())


def test_a_client_may_be_shared_by_threads(client: Client) -> None:
    won: list[int] = []

    def compete() -> None:
        for _ in range(20):
            try:
                with client.locks.with_lock("k", ttl=30) as guard:
                    won.append(guard.fencing_token)
            except VolcanoError:
                continue

    workers = [threading.Thread(target=compete) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert won
    assert won == sorted(set(won)), "two holders, or a fencing token twice"
    assert len(threads()) == 1


def test_a_loss_wakes_a_thread_that_waits_for_it(client: Client, clock: ManualClock, net: FlakyTransport) -> None:
    """case 6: told at the deadline while the renewal still hangs."""
    told: list[bool] = []
    with pytest.raises(LockOwnershipLostError):
        with client.locks.with_lock("k", ttl=5) as guard:
            net.otherwise = Hang()
            waiter = threading.Thread(target=lambda: told.append(guard.wait_lost()))
            waiter.start()
            clock.jump(4.9)
            assert not told
            clock.jump(0.1)
            waiter.join(10)
            assert told == [True]
            net.otherwise = DropBeforeSend()


def test_closing_a_client_under_an_open_block_ends_its_renewal(
    server: FakeLocks, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The block says that it could not release; no thread waits for ever."""
    client = server.client()
    with client.locks.with_lock("k", ttl=30) as guard:
        client.close()
        clock.jump(29)
        assert guard.wait_lost() is False
    assert isinstance(guard.release_error, VolcanoError)
    assert "lock k was not released" in caplog.text


def test_closing_a_client_lets_a_block_that_is_being_left_release(
    client: Client, server: FakeLocks, net: FlakyTransport
) -> None:
    """SDK-5: the lock need not wait out its TTL."""
    under_way = threading.Event()
    may_go_on = threading.Event()
    serve = net.handle_async_request

    async def slowly(request: httpx2.Request) -> httpx2.Response:
        if request.method == "DELETE":
            under_way.set()
            await asyncio.to_thread(may_go_on.wait, 10)
        return await serve(request)

    net.handle_async_request = slowly  # type: ignore[method-assign]
    block = client.locks.with_lock("k", ttl=30)
    guard = block.__enter__()
    leaver = threading.Thread(target=block.__exit__, args=(None, None, None))
    leaver.start()
    assert under_way.wait(10)
    closer = threading.Thread(target=client.close)
    closer.start()
    eventually(lambda: client.locks._background._loop is None)
    may_go_on.set()
    leaver.join(60)
    closer.join(10)
    assert guard.release_error is None
    assert not threads()
    with server.client() as another:
        assert not another.locks.get("k").held


def test_closing_a_client_waits_for_no_release_that_never_ends(
    client: Client, net: FlakyTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6: bounded; the block says that it could not release."""
    monkeypatch.setattr("volcano_locks.sync.background_loop.LEAVING_SECONDS_MAX", 0.05)
    block = client.locks.with_lock("k", ttl=30)
    guard = block.__enter__()
    net.otherwise = Hang()
    leaver = threading.Thread(target=block.__exit__, args=(None, None, None))
    leaver.start()
    eventually(lambda: len(net.seen) == 2)
    client.close()
    leaver.join(60)
    assert not leaver.is_alive()
    assert isinstance(guard.release_error, VolcanoError)
    assert not threads()


def test_work_that_cannot_be_begun_is_told_to_its_caller() -> None:
    """SDK-6: nobody waits for ever, and the thread goes on."""
    told: list[object] = []

    def impossible() -> Coroutine[Any, Any, None]:
        raise ZeroDivisionError("a bug")

    async def possible() -> str:
        return "done"

    async def on_end() -> None: ...

    background = Background(OURS, on_end)

    def ask() -> None:
        with pytest.raises(ZeroDivisionError, match="a bug"):
            background.run(impossible)
        told.append(background.run(possible))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(5)
    background.close()
    assert told == ["done"]


def test_a_block_that_is_forgotten_is_not_renewed_for_ever(
    client: Client, clock: ManualClock, net: FlakyTransport
) -> None:
    """An interrupt between entering and the body leaves no keeper behind."""
    client.locks.with_lock("k", ttl=30).__enter__()
    gc.collect()
    clock.advance(100)
    assert [seen.method for seen in net.seen] == ["POST"]
    assert not client.locks.get("k").held


def test_nothing_is_left_to_do_for_a_block_that_was_left(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """case 17: Python swallows a Ctrl-C that hits while something forgotten is cleared away."""
    leave = Hold.leave
    calls: list[Hold] = []

    def counted(hold: Hold) -> None:
        calls.append(hold)
        leave(hold)

    monkeypatch.setattr(Hold, "leave", counted)
    block = client.locks.with_lock("k", ttl=30)
    with block:
        pass
    while_leaving = len(calls)
    del block
    gc.collect()
    assert len(calls) == while_leaving > 0


class Interrupting(httpx2.AsyncBaseTransport):
    """Sends the main thread a Ctrl-C once it has served a POST, and then answers at once or not at all."""

    def __init__(self, inner: FakeLocks, *, answers: bool) -> None:
        self.inner = inner
        self.answers = answers
        self.methods: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.methods.append(request.method)
        answer = await self.inner.handle_async_request(request)
        if request.method == "POST":
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
            if not self.answers:
                await asyncio.sleep(60)
        return answer


@pytest.fixture
def late_interrupts() -> Iterator[None]:
    """Ctrl-C is noticed a moment late: what was about to be answered has been answered by then."""

    def handler(*_: object) -> None:
        time.sleep(0.1)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.real_time
@pytest.mark.usefixtures("late_interrupts")
@pytest.mark.parametrize("answers", [False, True])
def test_ctrl_c_during_an_acquire_gives_the_lock_back(server: FakeLocks, answers: bool) -> None:
    """SDK-2, case 13, case 17: whether the answer was there already or not."""
    transport = Interrupting(server, answers=answers)
    with server.client(transport=transport) as client:
        with pytest.raises(KeyboardInterrupt):
            client.locks.acquire("k", ttl=30)
        assert transport.methods == ["POST", "DELETE"]
        assert not client.locks.get("k").held


@pytest.mark.real_time
@pytest.mark.usefixtures("late_interrupts")
@pytest.mark.parametrize("answers", [False, True])
def test_ctrl_c_on_entering_a_block_leaves_nothing_held(server: FakeLocks, answers: bool) -> None:
    """SDK-2, case 17."""
    transport = Interrupting(server, answers=answers)
    with server.client(transport=transport) as client:
        with pytest.raises(KeyboardInterrupt), client.locks.with_lock("k", ttl=30):
            pytest.fail("entered")
        assert transport.methods == ["POST", "DELETE"]
        assert not client.locks.get("k").held


class InterruptingClock(ManualClock):
    """Once it is armed, the main thread is interrupted when it next looks at the clock."""

    armed = False

    def now(self) -> float:
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            raise KeyboardInterrupt
        return super().now()


def test_ctrl_c_while_a_block_is_being_left_releases_all_the_same(wire_url: str) -> None:
    """SDK-5, case 17: the interrupt comes after the body and before anything was sent."""
    clock = InterruptingClock()
    with Client(wire_url, "sk-x", clock=clock) as client:
        with pytest.raises(KeyboardInterrupt):
            with client.locks.with_lock("k", ttl=30):
                clock.armed = True
        assert not clock.armed
        assert not client.locks.get("k").held


@pytest.mark.real_time
def test_ctrl_c_before_the_release_has_begun_releases_all_the_same(wire_url: str, clock: ManualClock) -> None:
    """SDK-5, case 17: the client's thread is busy, so that its release is still waiting for its turn."""
    main = threading.main_thread().ident
    assert main is not None
    with Client(wire_url, "sk-x", clock=clock) as client:
        background = client.locks._background

        def busy() -> None:
            time.sleep(0.1)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.1)

        with pytest.raises(KeyboardInterrupt):
            with client.locks.with_lock("k", ttl=30):
                assert background._loop is not None
                background._loop.call_soon_threadsafe(busy)
        assert not client.locks.get("k").held


def test_ctrl_c_before_the_body_begins_releases_all_the_same(
    wire_url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-5, case 17, case 18: the lease is there, its guard is not yet."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Client(wire_url, "sk-x", clock=clock) as client:
        monkeypatch.setattr("volcano_locks.sync.block.LockGuard", interrupted)
        with pytest.raises(KeyboardInterrupt), client.locks.with_lock("k", ttl=30):
            pytest.fail("entered")
        assert not client.locks.get("k").held


def test_ctrl_c_while_the_thread_starts_leaves_none_to_wait_for(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-6, case 17: the client is closed at once, and no thread stays behind."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.locks.acquire("k", ttl=30)
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < CLEAN_UP_SECONDS_MAX
    eventually(lambda: not threads())


def test_ctrl_c_cannot_leave_a_loop_half_made(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6, case 17: an interrupt comes to the main thread, so no loop is made there."""
    made_in: list[threading.Thread] = []
    new_event_loop = asyncio.new_event_loop

    def noted() -> asyncio.AbstractEventLoop:
        made_in.append(threading.current_thread())
        return new_event_loop()

    monkeypatch.setattr(asyncio, "new_event_loop", noted)
    client.locks.acquire("k", ttl=30)
    assert made_in
    assert threading.main_thread() not in made_in


def test_where_no_loop_can_be_made_the_caller_is_told(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-6: a process out of file descriptors, say; once it has some again, the client works."""

    def refused() -> asyncio.AbstractEventLoop:
        raise OSError(24, "too many open files")

    with monkeypatch.context() as short:
        short.setattr(asyncio, "new_event_loop", refused)
        with pytest.raises(OSError, match="too many open files"):
            client.locks.acquire("k", ttl=30)
    assert client.locks.acquire("k", ttl=30).fencing_token


def test_a_forked_child_has_lost_the_lock_and_never_releases_it(wire_url: str, clock: ManualClock) -> None:
    """SDK-6, case 36: over real sockets, with the parent's renewal thread running."""
    with Client(wire_url, "sk-x", clock=clock) as client, client.locks.with_lock("k", ttl=30) as guard:

        def child() -> str:
            told = [str(guard.lost), str(guard.wait_lost())]
            try:
                guard.raise_if_lost()
            except LockOwnershipLostError as lost:
                told.append(str(lost))
            return " | ".join(told)

        told = in_a_fork(child)
        assert told == (
            "True | True | the lease of 'k' is lost: it belongs to the process that acquired it, not to its fork"
        )
        assert not guard.lost
        assert client.locks.get("k").held
        clock.advance(100)
        assert not guard.lost


def test_a_child_that_leaves_the_block_leaves_the_parents_lock_alone(wire_url: str, clock: ManualClock) -> None:
    """SDK-6, case 36: `__exit__` in the child sends nothing and reports the loss; also on its way out by error."""
    with Client(wire_url, "sk-x", clock=clock) as client:
        block = client.locks.with_lock("k", ttl=30)
        guard = block.__enter__()

        def leave() -> str:
            with pytest.raises(LockOwnershipLostError):
                block.__exit__(None, None, None)
            return f"lost, {len(threads())} threads"

        assert in_a_fork(leave) == "lost, 0 threads"
        error = ValueError("child")

        def leave_by_error() -> str:
            block.__exit__(ValueError, error, None)
            return "no other error"

        assert in_a_fork(leave_by_error) == "no other error"
        assert client.locks.get("k").held
        assert client.locks.renew("k", guard.lease).fencing_token == guard.fencing_token
        block.__exit__(None, None, None)
        assert not client.locks.get("k").held


def test_a_child_uses_the_client_over_sockets_of_its_own(wire_url: str, clock: ManualClock) -> None:
    """SDK-6, case 36: the client follows; the parent's connections go on working."""
    with Client(wire_url, "sk-x", clock=clock) as client:
        lease = client.locks.acquire("k", ttl=30)

        def child() -> str:
            with client.locks.with_lock("of-the-child", ttl=30) as guard:
                return f"{client.locks.get('k').held} {guard.lost}"

        assert in_a_fork(child) == "True False"
        client.locks.release("k", lease)


def test_a_child_cannot_share_a_transport_it_was_not_given(client: Client) -> None:
    """case 36: a transport made before the fork has the parent's sockets."""
    client.locks.get("k")
    assert "make a new client in the child" in in_a_fork(lambda: str(client.locks.get("k")))


@pytest.mark.real_time
def test_a_held_lock_does_not_keep_the_process_alive() -> None:
    """SDK-6: a block left open, a renewal that hangs, a thread that waits: the interpreter still ends at once."""
    program = """
import threading
from volcano_locks.clock import SystemClock
from volcano_locks.testing import FakeLocks, FlakyTransport, Hang, Pass
fake = FakeLocks()
net = FlakyTransport(fake, SystemClock(), [Pass()], otherwise=Hang())
client = fake.client(transport=net, clock=SystemClock())
block = client.locks.with_lock("k", ttl=5)
guard = block.__enter__()
threading.Thread(target=guard.wait_lost, daemon=True).start()
threading.Event().wait(2)
print(len(net.seen), "requests")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "2 requests\n"
    assert ended.stderr == ""


@pytest.mark.real_time
def test_a_program_whose_body_only_waits_for_the_loss_lives_until_it_comes() -> None:
    """SDK-19: the case that JavaScript found (case 45)."""
    program = """
import threading
from volcano_locks import LockOwnershipLostError
from volcano_locks.testing import FakeClient, ManualClock
clock = ManualClock()
try:
    with FakeClient(clock) as client, client.locks.with_lock("k", ttl=30) as guard:
        lapse = threading.Timer(0.3, clock.jump, [31])
        lapse.daemon = True
        lapse.start()
        guard.wait_lost()
        print("guard.lost", guard.lost)
except LockOwnershipLostError:
    print("lost")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert (ended.stdout, ended.stderr) == ("guard.lost True\nlost\n", "")


def test_the_fake_acts_the_example_of_its_own_documentation() -> None:
    """SDK-10."""
    clock = ManualClock()
    guards: list[LockGuard] = []
    with pytest.raises(LockOwnershipLostError):
        with FakeClient(clock) as client, client.locks.with_lock("nightly", ttl=30) as guard:
            guards.append(guard)
            clock.advance(300)
            assert not guard.lost
            clock.jump(31)
            assert guard.lost
    assert guards[0].lost
