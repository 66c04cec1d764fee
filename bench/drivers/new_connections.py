"""Thousands of new connections with one request each: `python -m bench.drivers.new_connections`.

It uses epoll directly, so that it costs much less CPU than the server. Each line on stdin is a command:

- `{"first_reads": {"after_seconds": 2, "seconds": 5, "per_second": 50}}` opens connections at that rate, whatever the
  server's speed, and reads a lock on each.
- `{"hold": {"leases": 2500}}` acquires that many leases.
- `{"reconnect": {"leases": 2500, "acquires": 2500}}` opens a connection for each at once; each of the first renews a
  lease of `hold`, the others acquire a lock of their own, in turns.

A response's time is counted from just before its connection was opened. A response that is not a success failed, and so
did one that did not come within RESPONSE_SECONDS_MAX.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple

PORT: Final = int(os.environ["BENCH_PORT"])
SERVICE_KEY: Final = os.environ["BENCH_SERVICE_KEY"]
RESPONSE_SECONDS_MAX: Final = 30.0
OPENED_AT_ONCE: Final = 50
LEASE_TTL_SECONDS: Final = 600


class Response(NamedTuple):
    """The response to one request: its status (0 if there was none), and when it came after the connection began."""

    status: int
    seconds: float


class Clients:
    """Open connections that wait for their responses. `open` does not block."""

    def __init__(self) -> None:
        self.responses: Final[dict[int, Response]] = {}
        self.last_response_at = 0.0
        self._epoll: Final = select.epoll()
        self._waiting: Final[dict[int, tuple[socket.socket, int, bytes, float]]] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def open(self, number: int, request: bytes) -> None:
        """Connect, and send the request once connected. Its response gets this number."""
        began = time.perf_counter()
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", PORT))
        self._epoll.register(client, select.EPOLLOUT)
        self._waiting[client.fileno()] = (client, number, request, began)

    def poll(self, seconds: float) -> None:
        """Send what can be sent and receive what has come, waiting for at most `seconds`."""
        for descriptor, events in self._epoll.poll(seconds):
            client, number, request, began = self._waiting[descriptor]
            try:
                if events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                    client.sendall(request)
                    self._epoll.modify(descriptor, select.EPOLLIN)
                    continue
                received = client.recv(65_536)
            except OSError:
                received = b""
            now = time.perf_counter()
            self.last_response_at = now
            self.responses[number] = Response(int(received[9:12] or 0), now - began)
            del self._waiting[descriptor]
            client.close()

    def finish(self) -> None:
        """Wait for all responses."""
        end = time.perf_counter() + RESPONSE_SECONDS_MAX
        while self._waiting and (remaining := end - time.perf_counter()) > 0:
            self.poll(remaining)
        for client, number, _request, _began in self._waiting.values():
            self.responses[number] = Response(0, RESPONSE_SECONDS_MAX)
            client.close()
        self._waiting.clear()

    def failed(self) -> int:
        return sum(not 200 <= response.status < 300 for response in self.responses.values())


def http_request(method: str, path: str, lease_number: int | None = None) -> bytes:
    head = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{PORT}", f"Authorization: Bearer {SERVICE_KEY}"]
    body = ""
    if lease_number is not None:
        body = json.dumps({"ttl_seconds": LEASE_TTL_SECONDS})
        head += [
            f"X-Volcano-Lock-Token: 10c4ed00-0000-4000-8000-{lease_number:012x}",
            f"X-Volcano-Request-Id: 5e4d0000-0000-4000-8000-{lease_number:012x}",
            "X-Volcano-Lock-Holder: bench/1",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
    return ("\r\n".join(head) + "\r\n\r\n" + body).encode()


def send_at_once(requests: Sequence[bytes]) -> Clients:
    """Open a connection for each request as fast as possible, and wait for the responses."""
    clients = Clients()
    for number, request in enumerate(requests):
        clients.open(number, request)
        if number % OPENED_AT_ONCE == 0:
            clients.poll(0)
    clients.finish()
    return clients


def first_reads(after_seconds: float, seconds: float, per_second: int) -> dict[str, object]:
    clients = Clients()
    began = time.perf_counter() + after_seconds
    for number in range(round(seconds * per_second)):
        while (early := began + number / per_second - time.perf_counter()) > 0:
            clients.poll(early)
        clients.open(number, http_request("GET", f"/locks/first-{number}"))
    clients.finish()
    return {"ms": [one.seconds * 1_000 for one in clients.responses.values()], "failed": clients.failed()}


def hold(leases: int) -> dict[str, object]:
    clients = Clients()
    for number in range(leases):
        clients.open(number, http_request("POST", f"/locks/held-{number}/lease", number))
        while clients.waiting >= OPENED_AT_ONCE:
            clients.poll(1)
    clients.finish()
    return {"failed": clients.failed()}


def reconnect(leases: int, acquires: int) -> dict[str, object]:
    renewals = (http_request("PATCH", f"/locks/held-{number}/lease", number) for number in range(leases))
    others = (http_request("POST", f"/locks/own-{number}/lease", number) for number in range(leases, leases + acquires))
    requests = [one for one in chain.from_iterable(zip_longest(renewals, others)) if one is not None]
    began = time.perf_counter()
    clients = send_at_once(requests)
    return {
        "renewals_ms": [
            response.seconds * 1_000
            for number, response in clients.responses.items()
            if requests[number].startswith(b"PATCH")
        ],
        "last_response_seconds": clients.last_response_at - began,
        "failed": clients.failed(),
    }


def main() -> None:
    commands: dict[str, Any] = {"first_reads": first_reads, "hold": hold, "reconnect": reconnect}
    for line in sys.stdin:
        ((name, arguments),) = json.loads(line).items()
        print(json.dumps(commands[name](**arguments)), flush=True)


if __name__ == "__main__":
    main()
