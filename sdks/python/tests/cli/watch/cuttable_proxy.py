"""A TCP proxy in front of the server whose connections a test can cut."""

import contextlib
import selectors
import socket
import threading
from typing import Self
from urllib.parse import urlsplit


class CuttableProxy:
    """Listens on `url` while it is entered."""

    def __init__(self, to_url: str) -> None:
        parts = urlsplit(to_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = (parts.hostname, parts.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._down = False
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start_thread(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Close all connections, and every new one until `restore`."""
        self._down = True
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """Forward connections again."""
        self._down = False

    def _start_thread(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client_side, _ = self._listening.accept()
            except OSError:
                return
            if self._down:
                client_side.close()
                continue
            server_side = socket.create_connection(self._target)
            self._pairs.append((client_side, server_side))
            self._start_thread(_forward, client_side, server_side)


def _forward(client_side: socket.socket, server_side: socket.socket) -> None:
    with selectors.DefaultSelector() as selector, client_side, server_side, contextlib.suppress(OSError):
        selector.register(client_side, selectors.EVENT_READ, server_side)
        selector.register(server_side, selectors.EVENT_READ, client_side)
        while True:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(65_536)
                if not data:
                    return
                key.data.sendall(data)
