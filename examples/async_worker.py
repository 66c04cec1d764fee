"""A worker under asyncio: python examples/async_worker.py

When the lease is lost, the body is cancelled where it awaits and LockOwnershipLostError is raised in its place, as
asyncio.timeout does. So the body needs no check of its own, except where it writes: see fenced_write.py.
"""

import asyncio
import sys

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError


async def send_mails(count: int) -> None:
    """Work that awaits."""
    for number in range(1, count + 1):
        await asyncio.sleep(0.05)
        print(f"mail {number} sent")


async def main() -> int:
    """0: done here; 75: somebody else is doing it; 76: the lease was lost half-way."""
    async with AsyncClient() as client:  # reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
        try:
            async with client.locks.with_lock("newsletter", ttl=30):
                await send_mails(3)
        except LockHeldError:
            print("somebody else holds newsletter", file=sys.stderr)
            return 75
        except LockOwnershipLostError:
            print("newsletter was lost: the mails not sent yet are left to the next holder", file=sys.stderr)
            return 76
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
