"""Resolves a host name within a time limit.

The operating system's look-up cannot be interrupted, so a daemon thread makes it. Callers share a look-up that is
under way. If it takes too long, the addresses found last are used again.
"""

import socket
from collections.abc import Callable
from typing import Any

from volcano_locks.sync.call import Call, Signal, TimeUp, start_thread

LOOKUP_SECONDS_MAX = 1.0
"""How long a look-up may take if earlier addresses are known."""

Addresses = list[tuple[Any, ...]]


class _Lookup:
    """One look-up in a thread of its own."""

    def __init__(self) -> None:
        self.outcome: Addresses | OSError | None = None
        self.waiting: list[Signal] = []

    def run(self, host: str, port: int) -> None:
        try:
            self.outcome = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.outcome = error
        except UnicodeError as error:
            self.outcome = OSError(str(error))
        for signal in self.waiting:
            signal.set()


class Resolver:
    """Resolves one host. May be shared by threads."""

    def __init__(self, host: str, port: int, now: Callable[[], float]) -> None:
        self._host = host
        self._port = port
        self._now = now
        self._known: Addresses | None = None
        self._lookup: _Lookup | None = None

    def addresses(self, until: float, call: Call) -> Addresses:
        """The host's addresses, as `getaddrinfo` returns them. Raises OSError, and what `Call.remaining` raises."""
        host, numeric = self._host.encode(), socket.AI_NUMERICHOST | socket.AI_NUMERICSERV  # bytes: IDNA hides errors
        try:
            return socket.getaddrinfo(host, self._port, type=socket.SOCK_STREAM, flags=numeric)
        except socket.gaierror:
            pass  # a name, no literal address
        lookup = self._lookup
        if lookup is None or lookup.outcome is not None:
            lookup = _Lookup()
            if start_thread(lookup.run, self._host, self._port) is None:
                if self._known is not None:
                    return self._known
                lookup.run(self._host, self._port)
            self._lookup = lookup  # not before it runs: an interrupt may come in between
        signal = Signal()
        lookup.waiting.append(signal)
        limit = until if self._known is None else min(until, self._now() + LOOKUP_SECONDS_MAX)
        if lookup.outcome is None:
            call.wait(limit, signal)
        outcome = lookup.outcome
        if isinstance(outcome, list):
            self._known = outcome
        if self._known is not None:
            return self._known
        raise outcome.with_traceback(None) if isinstance(outcome, OSError) else TimeUp
