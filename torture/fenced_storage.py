"""The storage that holders write to: a table behind the fence of `volcano-locks fencing sql`, over HTTP."""

import asyncio
import json
import sqlite3
import subprocess
from collections import Counter, defaultdict
from types import TracebackType
from typing import Self

from testsupport.server_process import PROGRAM

_FENCING = ["fencing", "sql", "--dialect", "sqlite", "--table", "report", "--id", "key", "--json"]
_WRITE = """
INSERT INTO report (key, fencing_token) VALUES (?, ?)
ON CONFLICT (key) DO UPDATE SET fencing_token = excluded.fencing_token
"""


class FencedStorage:
    """Answers `GET /KEY/TOKEN`, a write to the row of KEY, with `accepted` or `refused`, and counts both.

    The write itself compares nothing, so the triggers alone refuse it.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._highest: defaultdict[str, int] = defaultdict(int)
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        self._database.execute("CREATE TABLE report (key TEXT PRIMARY KEY)")
        fencing = subprocess.run([PROGRAM, *_FENCING], capture_output=True, check=True).stdout
        for statement in json.loads(fencing)["install"]:
            self._database.execute(statement)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._respond, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._database.close()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            _, key, token = head.split(b" ", 2)[1].decode().split("/")
            outcome = self._write(key, int(token)).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(outcome) + outcome)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the worker was killed
        finally:
            writer.close()

    def _write(self, key: str, token: int) -> str:
        try:
            self._database.execute(_WRITE, (key, token))
        except sqlite3.IntegrityError:
            outcome = "refused"
        else:
            outcome = "accepted"
            if token < self._highest[key]:
                self.violations.append(f"{key}: the fence accepted token {token} after {self._highest[key]}")
            self._highest[key] = max(token, self._highest[key])
        self.counts[outcome] += 1
        return outcome
