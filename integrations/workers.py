"""Real worker processes for the tests of the integrations, and the journal that they write."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs/guide/integrations"
EVENT_SECONDS_MAX = 40
"""How long an event may take on a busy machine, beyond the lease of a killed holder."""
END_SECONDS_MAX = 20


class Event(NamedTuple):
    """One line of a journal: what happened, to which job, in which process."""

    what: str
    job: str
    pid: int


class Journal:
    """The lines that workers append to a file: `WHAT JOB PID`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def events(self, what: str | None = None) -> list[Event]:
        """The events so far, of one kind or of all."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = [Event(parts[0], parts[1], int(parts[2])) for line in lines if len(parts := line.split()) == 3]
        return [event for event in found if what in (None, event.what)]

    def wait_for(self, what: str, count: int = 1, job: str | None = None) -> list[Event]:
        """Return the events of that kind when there are at least `count`."""
        give_up_at = time.monotonic() + EVENT_SECONDS_MAX
        while len(found := [one for one in self.events(what) if job in (None, one.job)]) < count:
            assert time.monotonic() < give_up_at, f"{count} events {what} expected, got {self.events()}"
            time.sleep(0.02)
        return found

    def check_no_overlap(self) -> None:
        """Each run of a job ended, or its process was killed, before the next run of the job began."""
        running: dict[str, int] = {}
        for event in self.events():
            if event.what == "start":
                assert event.job not in running, f"two runs of {event.job} overlap: {self.events()}"
                running[event.job] = event.pid
            elif event.what in ("end", "killed", "lost"):
                running.pop(event.job, None)

    def add(self, what: str, job: str, pid: int) -> None:
        """Append an event, as the workers do."""
        with self.path.open("a") as file:
            file.write(f"{what} {job} {pid}\n")


class Worker:
    """One worker process in a process group of its own, with its output in a file."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str], folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def output(self) -> str:
        """What it printed so far."""
        return self.log.read_text(errors="replace")

    def wait_for_output(self, text: str, count: int = 1) -> None:
        """Return when `text` was printed `count` times."""
        give_up_at = time.monotonic() + EVENT_SECONDS_MAX
        while self.output().count(text) < count:
            assert self.process.poll() is None or self.output().count(text) >= count, self.output()
            assert time.monotonic() < give_up_at, f"{text!r} is missing in:\n{self.output()}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the worker."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """kill -9, with its child processes."""
        self.signal(signal.SIGKILL)
        self.process.wait(END_SECONDS_MAX)

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(EVENT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs:\n{self.output()}") from None

    def stop(self) -> int:
        """SIGTERM to its main process; returns the exit code."""
        self.process.terminate()
        return self.wait()


@contextmanager
def started(
    command: Sequence[str | Path], environment: dict[str, str], folder: Path, count: int = 2, name: str = "worker"
) -> Iterator[list[Worker]]:
    """`count` workers that run the same command; `{n}` in it is the worker's number. They are killed at the end."""
    workers: list[Worker] = []
    try:
        for number in range(count):
            own = [str(word).replace("{n}", str(number)) for word in command]
            workers.append(Worker(own, environment | {"WORKER": str(number)}, folder, f"{name}-{number}"))
        yield workers
    finally:
        for worker in workers:
            try:
                worker.kill()
            except ProcessLookupError:
                worker.process.wait(END_SECONDS_MAX)


def example(page: str, number: int = 0) -> str:
    """A program of a page: the n-th code block of a language that runs, shell commands left out."""
    blocks = re.findall(r"```(python|js|ts|ruby)\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return str(blocks[number][1])
