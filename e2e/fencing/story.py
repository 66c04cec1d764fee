"""Workers in any language, told what to do by lines, and answering by lines of JSON.

A worker is a command. It finds VOLCANO_API_URL, VOLCANO_SERVICE_KEY, FENCING_KEY and FENCING_TTL (whole seconds) in
its environment. It asks for the lock until it has it, without a pause longer than a second, and works under it with
its client's block form:

    ← {"held": 1764424800000}                                   the fencing token
    → sed … | psql …                                            one line for the shell
    ← {"lost": false}                                           what its client says before it runs the line
    ← {"exit_code": 0, "said": "1\\n", "lost": false}            what came of it, and what its client says then

It runs the line with FENCING_TOKEN in its environment whatever its client says: the story is about the writes of
those who do not look. At the end of its input it leaves the block, and tells what the block said of the lock:

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
    """A worker's process, in a group of its own with all that it runs."""

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
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def say(self, line: str) -> None:
        """Have it run a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next that it tells."""
        heard: dict[str, Any] = json.loads(self._lines.get(timeout=WAIT_SECONDS))
        return heard

    def send(self, number: signal.Signals) -> None:
        """A signal for it and for all that it runs."""
        os.killpg(self._process.pid, number)

    def ended(self) -> dict[str, Any]:
        """End its input: what it tells last."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        heard = self.hear()
        assert self._process.wait(WAIT_SECONDS) == 0
        return heard

    def close(self) -> None:
        """Nothing of it is left."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class Desk:
    """One fenced table, and the lines with which workers write it. `guarded` compares; `forgetful` does not."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self._folder = folder
        write: str = json.loads(fencing_sql(database.dialect, "report", "day", "--json"))["write"]
        self._guarded = write.replace(":id", "'monday'")
        self._forgetful = self._guarded.partition(" AND ")[0]

    def guarded(self, writer: str) -> str:
        return self._line(self._guarded, writer)

    def forgetful(self, writer: str) -> str:
        return self._line(self._forgetful, writer)

    def _line(self, sql: str, writer: str) -> str:
        """It prints how many rows changed, and the database's refusal if there is one."""
        statement = sql.replace("SET ", f"SET writer = '{writer}', ")
        file = self._folder / f"{self.database.dialect}-{len(list(self._folder.iterdir()))}.sql"
        file.write_text(self.database.counting(statement))
        return f'sed "s/:fencing_token/$FENCING_TOKEN/" {file} | {shlex.join(self.database.client)}'


def command(language: str) -> list[str]:
    """What starts a worker of that language."""
    return {
        "python": [sys.executable, str(HERE / "workers/worker.py")],
        "javascript": ["node", str(HERE / "workers/worker.mjs")],
        "ruby": ["ruby", "-W", "-I", str(SDKS / "ruby/lib"), str(HERE / "workers/worker.rb")],
    }[language]
