"""A FastAPI application in which one worker leads."""

import asyncio
import os

from fastapi import FastAPI, Request

import volcano_locks.contrib.fastapi as contrib

contrib.RETRY_SECONDS = 0.5
failures = iter([True] if "FAILS" in os.environ else [])


def note(what: str) -> None:
    with open(os.environ["JOURNAL"], "a") as journal:
        journal.write(f"{what} plan {os.getpid()}\n")


async def plan(guard) -> None:
    note("start")
    if next(failures, False):
        raise RuntimeError("the first term fails")
    try:
        await asyncio.sleep(60)
    finally:
        note("end")


app = FastAPI(lifespan=contrib.leading("leader", plan, ttl=5))


@app.get("/leads")
async def leads(request: Request) -> bool:
    return bool(request.state.leader.leads)
