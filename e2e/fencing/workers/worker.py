"""A worker for the tests of paused holders. Its protocol: ../worker_process.py."""

import json
import os
import subprocess
import sys
import time

from volcano_locks import Client, LockGuard, LockHeldError, LockOwnershipLostError


def report(**what: object) -> None:
    print(json.dumps(what), flush=True)


def work(guard: LockGuard) -> None:
    report(held=guard.fencing_token)
    environment = os.environ | {"FENCING_TOKEN": str(guard.fencing_token)}
    for line in sys.stdin:
        report(lost=guard.lost)
        ran = subprocess.run(
            ["sh", "-c", line],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        report(exit_code=ran.returncode, output=ran.stdout, lost=guard.lost)


def main() -> None:
    with Client() as client:
        while True:
            try:
                with client.locks.with_lock(os.environ["FENCING_KEY"], ttl=int(os.environ["FENCING_TTL"])) as guard:
                    work(guard)
            except LockHeldError:
                time.sleep(0.1)
            except LockOwnershipLostError:
                return report(ended="lost")
            else:
                return report(ended="held")


if __name__ == "__main__":
    main()
