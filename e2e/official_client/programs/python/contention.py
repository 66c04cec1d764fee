"""A second acquire of a held lock: python contention.py KEY"""

import sys

from volcano_locks import Client, LockHeldError

key = sys.argv[1]

with Client() as client:
    lease = client.locks.acquire(key, ttl=30)
    try:
        client.locks.acquire(key, ttl=30)
    except LockHeldError:
        print("held elsewhere")
    finally:
        client.locks.release(key, lease)
