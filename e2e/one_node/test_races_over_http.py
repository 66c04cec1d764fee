"""Sixty-four at once for one lock, through sockets, on a server of its own: one wins."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from volcano_locks import AsyncClient, Client, Lease, LockHeldError

from .conftest import ServerProcess

RACERS = 64
ROUNDS = 5
pytestmark = pytest.mark.real_time


def judged(outcomes: list[Lease | BaseException | None]) -> Lease:
    """The one lease; everybody else was told that the lock is held."""
    (winner,) = (one for one in outcomes if isinstance(one, Lease))
    assert [type(one) for one in outcomes if one is not winner] == [LockHeldError] * (RACERS - 1)
    return winner


def test_one_of_many_threads_wins(server: ServerProcess) -> None:
    """LEASE-6, case 20."""
    together = threading.Barrier(RACERS)
    with Client(server.url, server.new_service_key()) as client, ThreadPoolExecutor(RACERS) as pool:

        def race(key: str) -> Lease | LockHeldError:
            together.wait()
            try:
                return client.locks.acquire(key, ttl=60)
            except LockHeldError as held:
                return held

        before = 0
        for number in range(ROUNDS):
            key = "same" if number % 2 else f"fresh.{number}"
            winner = judged(list(pool.map(race, [key] * RACERS)))
            assert winner.fencing_token > before
            assert client.locks.get(key).fencing_token == winner.fencing_token
            before = winner.fencing_token
            client.locks.release(key, winner)


async def test_one_of_many_tasks_wins(server: ServerProcess) -> None:
    """LEASE-6, case 20: each racer with a client, and so a connection, of its own."""
    service_key = server.new_service_key()
    clients = [AsyncClient(server.url, service_key) for _ in range(RACERS)]
    try:
        before = 0
        for number in range(ROUNDS):
            key = "same" if number % 2 else f"fresh.{number}"
            racing = (client.locks.acquire(key, ttl=60) for client in clients)
            winner = judged(await asyncio.gather(*racing, return_exceptions=True))
            assert winner.fencing_token > before
            before = winner.fencing_token
            await clients[0].locks.release(key, winner)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_many_with_one_owner_token_are_one_holder(server: ServerProcess) -> None:
    """LEASE-4, case 13: a crowd of retries is one acquisition, and each of them hears of the same lease."""
    headers = {
        "Authorization": f"Bearer {server.new_service_key()}",
        "X-Volcano-Lock-Token": "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10",
    }
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        asking = (client.post("/locks/a/lease", json={"ttl_seconds": 60}) for _ in range(RACERS))
        answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["fencing_token"] for answer in answers}) == 1
