"""A worker process: acquires the lock, then writes the totals that it reads from stdin.

The demo runs it as `worker.py NAME LOCK DATABASE`. It prints one JSON object per line: `held` if another worker holds
the lock, `won` with the fencing token, `wrote` with whether the row accepted the write, `lost` if it lost its lease.
The worker ends when stdin ends.
"""

import json
import sys
import time
from pathlib import Path

import report
from volcano_locks import Client, LockHeldError, LockOwnershipLostError

TTL_SECONDS = 5
POLL_SECONDS = 0.2


def print_event(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def work(client: Client, name: str, lock: str, database: Path) -> None:
    """Hold the lock and write each total from stdin."""
    with client.locks.with_lock(lock, ttl=TTL_SECONDS) as guard:
        print_event("won", fencing_token=guard.fencing_token)
        for line in sys.stdin:
            # A careful worker calls guard.raise_if_lost() here. This one does not, on purpose: a process can always
            # stall between that check and the write. So the row must compare the fencing token itself.
            written = report.write(database, lock, total=int(line), writer=name, fencing_token=guard.fencing_token)
            print_event("wrote", accepted=written)


def main(name: str, lock: str, database: Path) -> None:
    with Client() as client:
        reported = False
        while True:
            try:
                return work(client, name, lock, database)
            except LockHeldError:
                if not reported:
                    print_event("held")
                reported = True
                time.sleep(POLL_SECONDS)
            except LockOwnershipLostError:
                return print_event("lost")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
