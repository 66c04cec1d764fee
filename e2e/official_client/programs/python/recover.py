"""Recover an acquire whose outcome is unknown, with the same ids: python recover.py KEY"""

import sys
import uuid

from volcano_locks import Client, TransportError, UnavailableError

key = sys.argv[1]
token, request_id = str(uuid.uuid4()), str(uuid.uuid4())

with Client(timeout_seconds=2) as client:
    try:
        lease = client.locks.acquire(key, ttl=30, token=token, request_id=request_id)
    except (TransportError, UnavailableError):
        print("uncertain")
        lease = client.locks.acquire(key, ttl=30, token=token, request_id=request_id)
    print("recovered")
    client.locks.release(key, lease)
    print("released")
