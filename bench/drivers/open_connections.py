"""Connections that stay open, idle or hostile: `python -m bench.drivers.open_connections`.

Each line on stdin is a command, and all connections stay open until stdin ends:

- `{"idle": 10000}` opens connections, with one request and its response on each.
- `{"hostile": 10000}` opens connections of each kind in turns, and replaces each one that the server closes:

  unread       pipelines requests with long responses, then requests with bodies, and never reads
  half a head  sends a head of almost the longest allowed length, without its end
  half a body  sends a head that announces a body, and the body without its last byte

Each response is the number of connections that are open.
"""

import contextlib
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Final

PORT: Final = int(os.environ["BENCH_PORT"])
SENT_BYTES_MAX: Final = 256 * 1024
HEAD_BYTES: Final = 32_000
BODY_BYTES: Final = 4_096
RECEIVE_BUFFER_BYTES: Final = 4_096
CONNECT_SECONDS_MAX: Final = 10.0
REPLACED_AT_ONCE: Final = 100


def head(method: str, path: str, *fields: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{PORT}", *fields, "", ""]).encode()


def hostile_payloads() -> Iterator[bytes]:
    body = b"x" * BODY_BYTES
    with_body = head("POST", "/locks/a/lease", "Content-Type: application/json", f"Content-Length: {BODY_BYTES}")
    unread = head("GET", "/openapi.json") * 8
    unread += (with_body + body) * ((SENT_BYTES_MAX - len(unread)) // len(with_body + body))
    half_head = head("POST", "/locks/a/lease", *(f"X-Padding-{number}: {'x' * 990}" for number in range(31)))[:-2]
    assert HEAD_BYTES - 1_000 < len(half_head) < HEAD_BYTES
    return cycle([unread, half_head, with_body + body[:-1]])


class OpenConnections:
    """The connections. A thread of its own keeps the hostile ones."""

    def __init__(self) -> None:
        self._idle: Final[list[socket.socket]] = []
        self._hostile: Final[dict[int, tuple[socket.socket, memoryview]]] = {}
        self._epoll: Final = select.epoll()

    def idle(self, count: int) -> int:
        """Open idle connections, one after the other."""
        request = head("GET", "/healthz")
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", PORT), CONNECT_SECONDS_MAX)
            client.sendall(request)
            client.recv(65_536)
            self._idle.append(client)
        return len(self._idle)

    def hostile(self, count: int) -> int:
        """Open hostile connections; returns when all are open, or when the server keeps them from being."""
        threading.Thread(target=self._keep_hostile, args=(count,), daemon=True).start()
        end = time.monotonic() + CONNECT_SECONDS_MAX
        while len(self._hostile) < count and time.monotonic() < end:
            time.sleep(0.1)
        return len(self._hostile)

    def _keep_hostile(self, count: int) -> None:
        payloads = hostile_payloads()
        while True:
            for _ in range(min(REPLACED_AT_ONCE, count - len(self._hostile))):
                self._open_hostile(next(payloads))
            for descriptor, events in self._epoll.poll(0.1):
                client, rest = self._hostile[descriptor]
                if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                    del self._hostile[descriptor]
                    client.close()
                elif events & select.EPOLLOUT:
                    self._send(client, rest)

    def _open_hostile(self, payload: bytes) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", PORT))
        self._epoll.register(client, select.EPOLLOUT | select.EPOLLRDHUP)
        self._hostile[client.fileno()] = (client, memoryview(payload))

    def _send(self, client: socket.socket, rest: memoryview) -> None:
        with contextlib.suppress(OSError):  # the next event shows a closed connection
            rest = rest[client.send(rest) :]
        self._hostile[client.fileno()] = (client, rest)
        if not rest:
            self._epoll.modify(client, select.EPOLLRDHUP)


def main() -> None:
    connections = OpenConnections()
    for line in sys.stdin:
        ((name, count),) = json.loads(line).items()
        print(json.dumps(connections.idle(count) if name == "idle" else connections.hostile(count)), flush=True)
    os._exit(0)  # the system closes thousands of connections faster than this program could


if __name__ == "__main__":
    main()
