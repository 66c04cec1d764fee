"""`volcano-locks serve` as a real process, which tests kill, stop and start again."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx2

from .engines.processes import free_port

PROGRAM = Path(sys.executable).with_name("volcano-locks")
ADMIN_TOKEN = "admin-token-of-the-test"
WAIT_SECONDS = 60


class ServerExitedError(Exception):
    """The server exited before it listened; its exit code and its output."""

    def __init__(self, exit_code: int, output: str) -> None:
        super().__init__(f"exit code {exit_code}, with the output:\n{output}")
        self.exit_code = exit_code
        self.output = output


class ServerProcess:
    """`volcano-locks serve` on one store and one port, over all its starts.

    `limits` are options of the shell's `ulimit` for the process; `environment` is added to ours.
    """

    def __init__(self, store: str, limits: str = "", environment: dict[str, str] | None = None) -> None:
        self._store = store
        self._environment = environment or {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._limits = limits
        self.start_output = ""
        """The output of the latest start, until the server listened."""
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start the process without waiting until it listens."""
        environment = {name: value for name, value in os.environ.items() if "VOLCANO" not in name}
        with_limits = ["sh", "-c", f'ulimit {self._limits} && exec "$@"', "sh"] if self._limits else []
        self._process = process = subprocess.Popen(
            [*with_limits, PROGRAM, "serve", "--port", str(self.port)],
            env=environment
            | {"VOLCANO_LOCKS_STORE": self._store, "VOLCANO_LOCKS_ADMIN_TOKEN": ADMIN_TOKEN}
            | self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._lines = lines

        def read_output() -> None:
            assert process.stdout is not None
            with process.stdout as output:
                for line in output:
                    lines.put(line)
            lines.put(None)

        threading.Thread(target=read_output, daemon=True).start()

    def start(self) -> None:
        """Start the process and return when it listens. Raises ServerExitedError."""
        self.begin()
        self.wait_until_it_listens()

    def wait_until_it_listens(self) -> None:
        """Return when the server listens. Raises ServerExitedError."""
        output = ""
        while re.search(r"listening on \S+,", output) is None:
            line = self._lines.get(timeout=WAIT_SECONDS)
            if line is None:
                raise ServerExitedError(self.wait(), output)
            output += line
        self.start_output = output

    def output(self) -> str:
        """The output since the last call, or since the server listened."""
        lines = []
        with contextlib.suppress(queue.Empty):
            while (line := self._lines.get_nowait()) is not None:
                lines.append(line)
        return "".join(lines)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(WAIT_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(WAIT_SECONDS)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.kill()

    def new_service_key(self) -> str:
        """The service key of a new project without a quota."""
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        with httpx2.Client(base_url=self.url, headers=headers, timeout=WAIT_SECONDS) as admin:
            project = success_body(admin.post("/projects", json={"name": "test"}))["id"]
            success_body(admin.patch(f"/projects/{project}", json={"requests_per_minute": 0}))
            created = success_body(admin.post(f"/projects/{project}/service-keys", json={"name": "test"}))
            return str(created["key_value"])


def success_body(response: httpx2.Response) -> dict[str, object]:
    """The JSON body of a response, which must be a success."""
    assert response.is_success, response.text
    body: dict[str, object] = response.json()
    return body
