"""A worker under asyncio: python examples/async_worker.py

If the lease is lost, the client cancels the body at its await and raises LockOwnershipLostError, as asyncio.timeout
raises TimeoutError. So the body needs no check of its own, except for writes: see fenced_write.py.
"""

import asyncio
import sys

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError


async def send_mails(count: int) -> None:
    """The work, which awaits."""
    for number in range(1, count + 1):
        await asyncio.sleep(0.05)
        print(f"mail {number} sent")


async def main() -> int:
    """Returns 0 if the work is done, 75 if another worker holds the lock, 76 if the lease was lost."""
    async with AsyncClient() as client:  # reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
        try:
            async with client.locks.with_lock("newsletter", ttl=30):
                await send_mails(3)
        except LockHeldError:
            print("another worker holds newsletter", file=sys.stderr)
            return 75
        except LockOwnershipLostError:
            print("newsletter was lost: the next holder sends the remaining mails", file=sys.stderr)
            return 76
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
