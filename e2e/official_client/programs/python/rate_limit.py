"""Ask until the quota is spent: python rate_limit.py KEY"""

import sys

from volcano_locks import Client, RateLimitedError

key = sys.argv[1]

with Client() as client:
    try:
        for _ in range(50):
            client.locks.get(key)
    except RateLimitedError as error:
        print(f"retry after {error.retry_after} seconds")
