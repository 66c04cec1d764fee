"""etcd as Debian packages it: clusters of one or three members on loopback ports, each in a folder of its own.

`shared` is one member for all tests that only need a store; they keep apart by prefix. A test that does things to
members starts its own with `cluster`.
"""

import atexit
import itertools
import json
import signal
import subprocess
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from .processes import READY_SECONDS, Word, ended, folder_for, free_port, program, started, wait_until

ANSWER_SECONDS = 30
_numbers = itertools.count(1)


class Member:
    """One member. `host` is `127.0.0.1:port` for clients."""

    def __init__(self, name: str, folder: Path, words: Sequence[Word], scheme: str) -> None:
        self.name = name
        self.folder = folder
        self.host = f"127.0.0.1:{free_port()}"
        self._client_url = f"{scheme}://{self.host}"
        self._health_url = f"http://127.0.0.1:{free_port()}"
        self.peer_port = free_port()
        self.peer_url = f"http://127.0.0.1:{self.peer_port}"
        """Where the others find it; may be changed to a way there before the cluster starts."""
        self._words = words
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        """Start it as a member of the cluster `name=peer url,…`, or again; does not wait."""
        command: list[Word] = [
            program("etcd", "etcd-server"),
            "--name",
            self.name,
            "--data-dir",
            self.folder / self.name,
        ]
        command += ["--listen-client-urls", self._client_url, "--advertise-client-urls", self._client_url]
        command += ["--listen-metrics-urls", self._health_url]
        command += [
            "--listen-peer-urls",
            f"http://127.0.0.1:{self.peer_port}",
            "--initial-advertise-peer-urls",
            self.peer_url,
        ]
        command += ["--initial-cluster", cluster, "--logger", "zap", "--log-level", "error", *self._words]
        with self._log.open("ab") as log:
            self._process = started(command, None, log, "SIGKILL")

    def wait(self) -> None:
        """Return when it knows a leader."""
        assert self._process is not None
        wait_until(self._is_healthy, self._process, self._log)

    def ask(self, path: str, **body: object) -> Any:
        """A request to its JSON gateway, such as `maintenance/status`."""
        request = urllib.request.Request(f"http://{self.host}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key, behind the back of whoever believes to have it."""
        self.ask("kv/put", key=b64encode(key).decode(), value=b64encode(value).decode())

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT …"""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            ended(self._process)
            self._process = None

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._health_url}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False


class Cluster:
    """Members that make one cluster."""

    def __init__(self, folder: Path, size: int, words: Sequence[Word], scheme: str) -> None:
        self.members = [Member(f"m{number}", folder, words, scheme) for number in range(size)]

    def start(self, *members: Member) -> None:
        """Start these, or all, and wait until they know a leader; for that, a majority has to run."""
        names = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in members or self.members:
            member.start(names)
        for member in members or self.members:
            member.wait()

    def url(self, prefix: str | None = None, *, entrance: str = "") -> str:
        """The URL of an empty store, or of the one under `prefix`; `entrance` is `user:password@`."""
        hosts = ",".join(member.host for member in self.members)
        return f"etcd://{entrance}{hosts}/{prefix or new_prefix()}"

    def leader(self) -> Member:
        """The member that leads now. On a busy machine none may for a while."""
        gives_up_at = time.monotonic() + READY_SECONDS
        while True:
            for member in self.members:
                status = member.ask("maintenance/status")
                if status.get("leader") == status["header"]["member_id"]:  # where it knows none, none is told
                    return member
            assert time.monotonic() < gives_up_at, "no member leads"
            time.sleep(0.05)

    def stop(self) -> None:
        """End all members."""
        for member in self.members:
            member.kill()


def new_prefix() -> str:
    """A prefix that no other test uses."""
    return f"test-{next(_numbers)}"


@contextmanager
def cluster(size: int = 3, *words: Word, scheme: str = "http", is_started: bool = True) -> Iterator[Cluster]:
    """A cluster of one's own, with these words more on each member's command line."""
    with folder_for(None, "locks-etcd-") as folder:
        made = Cluster(folder, size, words, scheme)
        try:
            if is_started:
                made.start()
            yield made
        finally:
            made.stop()


@cache
def shared() -> Cluster:
    """One member for all tests that leave it as it is. It syncs nothing: no test of it is about a crash."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(cluster(1, "--unsafe-no-fsync"))
