"""Run a block under the lock: python block.py KEY"""

import sys

from volcano_locks import Client

key = sys.argv[1]

with Client() as client:
    with client.locks.with_lock(key, ttl=30) as guard:
        print("fencing token", guard.lease.fencing_token)
        print("lost:", str(guard.lost).lower())
    print("held:", str(client.locks.get(key).held).lower())
