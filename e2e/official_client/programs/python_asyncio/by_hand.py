"""Acquire, renew and release by hand: python by_hand.py KEY"""

import asyncio
import sys

from volcano_locks import AsyncClient


async def main(key: str) -> None:
    async with AsyncClient() as client:
        lease = await client.locks.acquire(key, ttl=30)
        try:
            renewed = await client.locks.renew(key, lease, ttl=60)
            print("same token:", str(renewed.fencing_token == lease.fencing_token).lower())
        finally:
            await client.locks.release(key, lease)
        print("released")


asyncio.run(main(sys.argv[1]))
