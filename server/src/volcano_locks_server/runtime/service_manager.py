"""Reports a server's state to a service manager such as systemd, by the protocol of sd_notify(3) (OPS-16)."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from ..rules.errors import StoreUnavailableError
from ..telemetry import Log
from .server import Server

SEND_SECONDS_MAX: Final = 0.5
REPORTS_PER_INTERVAL: Final = 2


class Supervisor(Protocol):
    """What watches a process that serves: a service manager, or the parent of a worker.

    `watchdog_seconds` is how long it waits for a call of `alive` before it ends the process; None: it does not watch.
    """

    watchdog_seconds: float | None

    def ready(self, status: str) -> None:
        """The process serves."""
        ...

    def alive(self, status: str) -> None:
        """The process can do its work."""
        ...

    def reload(self, action: Callable[[], None]) -> None:
        """Run `action`, which loads files again."""
        ...

    def stopping(self) -> None:
        """The process refuses new requests and is about to end."""
        ...


class Unsupervised:
    """A supervisor that watches nothing, for processes on a terminal and tests."""

    watchdog_seconds: float | None = None

    def ready(self, status: str) -> None: ...

    def alive(self, status: str) -> None: ...

    def reload(self, action: Callable[[], None]) -> None:
        action()

    def stopping(self) -> None: ...


class ServiceManager:
    """The service manager named by NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID in `environ`.

    Without NOTIFY_SOCKET all calls do nothing. A message that cannot be sent is dropped, and the first one is logged:
    a server does not end because its manager does not listen.
    """

    def __init__(self, environ: Mapping[str, str], log: Log) -> None:
        self._socket: Final = environ.get("NOTIFY_SOCKET", "")
        self._log: Final = log
        self._is_ready = False
        self._failed = False
        self.watchdog_seconds: float | None = _watchdog_seconds(environ) if self._socket else None

    def ready(self, status: str) -> None:
        self._is_ready = True
        self._send("READY=1", f"STATUS={status}")

    def alive(self, status: str) -> None:
        self._send("WATCHDOG=1", f"STATUS={status}")

    def reload(self, action: Callable[[], None]) -> None:
        """Between RELOADING=1 and READY=1, unless the server is starting or stopping."""
        if self._is_ready:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")
        action()
        if self._is_ready:
            self._send("READY=1")

    def stopping(self) -> None:
        self._is_ready = False
        self._send("STOPPING=1", "STATUS=stopping: completing the requests in progress")

    def _send(self, *assignments: str) -> None:
        if not self._socket:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_SECONDS_MAX)
                sender.sendto("\n".join(assignments).encode(), _address(self._socket))
        except OSError as error:
            if not self._failed:
                self._failed = True
                self._log.warning("service_manager_unreachable", socket=self._socket, why=str(error))


async def report_alive(supervisor: Supervisor, seconds: float, server: Server) -> None:
    """Call `supervisor.alive` twice in `seconds`, each time after a probe of the server's store, until cancelled.

    A probe that fails counts as well as one that succeeds: a restart does not repair a database. One that does not end
    holds back the report, and so does a blocked event loop.
    """
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            await server.probe_store()
        except StoreUnavailableError as error:
            supervisor.alive(f"serving {server.url}, but the store cannot answer ({error.cause_code})")
        except Exception as error:  # noqa: BLE001 - a bug in the probe: the process is not alive, and the log says why
            server.log.unexpected_error("probe_failed", error)
        else:
            supervisor.alive(f"serving {server.url}")
        await asyncio.sleep(max(0.0, began + seconds / REPORTS_PER_INTERVAL - loop.time()))


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """The interval in which the manager expects a sign of life from this process, if it does."""
    interval, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not interval.isascii() or not interval.isdigit() or pid not in ("", str(os.getpid())):
        return None
    return int(interval) / 1_000_000 or None


def _address(name: str) -> str:
    """The address of a socket in the file system, or in Linux's abstract namespace if it begins with @."""
    if name.startswith("@"):
        return "\0" + name[1:]
    if name.startswith("/"):
        return name
    raise OSError("NOTIFY_SOCKET must begin with / or @; no other kind of socket is supported")
