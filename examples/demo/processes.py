"""The processes of the demo: starts them, reads their output, and kills them at the end, whatever happened."""

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
RESPONSE_SECONDS: Final = 30.0


class DemoFailedError(Exception):
    """A step did not go as described."""


class DemoProcess:
    """A process and the lines that it prints."""

    def __init__(self, name: str, process: subprocess.Popen[str], output: IO[str]) -> None:
        self.name: Final = name
        self.process: Final = process
        self._lines: Final[queue.Queue[str | None]] = queue.Queue()
        self._last = "nothing"
        threading.Thread(target=self._read, args=(output,), daemon=True).start()

    def _read(self, output: IO[str]) -> None:
        for line in output:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, timeout_seconds: float = RESPONSE_SECONDS) -> str:
        """The next line of output."""
        try:
            line = self._lines.get(timeout=timeout_seconds)
        except queue.Empty:
            raise DemoFailedError(f"{self.name} printed nothing for {timeout_seconds:g} s") from None
        if line is None:
            raise DemoFailedError(f"{self.name} ended with exit code {self.process.wait()}; last output: {self._last}")
        self._last = line.strip()
        return line

    def expect(self, event: str, timeout_seconds: float = RESPONSE_SECONDS) -> dict[str, object]:
        """The next event, which must have this name."""
        received: dict[str, object] = json.loads(self.line(timeout_seconds))
        if received["event"] != event:
            raise DemoFailedError(f"{self.name} should have reported {event!r}, but reported {received}")
        return received

    def send(self, line: str) -> None:
        """Write a line to the process's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


class Processes:
    """The running processes. As a context manager it kills all of them at the end, stopped ones too."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self._started: Final[list[DemoProcess]] = []
        # Without the caller's own settings.
        self._environment: Final = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
        self._admin_token: Final = secrets.token_urlsafe(32)
        self.url = ""

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._started:
            started.process.kill()
        for started in self._started:
            started.process.wait()

    def start_server(self) -> None:
        """Start the service on a free port and set `url`."""
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
        server = DemoProcess("the server", process, process.stdout)
        self._started.append(server)
        while not self.url:
            found = re.search(r"http://127\.0\.0\.1:\d+", server.line())
            self.url = found.group() if found else ""

    def admin(self, *arguments: str) -> Mapping[str, str]:
        """Run an admin command of `volcano-locks` and return its JSON."""
        command: list[str | Path] = [COMMAND, *arguments, "--json"]
        done = subprocess.run(command, env=self._admin_environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoFailedError(f"volcano-locks {' '.join(arguments)}: {done.stderr.strip()}")
        response: Mapping[str, str] = json.loads(done.stdout)
        return response

    def start_worker(self, name: str, lock: str, service_key: str) -> DemoProcess:
        """Start a worker process that acquires `lock`."""
        process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", name, lock, self._directory / "app.db"],
            env=self._environment | {"VOLCANO_API_URL": self.url, "VOLCANO_SERVICE_KEY": service_key},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        worker = DemoProcess(name, process, process.stdout)
        self._started.append(worker)
        return worker

    def _admin_environment(self) -> dict[str, str]:
        return self._environment | {"VOLCANO_API_URL": self.url, "VOLCANO_LOCKS_ADMIN_TOKEN": self._admin_token}


def exit_on_sigterm() -> None:
    """Make SIGTERM unwind the stack as Ctrl-C does, so that all processes are killed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
