"""Acquire, renew and release by hand: python by_hand.py KEY"""

import sys

from volcano_locks import Client

key = sys.argv[1]

with Client() as client:
    lease = client.locks.acquire(key, ttl=30)
    try:
        renewed = client.locks.renew(key, lease, ttl=60)
        print("same token:", str(renewed.fencing_token == lease.fencing_token).lower())
    finally:
        client.locks.release(key, lease)
    print("released")
