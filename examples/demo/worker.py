"""One worker of the demo: retries until it has the lock, then writes the totals that it reads from stdin.

Started by the demo as `worker.py NAME LOCK DATABASE`. It reports one JSON object per line on stdout: `held` if another
worker has the lock, `won` with its fencing token, `wrote` with whether the row accepted its write, and `lost` if it
lost the lease. It ends when stdin ends.
"""

import json
import sys
import time
from pathlib import Path

import report
from volcano_locks import Client, LockHeldError, LockOwnershipLostError

TTL_SECONDS = 5
POLL_SECONDS = 0.2


def report_event(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def work(client: Client, name: str, lock: str, database: Path) -> None:
    """Hold the lock until stdin ends."""
    with client.locks.with_lock(lock, ttl=TTL_SECONDS) as guard:
        report_event("won", fencing_token=guard.fencing_token)
        for line in sys.stdin:
            # A careful worker calls guard.raise_if_lost() here. This one does not, on purpose: a process can always
            # stall between that check and the write. Only the row's own comparison prevents a late write.
            written = report.write(database, lock, total=int(line), writer=name, fencing_token=guard.fencing_token)
            report_event("wrote", accepted=written)


def main(name: str, lock: str, database: Path) -> None:
    with Client() as client:
        reported_held = False
        while True:
            try:
                return work(client, name, lock, database)
            except LockHeldError:
                if not reported_held:
                    report_event("held")
                reported_held = True
                time.sleep(POLL_SECONDS)
            except LockOwnershipLostError:
                return report_event("lost")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
