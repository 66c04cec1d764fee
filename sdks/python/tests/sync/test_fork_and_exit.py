"""A threaded client across `fork`, and at the end of the process (SDK-6, SDK-19)."""

import subprocess
import sys

import pytest

from volcano_locks import Client, LockOwnershipLostError
from volcano_locks.testing import ManualClock

from ..helpers import client_threads, in_a_fork


def test_a_forked_child_has_lost_the_lock_and_never_releases_it(server_url: str, clock: ManualClock) -> None:
    """SDK-6, case 36: over real sockets, with the parent's renewal thread running."""
    with Client(server_url, "sk-x", clock=clock) as client, client.locks.with_lock("k", ttl=30) as guard:

        def child() -> str:
            results = [str(guard.lost), str(guard.wait_lost())]
            try:
                guard.raise_if_lost()
            except LockOwnershipLostError as lost:
                results.append(str(lost))
            return " | ".join(results)

        results = in_a_fork(child)
        assert results == (
            "True | True | the lease of 'k' is lost: it belongs to the process that acquired it, not to its fork"
        )
        assert not guard.lost
        assert client.locks.get("k").held
        clock.advance(100)
        assert not guard.lost


def test_leaving_the_block_in_a_child_does_not_release(server_url: str, clock: ManualClock) -> None:
    """SDK-6, case 36: `__exit__` in the child sends nothing and reports the loss, unless the body raised."""
    with Client(server_url, "sk-x", clock=clock) as client:
        block = client.locks.with_lock("k", ttl=30)
        guard = block.__enter__()

        def leave() -> str:
            with pytest.raises(LockOwnershipLostError):
                block.__exit__(None, None, None)
            return f"lost, {len(client_threads())} threads"

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


def test_a_child_uses_the_client_over_its_own_sockets(server_url: str, clock: ManualClock) -> None:
    """SDK-6, case 36: the parent's connections keep working."""
    with Client(server_url, "sk-x", clock=clock) as client:
        lease = client.locks.acquire("k", ttl=30)

        def child() -> str:
            with client.locks.with_lock("of-the-child", ttl=30) as guard:
                return f"{client.locks.get('k').held} {guard.lost}"

        assert in_a_fork(child) == "True False"
        client.locks.release("k", lease)


def test_a_child_cannot_share_a_transport(client: Client) -> None:
    """case 36: a transport created before the fork has the parent's sockets."""
    client.locks.get("k")
    assert "create one in the child" in in_a_fork(lambda: str(client.locks.get("k")))


@pytest.mark.real_time
def test_a_held_lock_does_not_keep_the_process_alive() -> None:
    """SDK-6: an open block, a hanging renewal and a waiting thread do not delay the interpreter's exit."""
    program = """
import threading
from volcano_locks.clock import SystemClock
from volcano_locks.testing import FakeLocks, FaultyTransport, Hang, Pass
fake = FakeLocks()
network = FaultyTransport(fake, SystemClock(), [Pass()], otherwise=Hang())
client = fake.client(transport=network, clock=SystemClock())
block = client.locks.with_lock("k", ttl=5)
guard = block.__enter__()
threading.Thread(target=guard.wait_lost, daemon=True).start()
threading.Event().wait(2)
print(len(network.seen), "requests")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "2 requests\n"
    assert ended.stderr == ""


@pytest.mark.real_time
def test_a_program_that_only_waits_for_the_loss_lives_until_it_comes() -> None:
    """SDK-19, case 45."""
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
    assert ended.stdout == "guard.lost True\nlost\n"
    assert ended.stderr == ""
