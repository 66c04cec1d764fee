"""Read a lock and force its release; the old lease is then lost: python get_and_force.py KEY"""

import asyncio
import sys

from volcano_locks import AsyncClient, LockOwnershipLostError


async def main(key: str) -> None:
    async with AsyncClient() as client:
        lease = await client.locks.acquire(key, ttl=30)
        print("held:", str((await client.locks.get(key)).held).lower())
        await client.locks.force_release(key)
        print("held:", str((await client.locks.get(key)).held).lower())
        try:
            await client.locks.renew(key, lease, ttl=30)
            print("lost: false")
        except LockOwnershipLostError:
            print("lost: true")


asyncio.run(main(sys.argv[1]))
