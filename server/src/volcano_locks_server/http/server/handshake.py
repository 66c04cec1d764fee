"""A TLS connection from its accept until its handshake is complete."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

RECORD_TYPE: Final = b"\x16"  # the first byte of every TLS handshake


class Handshake:
    """Waits for the client's first byte, and then belongs to the task that the acceptor sets.

    `on_first_byte` gets that byte, or none if the client is gone. A handshake that has started takes about 60 KB of
    memory, and one that waits about 5 KB, so that thousands of silent clients cost little (case 59).
    """

    def __init__(self, accepted: socket.socket, on_first_byte: Callable[["Handshake", bytes], None]) -> None:
        self.accepted: Final = accepted
        self.task: asyncio.Task[Any] | None = None
        self._on_first_byte: Final = on_first_byte
        self._loop: Final = asyncio.get_running_loop()
        self._is_watched = False
        self.began_at = self._loop.time()

    def wait_for_first_byte(self) -> None:
        try:
            first = self.accepted.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if not self._is_watched:
                self._is_watched = True
                self._loop.add_reader(self.accepted, self.wait_for_first_byte)
            return
        except OSError:
            first = b""
        self._stop_watching()
        self._on_first_byte(self, first)

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` closed the connection before its task was set."""
        return self.accepted.fileno() < 0

    def abort(self) -> None:
        """Close the connection. The owner of the task closes the socket when the task has ended."""
        if self.task is not None:
            self.task.cancel()
            return
        self._stop_watching()
        self.accepted.close()

    def _stop_watching(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._loop.remove_reader(self.accepted)
