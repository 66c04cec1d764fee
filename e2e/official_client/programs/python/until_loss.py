"""Hold a lock until it is lost: python until_loss.py KEY"""

import sys

from volcano_locks import Client, LockOwnershipLostError

key = sys.argv[1]

with Client() as client:
    try:
        with client.locks.with_lock(key, ttl=5) as guard:
            print("holding", flush=True)
            guard.wait_lost()
    except LockOwnershipLostError:
        print("lost")
