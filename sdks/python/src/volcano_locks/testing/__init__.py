"""The test kit (SDK-10): `client.locks` without a server, under a clock that the test moves.

    clock = ManualClock()
    with FakeClient(clock) as client, client.locks.with_lock("nightly", ttl=30) as guard:
        clock.advance(300)              # ten renewals later …
        assert not guard.lost
        clock.jump(31)                  # … the machine was suspended
        assert guard.lost

`FakeLocks` is the server alone, shared by any number of clients. `FaultyTransport` injects faults between a client
and this or a real server. A call that waits for a lock returns only after the test moves the clock or frees the lock.
So run it in a thread or task of its own, and read `FakeLocks.waiters` to see that it waits.

Limit: the fake has no quota and checks no credentials.
"""

from volcano_locks.testing.clock import ManualClock
from volcano_locks.testing.fake_server import FakeAsyncClient, FakeClient, FakeLocks
from volcano_locks.testing.faulty_transport import (
    Answers,
    Delay,
    DropAfterSend,
    DropBeforeSend,
    Duplicate,
    Fault,
    FaultyTransport,
    Hang,
    Pass,
    Reset,
    Takes,
)

__all__ = [
    "Answers",
    "Delay",
    "DropAfterSend",
    "DropBeforeSend",
    "Duplicate",
    "FakeAsyncClient",
    "FakeClient",
    "FakeLocks",
    "Fault",
    "FaultyTransport",
    "Hang",
    "ManualClock",
    "Pass",
    "Reset",
    "Takes",
]
