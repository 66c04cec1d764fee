"""A second acquire of a held lock: python contention.py KEY"""

import asyncio
import sys

from volcano_locks import AsyncClient, LockHeldError


async def main(key: str) -> None:
    async with AsyncClient() as client:
        lease = await client.locks.acquire(key, ttl=30)
        try:
            await client.locks.acquire(key, ttl=30)
        except LockHeldError:
            print("held elsewhere")
        finally:
            await client.locks.release(key, lease)


asyncio.run(main(sys.argv[1]))
