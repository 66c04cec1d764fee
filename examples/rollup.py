"""A nightly job that several machines start and one runs: python examples/rollup.py

The client renews the lease in the background while the block runs. Between its steps the job checks that it still holds
the lock, because a lease can be lost while the code runs (a long network outage, a suspended laptop).
"""

import sys

from volcano_locks import Client, LockHeldError, LockOwnershipLostError

STEPS = ("read the day's orders", "add them up", "write the report")


def main() -> int:
    """Returns 0 if the work is done, 75 if another worker holds the lock, 76 if the lease was lost."""
    with Client() as client:  # reads VOLCANO_API_URL and VOLCANO_SERVICE_KEY
        try:
            with client.locks.with_lock("daily-rollup", ttl=30) as guard:
                for step in STEPS:
                    guard.raise_if_lost()
                    print(f"{step} (fencing token {guard.fencing_token})")
        except LockHeldError:
            print("another worker holds daily-rollup", file=sys.stderr)
            return 75
        except LockOwnershipLostError:
            print("daily-rollup was lost: the next holder runs the remaining steps", file=sys.stderr)
            return 76
    return 0


if __name__ == "__main__":
    sys.exit(main())
