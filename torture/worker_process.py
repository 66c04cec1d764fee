"""Worker processes that use locks through the shipped clients, and the records that they write.

A worker gets its settings as JSON in TORTURE, and the server's address and service key in the client's own variables.
Each of its tasks chooses a lock and uses it, again and again until the end of its stdin:

- as a block: while its guard says that the lock is held, it writes to the fenced storage, and once more some
  seconds after a loss;
- or by single calls: acquire, renewals, and a release or none;
- or it reads the lock.

For each call it appends one line of JSON to its file, with the fields of a `RequestRecord` and `ended_at`, when the
call returned. Three kinds of lines mean more:

- a release without `ended_at` was about to be sent, because the process may be killed before it knows the outcome;
- a release of a block covers everything that leaving the block does;
- a `renew` that took no time is what a guard said: the lease was believed in for `ttl_seconds` from `sent_at` on. The
  guard is read between the two instants, so neither a pause nor a slow machine makes the interval too long.

One lock is contended, and no holder holds it for long. On the others some holders hold for longer than the TTL, and
some abandon their lease. The name of a lock ends with the number of its epoch, so that the
history of each lock is short.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
SDKS = HERE.parent / "sdks"
JAVASCRIPT_CLIENT = SDKS / "javascript/dist/index.mjs"
END_SECONDS = 90
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "python": (sys.executable, str(HERE / "workers/worker.py")),
    "javascript": ("node", str(HERE / "workers/worker.mjs")),
    "ruby": ("ruby", "-W", "-I", str(SDKS / "ruby/lib"), str(HERE / "workers/worker.rb")),
}
TTL_SECONDS = 5
WAIT_SECONDS = 12
TIMEOUT_SECONDS = 5
EPOCH_SECONDS = 30
SETTINGS: Mapping[str, object] = {
    "ttl_seconds": TTL_SECONDS,
    "wait_seconds": WAIT_SECONDS,
    "timeout_seconds": TIMEOUT_SECONDS,
    "epoch_seconds": EPOCH_SECONDS,
    "keys": 8,
    "contended": 0.4,
    "tasks": 3,
    "pause_seconds": 0.2,
    "late_seconds": 3,  # so late that the next holder has probably written
    "abandoned": 0.05,
    "long": 0.1,
    "client": JAVASCRIPT_CLIENT.as_uri(),
}


def now() -> float:
    """Seconds of the machine's boot-time clock, which all workers use."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WorkerProcess:
    """One process of one language, over all its starts. `paused` are the intervals in which it was stopped."""

    def __init__(self, language: str, name: str, folder: Path, **settings: object) -> None:
        self.language = language
        self.name = name
        self.records = folder / f"{name}.records"
        self.records.touch()
        self.paused: list[tuple[float, float]] = []
        self._errors = folder / f"{name}.errors"
        self._settings = {**SETTINGS, "records": str(self.records), "name": name, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def start(self, url: str, service_key: str) -> None:
        """Start it, or start it again after a kill."""
        self._starts += 1
        ahead = now() - time.monotonic()
        settings = self._settings | {"boot_seconds_ahead": ahead, "name": f"{self.name}.{self._starts}"}
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *COMMANDS[self.language]],
                env=os.environ
                | {"VOLCANO_API_URL": url, "VOLCANO_SERVICE_KEY": service_key, "TORTURE": json.dumps(settings)},
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
            )

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9. Returns when it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()
            self._cut_last_line()

    def failure(self) -> str | None:
        """What it wrote to stderr, if it ended by itself."""
        if self._process is None or self._process.poll() is None:
            return None
        return f"the worker {self.name} ended with {self._process.returncode}:\n{self._errors.read_text()[-2_000:]}"

    def end(self) -> str | None:
        """Let its tasks end. Returns what went wrong."""
        assert self._process is not None
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"the worker {self.name} did not end within {END_SECONDS} s"
        return self.failure() if self._process.returncode else None

    def _cut_last_line(self) -> None:
        """Remove a line that the kill cut off, so that the next start begins a new one."""
        written = self.records.read_bytes()
        if not written.endswith(b"\n"):
            with self.records.open("r+b") as file:
                file.truncate(written.rfind(b"\n") + 1)
