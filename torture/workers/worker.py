"""A worker of the torture in Python. What it does and writes: ../worker_process.py."""

import json
import os
import random
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from volcano_locks import (
    Client,
    LockGuard,
    LockHeldError,
    LockOwnershipLostError,
    TransportError,
    UnavailableError,
)

SETTINGS = json.loads(os.environ["TORTURE"])
TTL = SETTINGS["ttl_seconds"]
stopping = threading.Event()
writing = threading.Lock()


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Job:
    """One task's use of one lock, under one name of its owner."""

    def __init__(self, client: Client, owner: str) -> None:
        self.locks = client.locks
        self.owner = owner
        epoch = int((now() - SETTINGS["began_at"]) // SETTINGS["epoch_seconds"])
        number = 0 if random.random() < SETTINGS["contended"] else random.randint(1, SETTINGS["keys"])
        self.is_contended = number == 0
        self.key = f"busy.{number}.{epoch}"
        self.wait = random.choice((0, 0, SETTINGS["wait_seconds"]))

    def run(self) -> None:
        random.choices((self.use_block, self.use_calls, self.read), (5, 4, 1))[0]()

    def read(self) -> None:
        state = self.call("get", lambda: self.locks.get(self.key), write=False)
        if state:
            self.write("get", "held" if state.held else "free", *self.times, fencing_token=state.fencing_token)

    def use_calls(self) -> None:
        lease = self.acquire()
        if lease is None:
            return
        for _ in range(random.randrange(3)):
            time.sleep(random.uniform(0, 0.2))
            lease = self.renew(lease)
            if lease is None:
                return
        if not self.is_contended and random.random() < SETTINGS["abandoned"]:
            return
        self.write("release", "unknown", now(), None)  # this process may be killed before it knows the outcome
        self.call("release", lambda: self.locks.release(self.key, lease), "done")

    def acquire(self) -> Any:
        return self.call("acquire", lambda: self.locks.acquire(self.key, ttl=TTL, wait=self.wait or None))

    def renew(self, lease: Any) -> Any:
        return self.call("renew", lambda: self.locks.renew(self.key, lease, ttl=TTL))

    def use_block(self) -> None:
        sent_at, token = now(), None
        left_at = 0.0
        try:
            with self.locks.with_lock(self.key, ttl=TTL, wait=self.wait or None) as guard:
                token = guard.fencing_token
                self.write("acquire", "granted", sent_at, now(), fencing_token=token)
                self.hold(guard)
                left_at = now()
                self.write("release", "unknown", left_at, None)
        except LockHeldError:
            self.write("acquire", "held", sent_at, now())
        except LockOwnershipLostError:
            if token is None:
                self.write("acquire", "lost", sent_at, now())
            else:
                time.sleep(SETTINGS["late_seconds"])
                self.write_fenced(token)  # refused if the next holder has written
        except (TransportError, UnavailableError):
            self.write("acquire", "unknown", sent_at, now())
        else:
            self.write("release", "unknown" if guard.release_error else "done", left_at, now())

    def hold(self, guard: LockGuard) -> None:
        is_long = not self.is_contended and random.random() < SETTINGS["long"]
        ends_at = now() + (random.uniform(TTL, 2 * TTL) if is_long else random.uniform(0, 0.2))
        first = last = 0.0
        while now() < ends_at and not stopping.is_set():
            before = now()
            if guard.lost:
                break
            first, last = first or now(), before
            if last - first > 1:
                first = self.believed(guard, first, last)
            self.write_fenced(guard.fencing_token)
            time.sleep(0.05)
        if last > first > 0:
            self.believed(guard, first, last)

    def believed(self, guard: LockGuard, first: float, last: float) -> float:
        self.write("renew", "granted", first, first, fencing_token=guard.fencing_token, ttl_seconds=last - first)
        return last

    def write_fenced(self, token: int) -> None:
        with urllib.request.urlopen(f"{SETTINGS['fence']}/{self.key}/{token}", timeout=60) as response:
            response.read()

    def call(self, operation: str, do: Callable[[], Any], success: str = "granted", *, write: bool = True) -> Any:
        sent_at, result = now(), None
        try:
            result = do()
            outcome = success
        except LockHeldError:
            outcome = "held"
        except LockOwnershipLostError:
            outcome = "refused" if operation == "release" else "lost"
        except (TransportError, UnavailableError):
            outcome = "unknown"
        self.times = (sent_at, now())
        if write or result is None:
            self.write(operation, outcome, *self.times, fencing_token=getattr(result, "fencing_token", None))
        return result

    def write(self, operation: str, outcome: str, sent_at: float, ended_at: float | None, **more: Any) -> None:
        record = {
            "client": self.owner.partition("#")[0],
            "operation": operation,
            "key": self.key,
            "owner": self.owner,
            "sent_at": sent_at,
            "responded_at": None if outcome == "unknown" else ended_at,
            "ended_at": ended_at,
            "outcome": outcome,
            "ttl_seconds": TTL,
            "wait_seconds": self.wait if operation == "acquire" else 0,
            **more,
        }
        with writing:
            RECORDS.write(json.dumps(record) + "\n")
            RECORDS.flush()


def work(client: Client, name: str) -> None:
    number = 0
    while not stopping.is_set():
        number += 1
        Job(client, f"{name}#{number}").run()
        time.sleep(random.uniform(0, SETTINGS["pause_seconds"]))


def stop_at_end_of_input() -> None:
    sys.stdin.read()
    stopping.set()


def main() -> None:
    client = Client(timeout_seconds=SETTINGS["timeout_seconds"])
    with ThreadPoolExecutor(SETTINGS["tasks"]) as pool:
        tasks = [pool.submit(work, client, f"{SETTINGS['name']}.{number}") for number in range(SETTINGS["tasks"])]
        threading.Thread(target=stop_at_end_of_input, daemon=True).start()
        for task in as_completed(tasks):
            if task.exception():
                stopping.set()
            task.result()


with Path(SETTINGS["records"]).open("a", encoding="utf-8") as RECORDS:
    main()
