"""The demo's processes: started here, listened to here, and gone when the stage is cleared, whatever happened."""

import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

HERE: Final = Path(__file__).parent
COMMAND: Final = Path(sys.executable).with_name("volcano-locks")
ANSWER_SECONDS: Final = 30.0


class StepFailedError(Exception):
    """Something did not go as the story says."""


class Performer:
    """A process and the lines it speaks."""

    def __init__(self, name: str, process: subprocess.Popen[str], spoken: IO[str]) -> None:
        self.name: Final = name
        self.process: Final = process
        self._lines: Final[queue.Queue[str | None]] = queue.Queue()
        self._last = "nothing"
        threading.Thread(target=self._listen, args=(spoken,), daemon=True).start()

    def _listen(self, spoken: IO[str]) -> None:
        for line in spoken:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, timeout_seconds: float = ANSWER_SECONDS) -> str:
        """The next line it says."""
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            raise StepFailedError(f"{self.name} said nothing for {timeout_seconds:g} s") from None
        if line is None:
            raise StepFailedError(f"{self.name} ended with exit code {self.process.wait()}; it last said: {self._last}")
        self._last = line.strip()
        return line

    def hear(self, event: str, timeout_seconds: float = ANSWER_SECONDS) -> dict[str, object]:
        """The next event, which has to be this one."""
        heard: dict[str, object] = json.loads(self.line(timeout_seconds))
        if heard["event"] != event:
            raise StepFailedError(f"{self.name} should have said {event!r} and said {heard}")
        return heard

    def say(self, line: str) -> None:
        """Give it something to do."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


class Stage:
    """Where the processes live. As a context manager it leaves none of them behind, stopped ones included."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self._performers: Final[list[Performer]] = []
        # Nothing of the caller's own set-up may leak into the play.
        self._environment: Final = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
        self._admin_token: Final = secrets.token_urlsafe(32)
        self.url = ""

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, *_: object) -> None:
        for performer in self._performers:
            performer.process.kill()
        for performer in self._performers:
            performer.process.wait()

    def start_server(self) -> None:
        """Start the service on a free port; `url` says which."""
        command: list[str | Path] = [
            COMMAND,
            "serve",
            "--store",
            f"sqlite:///{self._directory}/locks.db",
            "--port",
            "0",
        ]
        process = subprocess.Popen(
            command,
            env=self._admin_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        server = Performer("the server", process, process.stdout)
        self._performers.append(server)
        while not self.url:
            found = re.search(r"http://127\.0\.0\.1:\d+", server.line())
            self.url = found.group() if found else ""

    def operate(self, *arguments: str) -> Mapping[str, str]:
        """Run an admin command of `volcano-locks`; what it answers."""
        command: list[str | Path] = [COMMAND, *arguments, "--json"]
        done = subprocess.run(command, env=self._admin_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise StepFailedError(f"volcano-locks {' '.join(arguments)}: {done.stderr.strip()}")
        answer: Mapping[str, str] = json.loads(done.stdout)
        return answer

    def start_worker(self, name: str, lock: str, service_key: str) -> Performer:
        """Start a worker process that wants `lock`."""
        process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", name, lock, self._directory / "app.db"],
            env=self._environment | {"VOLCANO_API_URL": self.url, "VOLCANO_SERVICE_KEY": service_key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        worker = Performer(name, process, process.stdout)
        self._performers.append(worker)
        return worker

    def _admin_environment(self) -> dict[str, str]:
        return self._environment | {"VOLCANO_API_URL": self.url, "VOLCANO_LOCKS_ADMIN_TOKEN": self._admin_token}


def end_on_terminate() -> None:
    """SIGTERM unwinds the stack as Ctrl-C does, so that the stage is cleared."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
