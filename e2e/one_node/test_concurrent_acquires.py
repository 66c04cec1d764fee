"""Sixty-four concurrent acquires of one lock over sockets: exactly one succeeds."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from testsupport.server_process import ServerProcess

from volcano_locks import AsyncClient, Client, Lease, LockHeldError

RACERS = 64
ROUNDS = 5
pytestmark = pytest.mark.real_time


def winner_of(outcomes: list[Lease | BaseException | None]) -> Lease:
    """The only lease; every other outcome must be LockHeldError."""
    (winner,) = (one for one in outcomes if isinstance(one, Lease))
    assert [type(one) for one in outcomes if one is not winner] == [LockHeldError] * (RACERS - 1)
    return winner


def test_one_of_many_threads_wins(server: ServerProcess) -> None:
    """LEASE-6, case 20."""
    barrier = threading.Barrier(RACERS)
    with Client(server.url, server.new_service_key()) as client, ThreadPoolExecutor(RACERS) as pool:

        def race(key: str) -> Lease | LockHeldError:
            barrier.wait()
            try:
                return client.locks.acquire(key, ttl=60)
            except LockHeldError as held:
                return held

        before = 0
        for number in range(ROUNDS):
            key = "same" if number % 2 else f"fresh.{number}"
            winner = winner_of(list(pool.map(race, [key] * RACERS)))
            assert winner.fencing_token > before
            assert client.locks.get(key).fencing_token == winner.fencing_token
            before = winner.fencing_token
            client.locks.release(key, winner)


async def test_one_of_many_tasks_wins(server: ServerProcess) -> None:
    """LEASE-6, case 20: each racer has its own client, and so its own connection."""
    service_key = server.new_service_key()
    clients = [AsyncClient(server.url, service_key) for _ in range(RACERS)]
    try:
        before = 0
        for number in range(ROUNDS):
            key = "same" if number % 2 else f"fresh.{number}"
            racing = (client.locks.acquire(key, ttl=60) for client in clients)
            winner = winner_of(await asyncio.gather(*racing, return_exceptions=True))
            assert winner.fencing_token > before
            before = winner.fencing_token
            await clients[0].locks.release(key, winner)
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_concurrent_retries_with_one_token_get_one_lease(server: ServerProcess) -> None:
    """LEASE-4, case 13: concurrent retries are one acquisition, and each gets the same lease."""
    headers = {
        "Authorization": f"Bearer {server.new_service_key()}",
        "X-Volcano-Lock-Token": "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10",
    }
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as client:
        requests = (client.post("/locks/a/lease", json={"ttl_seconds": 60}) for _ in range(RACERS))
        responses = await asyncio.gather(*requests)
    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["fencing_token"] for response in responses}) == 1
