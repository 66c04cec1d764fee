"""A scripted server over real sockets: it can close, trickle, stay silent or send anything."""

import contextlib
import itertools
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

FREED = b"HTTP/1.1 204 No Content\r\n\r\n"


GRANT = b'{"expires_at": "2026-07-20T14:00:10.123Z", "fencing_token": 7}'


GRANTED = b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s" % (len(GRANT), GRANT)


class ServerConnection:
    """One accepted connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def request(self) -> str:
        """The head of the next request; empty at the end of the connection."""
        head = self.head()
        length = int(header(head, "content-length")) if "content-length:" in head.lower() else 0
        while length:
            length -= len(self.sock.recv(length))
        return head

    def head(self) -> str:
        """As `request`, with the body left unread."""
        head = b""
        while b"\r\n\r\n" not in head:
            with contextlib.suppress(ConnectionError):
                if piece := self.sock.recv(1):
                    head += piece
                    continue
            return ""
        return head.decode()

    def respond(self, raw: bytes) -> None:
        self.sock.sendall(raw)

    def reset(self) -> None:
        """Close the connection so that the client sees ECONNRESET."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@contextlib.contextmanager
def socket_server(serve: Callable[[ServerConnection, int], None], host: str = "127.0.0.1") -> Iterator[str]:
    """Call `serve(connection, n)` for the n-th connection, in a thread of its own; yield the URL."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    stopped = threading.Event()

    def accept() -> None:
        for number in itertools.count():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=handle, args=(sock, number), daemon=True).start()

    def handle(sock: socket.socket, number: int) -> None:
        with sock, contextlib.suppress(OSError):
            serve(ServerConnection(sock), number)
            stopped.wait(20)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        stopped.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def certificate_for(folder: Path, name: str) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for `name`, and a server's TLS context with it."""
    certificate = folder / f"{name}.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -keyout - -out - -subj"
    names = (f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
    certificate.write_bytes(subprocess.run([*make.split(), *names], check=True, capture_output=True).stdout)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return certificate, context


def header(head: str, name: str) -> str:
    return next(line.split(": ", 1)[1] for line in head.split("\r\n") if line.lower().startswith(name.lower()))
