"""Read a lock and force its release; the old lease is then lost: python get_and_force.py KEY"""

import sys

from volcano_locks import Client, LockOwnershipLostError

key = sys.argv[1]

with Client() as client:
    lease = client.locks.acquire(key, ttl=30)
    print("held:", str(client.locks.get(key).held).lower())
    client.locks.force_release(key)
    print("held:", str(client.locks.get(key).held).lower())
    try:
        client.locks.renew(key, lease, ttl=30)
        print("lost: false")
    except LockOwnershipLostError:
        print("lost: true")
