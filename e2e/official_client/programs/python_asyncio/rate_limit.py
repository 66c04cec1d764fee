"""Send requests until the quota is spent: python rate_limit.py KEY"""

import asyncio
import sys

from volcano_locks import AsyncClient, RateLimitedError


async def main(key: str) -> None:
    async with AsyncClient() as client:
        try:
            for _ in range(50):
                await client.locks.get(key)
        except RateLimitedError as error:
            print(f"retry after {error.retry_after} seconds")


asyncio.run(main(sys.argv[1]))
