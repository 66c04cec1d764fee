"""Many waiters for held locks, and waiters whose holders die: `python -m bench.drivers.waiters`.

Each line on stdin is a command:

- `{"wait": {"locks": 200, "waiters": 2000}}` acquires the locks and starts the waiters. Each has its own connection and
  waits in slices of WAIT_SLICE_SECONDS, as the clients do; the ends of the slices are evenly spread.
- `{"ended": true}` returns the statuses and errors that ended a wait.
- `{"take_over": {"locks": 100}}` runs `takeover_delays_ms`.
"""

import asyncio
import json
import os
import sys
from time import perf_counter_ns
from typing import Any, Final
from uuid import uuid4

import uvloop
from bench.drivers.http_connection import Connection

WAIT_SLICE_SECONDS: Final = 50.0
HOLDER_TTL_SECONDS: Final = 3600
DYING_TTL_SECONDS: Final = 5
OPENED_AT_ONCE: Final = 50
PORT: Final = int(os.environ["BENCH_PORT"])
BEARER: Final = f"Bearer {os.environ['BENCH_SERVICE_KEY']}"


async def acquire(connection: Connection, key: str, token: str, ttl_seconds: int, wait_seconds: float) -> int:
    """The status of the response."""
    status, _ = await connection.request(
        "POST",
        f"/locks/{key}/lease",
        b'{"ttl_seconds":%d,"wait_seconds":%.3f}' % (ttl_seconds, wait_seconds),
        Authorization=BEARER,
        X_Volcano_Lock_Token=token,
        X_Volcano_Request_Id=str(uuid4()),
        X_Volcano_Lock_Holder="bench/1",
    )
    return status


class Waiters:
    """The running waiters. A response other than `lock_held` ends a wait; its status is added to `statuses`."""

    def __init__(self) -> None:
        self.statuses: Final[list[int]] = []
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    async def start(self, locks: int, waiters: int) -> dict[str, object]:
        """Start all waiters."""
        holder = await Connection.open(PORT)
        for number in range(locks):
            if (status := await acquire(holder, f"held-{number}", str(uuid4()), HOLDER_TTL_SECONDS, 0)) != 201:
                raise SystemExit(f"an acquire returned {status}")
        for first in range(0, waiters, OPENED_AT_ONCE):
            numbers = range(first, min(waiters, first + OPENED_AT_ONCE))
            connections = await asyncio.gather(*(Connection.open(PORT) for _ in numbers))
            for number, connection in zip(numbers, connections, strict=True):
                first_slice = WAIT_SLICE_SECONDS * (number + 1) / waiters
                wait = self._wait(connection, f"held-{number % locks}", first_slice)
                self._tasks.add(asyncio.create_task(wait))
            await asyncio.sleep(0)
        return {"waiting": len(self._tasks)}

    async def _wait(self, connection: Connection, key: str, seconds: float) -> None:
        token = str(uuid4())
        while (status := await acquire(connection, key, token, 60, seconds)) == 409:
            seconds = WAIT_SLICE_SECONDS
        self.statuses.append(status)

    async def ended(self) -> list[object]:
        broken = [repr(task.exception()) for task in self._tasks if task.done() and task.exception() is not None]
        return [*self.statuses, *broken]


async def takeover_delays_ms(locks: int) -> list[float]:
    """The time from the end of the TTL to each waiter's grant, including the grace.

    The holder's connection is aborted, like that of a killed process. The TTL is counted from before the holder's
    acquire was sent, so each number is too large by up to the duration of an acquire.
    """
    prefix = f"dying-{uuid4()}"
    waiters = await asyncio.gather(*(Connection.open(PORT) for _ in range(locks)))
    holder = await Connection.open(PORT)
    sent_ns = []
    for number in range(locks):
        sent_ns.append(perf_counter_ns())
        if (status := await acquire(holder, f"{prefix}-{number}", str(uuid4()), DYING_TTL_SECONDS, 0)) != 201:
            raise SystemExit(f"an acquire returned {status}")
    holder.abort()

    async def wait(number: int) -> float:
        status = await acquire(waiters[number], f"{prefix}-{number}", str(uuid4()), DYING_TTL_SECONDS, 30)
        granted_ns = perf_counter_ns()
        if status != 201:
            raise SystemExit(f"a waiter got {status}")
        return (granted_ns - sent_ns[number]) / 1e6 - DYING_TTL_SECONDS * 1_000

    delays = await asyncio.gather(*map(wait, range(locks)))
    for waiter in waiters:
        waiter.abort()
    return delays


async def main() -> None:
    waiters = Waiters()
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        result: Any
        if "wait" in command:
            result = await waiters.start(**command["wait"])
        elif "take_over" in command:
            result = await takeover_delays_ms(**command["take_over"])
        else:
            result = await waiters.ended()
        print(json.dumps(result), flush=True)
    os._exit(0)  # the system closes thousands of connections faster than this program could


if __name__ == "__main__":
    uvloop.run(main())
