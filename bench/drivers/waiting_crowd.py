"""Many who wait for held locks, and some whose holders die: `python -m bench.drivers.waiting_crowd`.

Lines on stdin: `{"wait": {"locks": 200, "waiters": 2000}}` takes the locks and begins to wait for them, each over a
connection of its own and in slices of WAIT_SLICE_SECONDS, as the clients do; the slices' ends are spread evenly.
`{"told": true}` tells what came instead of `lock_held`. `{"take_over": {"locks": 100}}` is in `taken_over_ms`.
"""

import asyncio
import json
import os
import sys
from time import perf_counter_ns
from typing import Any, Final
from uuid import uuid4

import uvloop
from bench.drivers.bare_http import Connection

WAIT_SLICE_SECONDS: Final = 50.0
HOLDER_TTL_SECONDS: Final = 3600
TAKEN_OVER_TTL_SECONDS: Final = 5
OPENED_AT_ONCE: Final = 50
PORT: Final = int(os.environ["BENCH_PORT"])
BEARER: Final = f"Bearer {os.environ['BENCH_SERVICE_KEY']}"


async def acquire(connection: Connection, key: str, token: str, ttl_seconds: int, wait_seconds: float) -> int:
    """The answer's status."""
    status, _ = await connection.ask(
        "POST",
        f"/locks/{key}/lease",
        b'{"ttl_seconds":%d,"wait_seconds":%.3f}' % (ttl_seconds, wait_seconds),
        Authorization=BEARER,
        X_Volcano_Lock_Token=token,
        X_Volcano_Request_Id=str(uuid4()),
        X_Volcano_Lock_Holder="bench/1",
    )
    return status


class Crowd:
    """Those who wait. `statuses` are the answers that end a wait by anything but its time."""

    def __init__(self) -> None:
        self.statuses: Final[list[int]] = []
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    async def begin(self, locks: int, waiters: int) -> dict[str, object]:
        """Return once all have asked."""
        holder = await Connection.open(PORT)
        for number in range(locks):
            if (status := await acquire(holder, f"crowd-{number}", str(uuid4()), HOLDER_TTL_SECONDS, 0)) != 201:
                raise SystemExit(f"an acquire was answered {status}")
        for first in range(0, waiters, OPENED_AT_ONCE):
            numbers = range(first, min(waiters, first + OPENED_AT_ONCE))
            connections = await asyncio.gather(*(Connection.open(PORT) for _ in numbers))
            for number, connection in zip(numbers, connections, strict=True):
                first_slice = WAIT_SLICE_SECONDS * (number + 1) / waiters
                waiting = self._wait(connection, f"crowd-{number % locks}", first_slice)
                self._tasks.add(asyncio.create_task(waiting))
            await asyncio.sleep(0)
        return {"waiting": len(self._tasks)}

    async def _wait(self, connection: Connection, key: str, seconds: float) -> None:
        token = str(uuid4())
        while (status := await acquire(connection, key, token, 60, seconds)) == 409:
            seconds = WAIT_SLICE_SECONDS
        self.statuses.append(status)

    async def told(self) -> list[object]:
        broken = [repr(task.exception()) for task in self._tasks if task.done() and task.exception() is not None]
        return [*self.statuses, *broken]


async def taken_over_ms(locks: int) -> list[float]:
    """How long after the end of the TTL each waiter had its grant; the grace is still in it.

    The holder's connection is broken off, as that of a killed process is, and nothing is heard of it any more. The
    lease is counted from before its acquire was sent, so each number is rather too large, by up to an acquire's time.
    """
    crowd = f"dying-{uuid4()}"
    waiters = await asyncio.gather(*(Connection.open(PORT) for _ in range(locks)))
    holder = await Connection.open(PORT)
    sent_ns = []
    for number in range(locks):
        sent_ns.append(perf_counter_ns())
        if (status := await acquire(holder, f"{crowd}-{number}", str(uuid4()), TAKEN_OVER_TTL_SECONDS, 0)) != 201:
            raise SystemExit(f"an acquire was answered {status}")
    holder.abort()

    async def wait(number: int) -> float:
        status = await acquire(waiters[number], f"{crowd}-{number}", str(uuid4()), TAKEN_OVER_TTL_SECONDS, 30)
        granted_ns = perf_counter_ns()
        if status != 201:
            raise SystemExit(f"a waiter was answered {status}")
        return (granted_ns - sent_ns[number]) / 1e6 - TAKEN_OVER_TTL_SECONDS * 1_000

    late = await asyncio.gather(*map(wait, range(locks)))
    for waiter in waiters:
        waiter.abort()
    return late


async def main() -> None:
    crowd = Crowd()
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        answer: Any
        if "wait" in asked:
            answer = await crowd.begin(**asked["wait"])
        elif "take_over" in asked:
            answer = await taken_over_ms(**asked["take_over"])
        else:
            answer = await crowd.told()
        print(json.dumps(answer), flush=True)
    os._exit(0)  # thousands of connections: the system closes them sooner than they could be waited for


if __name__ == "__main__":
    uvloop.run(main())
