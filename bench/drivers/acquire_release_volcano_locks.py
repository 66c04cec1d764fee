"""Driver: acquire and release with the Python client. The argument is `sync`, `async` or `block` (`with_lock`)."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from time import perf_counter_ns

from volcano_locks import AsyncClient, Client

URL, SERVICE_KEY, KEY = os.environ["BENCH_URL"], os.environ["BENCH_SERVICE_KEY"], os.environ["BENCH_KEY"]


def sync() -> Callable[[], None]:
    locks = Client(URL, SERVICE_KEY).locks

    def cycle() -> None:
        locks.release(KEY, locks.acquire(KEY, ttl=30))

    return cycle


def block() -> Callable[[], None]:
    locks = Client(URL, SERVICE_KEY).locks

    def cycle() -> None:
        with locks.with_lock(KEY, ttl=30):
            pass

    return cycle


def run_sync(cycle: Callable[[], None]) -> None:
    for line in sys.stdin:
        durations_ns = []
        for _ in range(int(line)):
            began = perf_counter_ns()
            cycle()
            durations_ns.append(perf_counter_ns() - began)
        print(json.dumps(durations_ns), flush=True)


async def run_async() -> None:
    async with AsyncClient(URL, SERVICE_KEY) as client:
        locks = client.locks
        while line := await asyncio.to_thread(sys.stdin.readline):
            durations_ns = []
            for _ in range(int(line)):
                began = perf_counter_ns()
                await locks.release(KEY, await locks.acquire(KEY, ttl=30))
                durations_ns.append(perf_counter_ns() - began)
            print(json.dumps(durations_ns), flush=True)


if sys.argv[1] == "async":
    asyncio.run(run_async())
else:
    run_sync({"sync": sync, "block": block}[sys.argv[1]]())
