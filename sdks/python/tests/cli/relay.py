"""A wire to the server that a test cuts: connections are passed on, broken off, and refused while it is down."""

import contextlib
import selectors
import socket
import threading
from typing import Self
from urllib.parse import urlsplit


class Relay:
    """Listens on `url` while it is entered."""

    def __init__(self, to_url: str) -> None:
        parts = urlsplit(to_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._to = (parts.hostname, parts.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._down = False
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Break off all connections, and every new one until `mend`."""
        self._down = True
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Pass connections on again."""
        self._down = False

    def _begin(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            if self._down:
                ours.close()
                continue
            theirs = socket.create_connection(self._to)
            self._pairs.append((ours, theirs))
            self._begin(_pass_on, ours, theirs)


def _pass_on(ours: socket.socket, theirs: socket.socket) -> None:
    with selectors.DefaultSelector() as selector, ours, theirs, contextlib.suppress(OSError):
        selector.register(ours, selectors.EVENT_READ, theirs)
        selector.register(theirs, selectors.EVENT_READ, ours)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(65_536)
                if not data:
                    return
                key.data.sendall(data)
