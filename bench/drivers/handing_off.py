"""Keep one lock going from hand to hand, and time each hand-off: `python -m bench.drivers.handing_off CAMP`.

A line on stdin, `{"waiters": 2, "seconds": 5}`, is a round: one rival more than `waiters` wants the lock. Each that has
it holds it for a while, releases it, and wants it again as soon as another one has it; so there are always so many
waiters at a release, and nobody takes the lock from itself. A hand-off lasts from just before the release is sent until
the next rival has its grant, both by this process's clock.
"""

import asyncio
import json
import os
import random
import statistics
import sys
import time
from time import perf_counter_ns
from typing import Final

import uvloop
from bench.drivers.rivals import CAMPS, Camp, Rival
from bench.processes import cpu_seconds

HOLD_SECONDS_MIN: Final = 0.005
HOLD_SECONDS_MAX: Final = 0.105  # evenly over the 100 ms of a poll, so that no phase of a poll is favoured
WARM_UP_SECONDS: Final = 0.5
FREE_CYCLES: Final = 20
FREE_PAUSE_SECONDS: Final = 0.02  # like a hand-off, each acquire finds all processes asleep


class Round:
    """Who has the lock, and how it went on from one to the next."""

    def __init__(self) -> None:
        self.over = False
        self.hand_offs_ns: list[int] = []
        self.longest_wait_ns = 0
        self._held = False
        self._released_ns = 0
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def granted(self, asked_ns: int) -> "asyncio.Future[None]":
        """Somebody has the lock; the future is done once the next one has it."""
        now = perf_counter_ns()
        if self._held:
            raise SystemExit("two have the lock")
        self._held = True
        if self._released_ns and not self.over:
            self.hand_offs_ns.append(now - self._released_ns)
            self.longest_wait_ns = max(self.longest_wait_ns, now - asked_ns)
        before, self._next = self._next, asyncio.get_running_loop().create_future()
        before.set_result(None)
        return self._next

    def releases(self) -> None:
        """The release is sent right after this."""
        self._held = False
        self._released_ns = perf_counter_ns()

    def forget(self) -> None:
        """Count from now on."""
        self.hand_offs_ns.clear()
        self.longest_wait_ns = 0


async def compete(course: Round, rival: Rival, holds: random.Random) -> None:
    await asyncio.sleep(holds.uniform(0, HOLD_SECONDS_MAX))  # so that those who poll do not all do it at once
    while not course.over:
        asked_ns = perf_counter_ns()
        await rival.acquire("handed-on")
        next_grant = course.granted(asked_ns)
        if not course.over:
            await asyncio.sleep(holds.uniform(HOLD_SECONDS_MIN, HOLD_SECONDS_MAX))
        course.releases()
        await rival.release("handed-on")
        if not course.over:
            await next_grant


async def measured(camp: Camp, rivals: list[Rival], seconds: float, server: int) -> dict[str, object]:
    free_ms = await free_lock_ms(rivals[0])
    course, holds = Round(), random.Random(1)  # the same holds for everybody
    async with asyncio.TaskGroup() as tasks:
        for rival in rivals:
            tasks.create_task(compete(course, rival, holds))
        await asyncio.sleep(WARM_UP_SECONDS)
        course.forget()
        requests, server_cpu, own_cpu, began = await camp.requests(), cpu_seconds(server), time.process_time(), now()
        await asyncio.sleep(seconds)
        own_cpu, server_cpu, lasted = time.process_time() - own_cpu, cpu_seconds(server) - server_cpu, now() - began
        course.over = True
        requests = await camp.requests() - requests
    return {
        "hand_offs_ms": [one / 1e6 for one in course.hand_offs_ns],
        "longest_wait_seconds": course.longest_wait_ns / 1e9,
        "free_lock_ms": free_ms,
        "requests": requests,
        "server_cpu_seconds": server_cpu,
        "clients_cpu_seconds": own_cpu,
        "seconds": lasted,
    }


async def free_lock_ms(rival: Rival) -> float:
    """The median time of an acquire of a lock that nobody else wants."""
    taken = []
    for _ in range(FREE_CYCLES):
        await asyncio.sleep(FREE_PAUSE_SECONDS)
        began = perf_counter_ns()
        await rival.acquire("free")
        taken.append((perf_counter_ns() - began) / 1e6)
        await rival.release("free")
    return statistics.median(taken)


def now() -> float:
    return perf_counter_ns() / 1e9


async def main() -> None:
    camp, server = CAMPS[sys.argv[1]](), int(os.environ["BENCH_SERVER_PID"])
    rivals: list[Rival] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        while len(rivals) <= asked["waiters"]:
            rivals.append(await camp.rival())
        result = await measured(camp, rivals[: asked["waiters"] + 1], asked["seconds"], server)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
