"""Run a block under the lock: python block.py KEY"""

import asyncio
import sys

from volcano_locks import AsyncClient


async def main(key: str) -> None:
    async with AsyncClient() as client:
        async with client.locks.with_lock(key, ttl=30) as guard:
            print("fencing token", guard.lease.fencing_token)
            print("lost:", str(guard.lost).lower())
        print("held:", str((await client.locks.get(key)).held).lower())


asyncio.run(main(sys.argv[1]))
