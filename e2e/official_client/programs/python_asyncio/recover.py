"""Recover an acquire whose outcome is unknown, with the same ids: python recover.py KEY"""

import asyncio
import sys
import uuid

from volcano_locks import AsyncClient, TransportError, UnavailableError


async def main(key: str) -> None:
    token, request_id = str(uuid.uuid4()), str(uuid.uuid4())
    async with AsyncClient(timeout_seconds=2) as client:
        try:
            lease = await client.locks.acquire(key, ttl=30, token=token, request_id=request_id)
        except (TransportError, UnavailableError):
            print("uncertain")
            lease = await client.locks.acquire(key, ttl=30, token=token, request_id=request_id)
        print("recovered")
        await client.locks.release(key, lease)
        print("released")


asyncio.run(main(sys.argv[1]))
