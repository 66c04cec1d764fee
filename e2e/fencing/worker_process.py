"""Worker processes in any language, which read shell commands and write lines of JSON.

A worker gets VOLCANO_API_URL, VOLCANO_SERVICE_KEY, FENCING_KEY and FENCING_TTL (whole seconds) in its environment. It
tries to acquire the lock at least once a second, then works inside its client's block:

    ← {"held": 1764424800000}                                   the fencing token
    → sed … | psql …                                            one line for the shell
    ← {"lost": false}                                           the guard before it runs the line
    ← {"exit_code": 0, "output": "1\\n", "lost": false}          the result, and the guard afterwards

It runs the line with FENCING_TOKEN in its environment whatever the guard says: the tests are about holders that do not
check. At the end of its input it leaves the block and writes the outcome:

    ← {"ended": "held"}                                         or {"ended": "lost"}
"""

import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from volcano_locks_server.testing import RunningServer

from .databases import WAIT_SECONDS, Database, fencing_sql

HERE = Path(__file__).parent
SDKS = HERE.parents[1] / "sdks"
TTL_SECONDS = 5


class Worker:
    """A worker's process, in a process group with all its children."""

    def __init__(self, command: list[str], server: RunningServer, key: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *command],
            env=os.environ
            | {"VOLCANO_API_URL": server.url, "VOLCANO_SERVICE_KEY": server.service_key}
            | {"FENCING_KEY": key, "FENCING_TTL": str(TTL_SECONDS)}
            | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read_output, daemon=True).start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def run_command(self, line: str) -> None:
        """Send a shell command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def read_message(self) -> dict[str, Any]:
        """The next message."""
        message: dict[str, Any] = json.loads(self._lines.get(timeout=WAIT_SECONDS))
        return message

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        os.killpg(self._process.pid, number)

    def ended(self) -> dict[str, Any]:
        """End its input and return its last message."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        message = self.read_message()
        assert self._process.wait(WAIT_SECONDS) == 0
        return message

    def close(self) -> None:
        """Kill the process and its children."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class FencedTable:
    """One fenced table and the shell commands that write it; `unfenced_write` does not compare the token."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self._folder = folder
        write: str = json.loads(fencing_sql(database.dialect, "report", "day", "--json"))["write"]
        self._fenced = write.replace(":id", "'monday'")
        self._unfenced = self._fenced.partition(" AND ")[0]

    def fenced_write(self, writer: str) -> str:
        return self._line(self._fenced, writer)

    def unfenced_write(self, writer: str) -> str:
        return self._line(self._unfenced, writer)

    def _line(self, sql: str, writer: str) -> str:
        """A command that prints how many rows changed, or the database's refusal."""
        statement = sql.replace("SET ", f"SET writer = '{writer}', ")
        file = self._folder / f"{self.database.dialect}-{len(list(self._folder.iterdir()))}.sql"
        file.write_text(self.database.counting(statement))
        return f'sed "s/:fencing_token/$FENCING_TOKEN/" {file} | {shlex.join(self.database.client)}'


def command(language: str) -> list[str]:
    """The command that starts a worker in that language."""
    return {
        "python": [sys.executable, str(HERE / "workers/worker.py")],
        "javascript": ["node", str(HERE / "workers/worker.mjs")],
        "ruby": ["ruby", "-W", "-I", str(SDKS / "ruby/lib"), str(HERE / "workers/worker.rb")],
    }[language]
