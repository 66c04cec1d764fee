"""etcd as Debian packages it: clusters of one or three members on loopback ports, each in a folder of its own.

`shared` is one member for all tests that only need a store, each with its own prefix. A test that disturbs members
starts its own `cluster`.
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

RESPONSE_SECONDS = 30
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
        """The URL for the other members. Can be changed to a proxy's before the cluster starts."""
        self._words = words
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        """Start or restart it as a member of the cluster `name=peer url,…`, without waiting."""
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
        """Return when the member knows a leader."""
        assert self._process is not None
        wait_until(self._is_healthy, self._process, self._log)

    def ask(self, path: str, *, token: str = "", **body: object) -> Any:
        """A request to its JSON gateway, such as `maintenance/status`, with the token of a user if there is one."""
        headers = {"Authorization": token} if token else {}
        request = urllib.request.Request(f"http://{self.host}/v3/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=RESPONSE_SECONDS) as response:
            return json.load(response)

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key without the knowledge of its owner."""
        self.ask("kv/put", key=b64encode(key).decode(), value=b64encode(value).decode())

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT …"""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            ended(self._process)
            self._process = None

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._health_url}/health", timeout=1) as response:
                return b'"true"' in response.read()
        except OSError:
            return False


class Cluster:
    """Members that make one cluster."""

    def __init__(self, folder: Path, size: int, words: Sequence[Word], scheme: str) -> None:
        self.members = [Member(f"m{number}", folder, words, scheme) for number in range(size)]

    def start(self, *members: Member) -> None:
        """Start these members or all, and wait until they know a leader. A majority must run."""
        names = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in members or self.members:
            member.start(names)
        for member in members or self.members:
            member.wait()

    def url(self, prefix: str | None = None, *, credentials: str = "") -> str:
        """The URL of an empty store, or of the one under `prefix`. `credentials` is `user:password@`."""
        hosts = ",".join(member.host for member in self.members)
        return f"etcd://{credentials}{hosts}/{prefix or new_prefix()}"

    def leader(self) -> Member:
        """The current leader. Waits if the cluster has none, as can happen on a busy machine."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            for member in self.members:
                status = member.ask("maintenance/status")
                if status.get("leader") == status["header"]["member_id"]:  # absent while the member knows no leader
                    return member
            assert time.monotonic() < deadline, "no member leads"
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
    """A new cluster, with additional words on each member's command line."""
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
    """One member for all tests that do not disturb it. It does not sync: no such test crashes it."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(cluster(1, "--unsafe-no-fsync"))
