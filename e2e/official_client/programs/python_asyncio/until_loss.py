"""Hold a lock until it is lost: python until_loss.py KEY"""

import asyncio
import sys

from volcano_locks import AsyncClient, LockOwnershipLostError


async def main(key: str) -> None:
    async with AsyncClient() as client:
        try:
            async with client.locks.with_lock(key, ttl=5) as guard:
                print("holding", flush=True)
                await guard.wait_lost()
        except LockOwnershipLostError:
            print("lost")


asyncio.run(main(sys.argv[1]))
