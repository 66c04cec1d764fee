"""A worker for the story of the stopped holder. What it reads and tells: ../story.py."""

import json
import os
import subprocess
import sys
import time

from volcano_locks import Client, LockGuard, LockHeldError, LockOwnershipLostError


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def work(guard: LockGuard) -> None:
    tell(held=guard.fencing_token)
    environment = os.environ | {"FENCING_TOKEN": str(guard.fencing_token)}
    for line in sys.stdin:
        tell(lost=guard.lost)
        ran = subprocess.run(
            ["sh", "-c", line],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        tell(exit_code=ran.returncode, said=ran.stdout, lost=guard.lost)


def main() -> None:
    with Client() as client:
        while True:
            try:
                with client.locks.with_lock(os.environ["FENCING_KEY"], ttl=int(os.environ["FENCING_TTL"])) as guard:
                    work(guard)
            except LockHeldError:
                time.sleep(0.1)
            except LockOwnershipLostError:
                return tell(ended="lost")
            else:
                return tell(ended="held")


if __name__ == "__main__":
    main()
