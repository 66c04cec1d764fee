"""The pool of blocking sockets: time limits, threads, forks, TLS. Time is real here, because sockets are."""

import contextlib
import gc
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks import AsyncClient, Client, TransportError, clock

from ..helpers import in_a_fork
from ..socket_server import FREED, GRANTED, ServerConnection, header, socket_server
from .test_interrupt_at_every_call import handled_at

PATIENCE_SECONDS = 60

pytestmark = pytest.mark.real_time


def state(fencing_token: int) -> bytes:
    body = b'{"held": true, "expires_at": "2026-07-20T14:00:10Z", "fencing_token": %d}' % fencing_token
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_trickling_server_is_cut_off_at_the_time_limit() -> None:
    """SDK-4, case 6: each byte comes in time, the response does not."""

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        for byte in GRANTED:
            connection.respond(bytes([byte]))
            time.sleep(0.05)

    with socket_server(serve) as url, Client(url, "sk-x", timeout_seconds=1) as client:
        began = time.monotonic()
        with pytest.raises(TransportError, match=r"no response within 1 seconds"):
            client.locks.get("k")
        assert time.monotonic() - began < PATIENCE_SECONDS


def test_threads_do_not_read_each_others_responses() -> None:
    """Each thread gets the response to its own request."""

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            connection.respond(state(int(head.split()[1].removeprefix("/locks/k"))))

    mismatches: list[tuple[int, int | None]] = []

    with socket_server(serve) as url, Client(url, "sk-x") as client:

        def read_states(first: int) -> None:
            for number in range(first, first + 50):
                token = client.locks.get(f"k{number}").fencing_token
                if token != number:
                    mismatches.append((number, token))

        threads = [threading.Thread(target=read_states, args=(1 + 100 * n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert mismatches == []


def test_a_child_opens_its_own_connections() -> None:
    """case 36."""

    def serve(connection: ServerConnection, number: int) -> None:
        while connection.request():
            connection.respond(state(number + 1))

    with socket_server(serve) as url, Client(url, "sk-x") as client:

        def connection() -> int | None:
            return client.locks.get("k").fencing_token

        assert (connection(), connection()) == (1, 1)
        assert in_a_fork(lambda: f"{connection()} {connection()}") == "2 2"
        assert connection() == 1


def test_an_idle_connection_that_was_closed_is_not_reused() -> None:
    """case 32: a force release is never sent twice."""
    closed = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(FREED)
        connection.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    with socket_server(serve) as url, Client(url, "sk-x") as client:
        for key in ("a", "b"):
            client.locks.force_release(key)
            assert closed.wait(PATIENCE_SECONDS)
            closed.clear()


def test_a_reset_connection_costs_one_retry_with_the_same_ids() -> None:
    """case 32, SDK-1, SDK-2."""
    heads: list[str] = []

    def serve(connection: ServerConnection, number: int) -> None:
        heads.append(connection.request())
        if number == 0:
            connection.reset()
        else:
            connection.respond(GRANTED)

    with socket_server(serve) as url, Client(url, "sk-x") as client:
        client.locks.acquire("k", ttl=30)
    assert len(heads) == 2
    for name in ("X-Volcano-Lock-Token", "X-Volcano-Request-Id"):
        assert header(heads[0], name) == header(heads[1], name)


def test_a_503_is_retried_after_a_pause() -> None:
    """SDK-2: the calling thread pauses between two attempts."""

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        connection.respond(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        connection.request()
        connection.respond(GRANTED)

    with socket_server(serve) as url, Client(url, "sk-x") as client:
        began = time.monotonic()
        assert client.locks.acquire("k", ttl=30).fencing_token == 7
        assert time.monotonic() - began >= 0.5


def tls_server(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for localhost, and a server's TLS context with it."""
    certificate = folder / "both.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost", "-keyout", "-", "-out", "-")
    certificate.write_bytes(subprocess.run([*make.split(), *names], check=True, capture_output=True).stdout)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return certificate, context


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_tls_accepts_only_trusted_certificates(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is self-signed, so only SSL_CERT_FILE makes it trusted."""
    certificate, context = tls_server(tmp_path)

    def serve(connection: ServerConnection, number: int) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection.sock, server_side=True) as encrypted:
            while ServerConnection(encrypted).request():
                encrypted.sendall(state(number + 1))

    async def two_reads(url: str) -> list[int | None]:
        if kind == "sync":
            with Client(url, "sk-x") as client:
                return [client.locks.get("k").fencing_token for _ in range(2)]
        async with AsyncClient(url, "sk-x") as asynchronous:
            return [(await asynchronous.locks.get("k")).fencing_token for _ in range(2)]

    with socket_server(serve) as address:
        url = address.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED") as failed:
            await two_reads(url)
        assert failed.value.request_sent is False
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        used = await two_reads(url)
        assert used[0] == used[1], "the connection is kept"


def test_a_slow_tls_handshake_may_take_the_whole_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking the clock during the handshake does not end it; the request's time limit does."""
    certificate, context = tls_server(tmp_path)
    monkeypatch.setattr(clock, "CHECK_SECONDS_MAX", 0.05)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    never = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        if number > 0:
            never.wait(PATIENCE_SECONDS)
        time.sleep(0.3)
        with contextlib.suppress(OSError), context.wrap_socket(connection.sock, server_side=True) as encrypted:
            ServerConnection(encrypted).request()
            encrypted.sendall(state(1))

    with socket_server(serve) as address:
        url = address.replace("http://127.0.0.1", "https://localhost")
        with Client(url, "sk-x") as client:
            assert client.locks.get("k").fencing_token == 1
        with Client(url, "sk-x", timeout_seconds=2) as client:
            with pytest.raises(TransportError, match="cannot connect: the time limit has passed") as failed:
                client.locks.get("k")
            assert failed.value.request_sent is False
        never.set()


def test_a_dropped_client_closes_its_connections() -> None:
    closed = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        while connection.request():
            connection.respond(state(1))
        closed.set()

    def use(forget: Callable[[], Client]) -> None:
        forget().locks.get("k")

    with socket_server(serve) as url:
        use(lambda: Client(url, "sk-x"))
        gc.collect()
        assert closed.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("raised", [TimeoutError, ConnectionResetError])
def test_an_os_error_of_a_handler_is_not_taken_for_one_of_the_socket(
    raised: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-23, case 43: a time limit may well be a `TimeoutError`. Nothing is retried, and the lock is released."""
    heads: list[str] = []

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            heads.append(head.split()[0])
            if head.startswith("POST"):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                continue
            connection.respond(FREED)

    def on_signal(*_: object) -> None:
        raise raised("time is up")

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with (
            socket_server(serve) as url,
            Client(url, "sk-x") as client,
            pytest.raises(raised, match="time is up"),
        ):
            client.locks.acquire("k", ttl=30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heads == ["POST", "DELETE"]


@pytest.mark.parametrize("raised", [TimeoutError, ArithmeticError])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.usefixtures("dropped_sockets")
def test_an_error_of_a_handler_comes_out_at_every_instant_of_a_first_request(
    host: str, raised: type[Exception]
) -> None:
    """SDK-23, case 43: the standard library ignores such an error in some places and replaces it in others."""

    def serve(connection: ServerConnection, number: int) -> None:
        while head := connection.request():
            connection.respond(GRANTED if head.startswith("POST") else FREED)

    def time_limit() -> None:
        raise raised

    with socket_server(serve) as url:
        for number in range(1, 5_000):
            client = Client(url.replace("127.0.0.1", host), "sk-x")
            with contextlib.closing(client):
                came_out = ""
                try:
                    handled = handled_at(number, time_limit, lambda: client.locks.acquire("k", ttl=30))  # noqa: B023
                except Exception as error:
                    came_out, handled = repr(error), True
            if not handled:
                break
            assert came_out == f"{raised.__name__}()", f"at instant {number}"
    assert number > 100
