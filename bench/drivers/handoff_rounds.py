"""Pass one lock between clients and measure each hand-off: `python -m bench.drivers.handoff_rounds LOCK_CLIENTS`.

A line on stdin, `{"waiters": 2, "seconds": 5}`, starts a round with one client more than `waiters`. Each client
acquires the lock, holds it for a while, releases it, and acquires it again once another client holds it. So each
release finds the same number of waiters, and no client hands the lock to itself. A hand-off lasts from just before the
release is sent until the next client has its grant, by the clock of this process.
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
from bench.drivers.lock_clients import LOCK_CLIENTS, LockClient, LockClients
from bench.processes import cpu_seconds

HOLD_SECONDS_MIN: Final = 0.005
HOLD_SECONDS_MAX: Final = 0.105  # spread over the 100 ms of a poll, so that no phase of it is favored
WARM_UP_SECONDS: Final = 0.5
FREE_CYCLES: Final = 20
FREE_PAUSE_SECONDS: Final = 0.02  # as in a hand-off, each acquire finds all processes idle


class HandoffRecorder:
    """Records the hand-offs of one round, and checks that at most one client holds the lock."""

    def __init__(self) -> None:
        self.over = False
        self.hand_offs_ns: list[int] = []
        self.longest_wait_ns = 0
        self._held = False
        self._released_ns = 0
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def granted(self, requested_ns: int) -> "asyncio.Future[None]":
        """A client got the lock. The future is done when the next client gets it."""
        now = perf_counter_ns()
        if self._held:
            raise SystemExit("two clients hold the lock")
        self._held = True
        if self._released_ns and not self.over:
            self.hand_offs_ns.append(now - self._released_ns)
            self.longest_wait_ns = max(self.longest_wait_ns, now - requested_ns)
        previous, self._next = self._next, asyncio.get_running_loop().create_future()
        previous.set_result(None)
        return self._next

    def released(self) -> None:
        """A client is about to send its release."""
        self._held = False
        self._released_ns = perf_counter_ns()

    def reset(self) -> None:
        """Discard what was recorded so far."""
        self.hand_offs_ns.clear()
        self.longest_wait_ns = 0


async def compete(recorder: HandoffRecorder, client: LockClient, holds: random.Random) -> None:
    await asyncio.sleep(holds.uniform(0, HOLD_SECONDS_MAX))  # so that polling clients do not all poll at once
    while not recorder.over:
        requested_ns = perf_counter_ns()
        await client.acquire("contended")
        next_grant = recorder.granted(requested_ns)
        if not recorder.over:
            await asyncio.sleep(holds.uniform(HOLD_SECONDS_MIN, HOLD_SECONDS_MAX))
        recorder.released()
        await client.release("contended")
        if not recorder.over:
            await next_grant


async def run_round(
    service: LockClients, clients: list[LockClient], seconds: float, server_pid: int
) -> dict[str, object]:
    free_ms = await free_lock_ms(clients[0])
    recorder, holds = HandoffRecorder(), random.Random(1)  # the same holds for all services
    async with asyncio.TaskGroup() as tasks:
        for client in clients:
            tasks.create_task(compete(recorder, client, holds))
        await asyncio.sleep(WARM_UP_SECONDS)
        recorder.reset()
        requests, server_cpu = await service.requests(), cpu_seconds(server_pid)
        own_cpu, began = time.process_time(), now()
        await asyncio.sleep(seconds)
        own_cpu, server_cpu = time.process_time() - own_cpu, cpu_seconds(server_pid) - server_cpu
        lasted = now() - began
        recorder.over = True
        requests = await service.requests() - requests
    return {
        "hand_offs_ms": [nanoseconds / 1e6 for nanoseconds in recorder.hand_offs_ns],
        "longest_wait_seconds": recorder.longest_wait_ns / 1e9,
        "free_lock_ms": free_ms,
        "requests": requests,
        "server_cpu_seconds": server_cpu,
        "clients_cpu_seconds": own_cpu,
        "seconds": lasted,
    }


async def free_lock_ms(client: LockClient) -> float:
    """The median time to acquire a lock that no other client uses."""
    durations_ms = []
    for _ in range(FREE_CYCLES):
        await asyncio.sleep(FREE_PAUSE_SECONDS)
        began = perf_counter_ns()
        await client.acquire("free")
        durations_ms.append((perf_counter_ns() - began) / 1e6)
        await client.release("free")
    return statistics.median(durations_ms)


def now() -> float:
    return perf_counter_ns() / 1e9


async def main() -> None:
    service, server_pid = LOCK_CLIENTS[sys.argv[1]](), int(os.environ["BENCH_SERVER_PID"])
    clients: list[LockClient] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        while len(clients) <= command["waiters"]:
            clients.append(await service.connect())
        result = await run_round(service, clients[: command["waiters"] + 1], command["seconds"], server_pid)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
