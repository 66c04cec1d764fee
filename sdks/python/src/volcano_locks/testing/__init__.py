"""The test kit (SDK-10): `client.locks` without a server, under a clock the test moves.

    clock = ManualClock()
    with FakeClient(clock) as client, client.locks.with_lock("nightly", ttl=30) as guard:
        clock.advance(300)              # ten renewals later …
        assert not guard.lost
        clock.jump(31)                  # … the machine was suspended
        assert guard.lost

`FakeLocks` is the server part alone, shared by as many clients as a test wants; `FlakyTransport` breaks the
network between a client and it, or a real server. Whoever waits for a lock waits until somebody moves the clock or
frees it, so a test lets it wait in a thread or task of its own, and asks `FakeLocks.waiters` whether it does.

Not promised: the fake has no quota and no credentials.
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
    FlakyTransport,
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
    "FlakyTransport",
    "Hang",
    "ManualClock",
    "Pass",
    "Reset",
    "Takes",
]
