"""A nightly job that several machines start and one may do: python examples/rollup.py

The lease is renewed in the background while the block runs. Between its steps the job asks whether it still holds the
lock, because a lease can be lost (a long network outage, a suspended laptop) while the code runs on.
"""

import sys

from volcano_locks import Client, LockHeldError, LockOwnershipLostError

STEPS = ("read the day's orders", "add them up", "write the report")


def main() -> int:
    """0: done here; 75: somebody else is doing it, which is fine; 76: the lease was lost half-way."""
    with Client() as client:  # reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
        try:
            with client.locks.with_lock("daily-rollup", ttl=30) as guard:
                for step in STEPS:
                    guard.raise_if_lost()
                    print(f"{step} (fencing token {guard.fencing_token})")
        except LockHeldError:
            print("somebody else holds daily-rollup", file=sys.stderr)
            return 75
        except LockOwnershipLostError:
            print("daily-rollup was lost: the steps not done yet are left to the next holder", file=sys.stderr)
            return 76
    return 0


if __name__ == "__main__":
    sys.exit(main())
