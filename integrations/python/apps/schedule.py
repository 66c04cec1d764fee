"""A process with one job that fires every second: `schedule.py SCHEDULER TRIGGER`."""

import asyncio
import logging
import os
import sys
import time

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

from volcano_locks.contrib.apscheduler import ExclusiveAsyncIOExecutor, ExclusiveThreadPoolExecutor

kind, trigger = sys.argv[1:]
logging.basicConfig(level=logging.INFO)


def note(what: str, job: str) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{what} {job} {os.getpid()}\n")


def fire(guard=None) -> None:
    note("fire", guard.key)


async def fire_async(guard=None) -> None:
    fire(guard)


times = {"second": "*"} if trigger == "cron" else {"seconds": 1}
options = {"id": "tick", "misfire_grace_time": 30, **times}
if kind == "background":
    scheduler = BackgroundScheduler(executors={"default": ExclusiveThreadPoolExecutor(10)})
    scheduler.add_job(fire, trigger, **options)
    scheduler.start()
    note("ready", kind)
    time.sleep(60)
else:

    async def main() -> None:
        scheduler = AsyncIOScheduler(executors={"default": ExclusiveAsyncIOExecutor()})
        scheduler.add_job(fire_async if kind == "asyncio" else fire, trigger, **options)
        scheduler.start()
        note("ready", kind)
        await asyncio.sleep(60)

    asyncio.run(main())
