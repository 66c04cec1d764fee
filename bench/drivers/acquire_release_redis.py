"""Driver: acquire and release with the `Lock` of redis-py. The argument is `sync` or `async`."""

import asyncio
import json
import os
import sys
from time import perf_counter_ns

import redis
import redis.asyncio

PORT, KEY = int(os.environ["BENCH_REDIS_PORT"]), os.environ["BENCH_KEY"]


def run_sync() -> None:
    client = redis.Redis(port=PORT)
    for line in sys.stdin:
        durations_ns = []
        for _ in range(int(line)):
            began = perf_counter_ns()
            lock = client.lock(KEY, timeout=30)
            if not lock.acquire(blocking=False):
                raise SystemExit("the lock is held")
            lock.release()
            durations_ns.append(perf_counter_ns() - began)
        print(json.dumps(durations_ns), flush=True)


async def run_async() -> None:
    async with redis.asyncio.Redis(port=PORT) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            durations_ns = []
            for _ in range(int(line)):
                began = perf_counter_ns()
                lock = client.lock(KEY, timeout=30)
                if not await lock.acquire(blocking=False):
                    raise SystemExit("the lock is held")
                await lock.release()
                durations_ns.append(perf_counter_ns() - began)
            print(json.dumps(durations_ns), flush=True)


if sys.argv[1] == "async":
    asyncio.run(run_async())
else:
    run_sync()
