"""Acquire and release by redis-py's own `Lock`: `sync` or `async`."""

import asyncio
import json
import os
import sys
from time import perf_counter_ns

import redis
import redis.asyncio

PORT, KEY = int(os.environ["BENCH_REDIS_PORT"]), os.environ["BENCH_KEY"]


def threaded() -> None:
    client = redis.Redis(port=PORT)
    for line in sys.stdin:
        taken = []
        for _ in range(int(line)):
            began = perf_counter_ns()
            lock = client.lock(KEY, timeout=30)
            if not lock.acquire(blocking=False):
                raise SystemExit("the lock is held")
            lock.release()
            taken.append(perf_counter_ns() - began)
        print(json.dumps(taken), flush=True)


async def asynchronous() -> None:
    async with redis.asyncio.Redis(port=PORT) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            taken = []
            for _ in range(int(line)):
                began = perf_counter_ns()
                lock = client.lock(KEY, timeout=30)
                if not await lock.acquire(blocking=False):
                    raise SystemExit("the lock is held")
                await lock.release()
                taken.append(perf_counter_ns() - began)
            print(json.dumps(taken), flush=True)


if sys.argv[1] == "async":
    asyncio.run(asynchronous())
else:
    threaded()
