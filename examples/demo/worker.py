"""One worker: tries for the lock until it has it, then does as the narrator says on stdin.

Run by the demo as `worker.py NAME LOCK DATABASE`. It reports one JSON object a line on stdout: `held` when it was told
that somebody else has the lock, `won` with its fencing token, `wrote` with whether the row took its write, `lost` when
it learns that the lease went to another. When stdin ends, so does the worker.
"""

import json
import sys
import time
from pathlib import Path

import report
from volcano_locks import Client, LockHeldError, LockOwnershipLostError

TTL_SECONDS = 5
POLL_SECONDS = 0.2


def tell(event: str, **more: object) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


def work(client: Client, name: str, lock: str, database: Path) -> None:
    """Hold the lock for as long as the narrator has something to do."""
    with client.locks.with_lock(lock, ttl=TTL_SECONDS) as guard:
        tell("won", fencing_token=guard.fencing_token)
        for line in sys.stdin:
            # A careful worker asks guard.raise_if_lost() here. This one does not, on purpose: between the question and
            # the write there is always a moment in which a process can stall. The row has to look for itself.
            written = report.write(database, lock, total=int(line), writer=name, fencing_token=guard.fencing_token)
            tell("wrote", accepted=written)


def main(name: str, lock: str, database: Path) -> None:
    with Client() as client:
        told = False
        while True:
            try:
                return work(client, name, lock, database)
            except LockHeldError:
                if not told:
                    tell("held")
                told = True
                time.sleep(POLL_SECONDS)
            except LockOwnershipLostError:
                return tell("lost")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
