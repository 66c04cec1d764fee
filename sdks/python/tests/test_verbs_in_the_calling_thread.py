"""The threaded client over sockets of the calling thread: time limits, interrupts, closing, threads, forks, TLS.

All of it is about real sockets and real signals, so time is real here, and short.
"""

import contextlib
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from volcano_locks import AsyncClient, Client, TransportError, VolcanoError
from volcano_locks.http.pool import Address
from volcano_locks.sync import socket_pool

from .conftest import in_a_fork
from .test_over_sockets import GRANTED, Line, header, listening

FREED = b"HTTP/1.1 204 No Content\r\n\r\n"
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.real_time


def state(fencing_token: int) -> bytes:
    body = b'{"held": true, "expires_at": "2026-07-20T14:00:10Z", "fencing_token": %d}' % fencing_token
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Silent:
    """A server that answers no acquire, and everything else; `heads` are the requests it saw."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.asked = threading.Event()
        self.given_back = threading.Event()

    def __call__(self, line: Line, number: int) -> None:
        while head := line.request():
            self.heads.append(head)
            if head.startswith("POST"):
                self.asked.set()
                continue
            line.answer(FREED)
            self.given_back.set()

    def gave_back_what_was_asked_for(self) -> bool:
        assert self.given_back.wait(PATIENCE_SECONDS)
        asked, given_back = self.heads
        return header(asked, "X-Volcano-Lock-Token") == header(given_back, "X-Volcano-Lock-Token")


def test_a_server_that_trickles_is_cut_off_at_the_requests_time() -> None:
    """SDK-4, case 6: each byte comes in time, the answer does not."""

    def serve(line: Line, number: int) -> None:
        line.request()
        for byte in GRANTED:
            line.answer(bytes([byte]))
            time.sleep(0.05)

    with listening(serve) as url, Client(url, "sk-x", timeout_seconds=1) as client:
        began = time.monotonic()
        with pytest.raises(TransportError, match=r"no answer within 1 seconds"):
            client.locks.get("k")
        assert time.monotonic() - began < PATIENCE_SECONDS


@pytest.mark.parametrize("wait", [None, 60])
def test_ctrl_c_during_an_acquire_gives_the_lock_back(wait: float | None) -> None:
    """SDK-2, SDK-11, case 17: whether the server had granted it by then is not known."""
    server = Silent()

    def interrupt() -> None:
        server.asked.wait(PATIENCE_SECONDS)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with listening(server) as url, Client(url, "sk-x") as client:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            client.locks.acquire("k", ttl=30, wait=wait)
        assert server.gave_back_what_was_asked_for()


def test_ctrl_c_while_a_block_waits_gives_its_place_back() -> None:
    """SDK-11, case 17."""
    server = Silent()

    def interrupt() -> None:
        server.asked.wait(PATIENCE_SECONDS)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with listening(server) as url, Client(url, "sk-x") as client:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt), client.locks.with_lock("k", ttl=30, wait=3600):
            pytest.fail("entered")
        assert server.gave_back_what_was_asked_for()


def test_ctrl_c_before_a_release_is_sent_releases_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """case 16: who was interrupted in a release has no second chance to ask for it."""
    heads: list[str] = []

    def serve(line: Line, number: int) -> None:
        while head := line.request():
            heads.append(head)
            line.answer(GRANTED if head.startswith("POST") else FREED)

    def interrupt_once(*_: object) -> bytes:
        monkeypatch.undo()
        raise KeyboardInterrupt

    with listening(serve) as url, Client(url, "sk-x") as client:
        lease = client.locks.acquire("k", ttl=30)
        monkeypatch.setattr(Address, "request", interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            client.locks.release("k", lease)
    assert [head.split()[0] for head in heads] == ["POST", "DELETE"]
    assert header(heads[0], "X-Volcano-Lock-Token") == header(heads[1], "X-Volcano-Lock-Token")


@pytest.mark.parametrize("wait", [None, 60])
def test_closing_a_client_ends_the_verbs_under_way_and_gives_back(wait: float | None) -> None:
    """SDK-2: also those of other threads."""
    server = Silent()
    told: list[BaseException] = []

    with listening(server) as url:
        client = Client(url, "sk-x")

        def acquire() -> None:
            try:
                client.locks.acquire("k", ttl=30, wait=wait)
            except VolcanoError as error:
                told.append(error)

        thread = threading.Thread(target=acquire, daemon=True)
        thread.start()
        assert server.asked.wait(PATIENCE_SECONDS)
        client.close()
        thread.join(PATIENCE_SECONDS)
        assert [str(error) for error in told] == ["this client is closed"]
        assert server.gave_back_what_was_asked_for()
        with pytest.raises(VolcanoError, match="this client is closed"):
            client.locks.get("k")


def test_closing_a_client_ends_the_rests_of_its_waits() -> None:
    """SDK-11: a `Retry-After` of a minute keeps nobody."""
    told: list[str] = []
    asked = threading.Event()

    def serve(line: Line, number: int) -> None:
        while head := line.request():
            busy = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 50\r\nContent-Length: 0\r\n\r\n"
            line.answer(busy if head.startswith("POST") else FREED)
            asked.set()

    with listening(serve) as url:
        client = Client(url, "sk-x")

        def acquire() -> None:
            try:
                client.locks.acquire("k", ttl=30, wait=3600)
            except VolcanoError as error:
                told.append(str(error))

        thread = threading.Thread(target=acquire, daemon=True)
        thread.start()
        assert asked.wait(PATIENCE_SECONDS)
        began = time.monotonic()
        client.close()
        thread.join(PATIENCE_SECONDS)
        assert time.monotonic() - began < 40
        assert told == ["this client is closed"]


def test_threads_do_not_read_each_others_answers() -> None:
    """Each request names its own answer."""

    def serve(line: Line, number: int) -> None:
        while head := line.request():
            line.answer(state(int(head.split()[1].removeprefix("/locks/k"))))

    wrong: list[tuple[int, int | None]] = []

    with listening(serve) as url, Client(url, "sk-x") as client:

        def ask(first: int) -> None:
            for number in range(first, first + 50):
                found = client.locks.get(f"k{number}").fencing_token
                if found != number:
                    wrong.append((number, found))

        threads = [threading.Thread(target=ask, args=(1 + 100 * n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert wrong == []


def test_a_child_opens_connections_of_its_own_and_leaves_the_parents_alone() -> None:
    """case 36."""

    def serve(line: Line, number: int) -> None:
        while line.request():
            line.answer(state(number + 1))

    with listening(serve) as url, Client(url, "sk-x") as client:

        def connection() -> int | None:
            return client.locks.get("k").fencing_token

        assert (connection(), connection()) == (1, 1)
        assert in_a_fork(lambda: f"{connection()} {connection()}") == "2 2"
        assert connection() == 1


def test_a_connection_that_was_closed_meanwhile_is_not_used_again() -> None:
    """case 32: a force release is never sent twice."""
    closed = threading.Event()

    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(FREED)
        line.sock.shutdown(socket.SHUT_RDWR)
        closed.set()

    with listening(serve) as url, Client(url, "sk-x") as client:
        for key in ("a", "b"):
            client.locks.force_release(key)
            assert closed.wait(PATIENCE_SECONDS)
            closed.clear()


def test_a_connection_that_dies_under_a_post_costs_one_retry_with_the_same_ids() -> None:
    """case 32, SDK-1, SDK-2."""
    heads: list[str] = []

    def serve(line: Line, number: int) -> None:
        heads.append(line.request())
        if number == 0:
            line.reset()
        else:
            line.answer(GRANTED)

    with listening(serve) as url, Client(url, "sk-x") as client:
        client.locks.acquire("k", ttl=30)
    assert len(heads) == 2
    for name in ("X-Volcano-Lock-Token", "X-Volcano-Request-Id"):
        assert header(heads[0], name) == header(heads[1], name)


def test_a_server_that_asks_for_time_gets_some() -> None:
    """SDK-2: the rest between two attempts is rested in the calling thread, too."""

    def serve(line: Line, number: int) -> None:
        line.request()
        line.answer(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        line.request()
        line.answer(GRANTED)

    with listening(serve) as url, Client(url, "sk-x") as client:
        began = time.monotonic()
        assert client.locks.acquire("k", ttl=30).fencing_token == 7
        assert time.monotonic() - began >= 0.5


def speaks_tls(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of localhost, and what a server speaks with it."""
    certificate = folder / "both.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost", "-keyout", "-", "-out", "-")
    certificate.write_bytes(subprocess.run([*make.split(), *names], check=True, capture_output=True).stdout)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return certificate, context


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_tls_is_spoken_with_who_is_trusted_and_nobody_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate is its own authority: nobody trusts it but who is told to by SSL_CERT_FILE."""
    certificate, context = speaks_tls(tmp_path)

    def serve(line: Line, number: int) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(line.sock, server_side=True) as encrypted:
            while Line(encrypted).request():
                encrypted.sendall(state(number + 1))

    async def two_reads(url: str) -> list[int | None]:
        if kind == "sync":
            with Client(url, "sk-x") as client:
                return [client.locks.get("k").fencing_token for _ in range(2)]
        async with AsyncClient(url, "sk-x") as asynchronous:
            return [(await asynchronous.locks.get("k")).fencing_token for _ in range(2)]

    with listening(serve) as address:
        url = address.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED") as failed:
            await two_reads(url)
        assert failed.value.request_sent is False
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        used = await two_reads(url)
        assert used[0] == used[1], "the connection is kept"


def test_a_slow_tls_handshake_has_all_the_requests_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the clock now and then does not cut it short; the end of the request's time does."""
    certificate, context = speaks_tls(tmp_path)
    monkeypatch.setattr(socket_pool, "NAP_SECONDS_MAX", 0.05)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    never = threading.Event()

    def serve(line: Line, number: int) -> None:
        if number > 0:
            never.wait(PATIENCE_SECONDS)
        time.sleep(0.3)
        with contextlib.suppress(OSError), context.wrap_socket(line.sock, server_side=True) as encrypted:
            Line(encrypted).request()
            encrypted.sendall(state(1))

    with listening(serve) as address:
        url = address.replace("http://127.0.0.1", "https://localhost")
        with Client(url, "sk-x") as client:
            assert client.locks.get("k").fencing_token == 1
        with Client(url, "sk-x", timeout_seconds=2) as client:
            with pytest.raises(TransportError, match="TLS handshake") as failed:
                client.locks.get("k")
            assert failed.value.request_sent is False
        never.set()


def test_a_client_that_is_forgotten_leaves_no_connection_open() -> None:
    closed = threading.Event()

    def serve(line: Line, number: int) -> None:
        while line.request():
            line.answer(state(1))
        closed.set()

    def use(forget: Callable[[], Client]) -> None:
        forget().locks.get("k")

    with listening(serve) as url:
        use(lambda: Client(url, "sk-x"))
        import gc

        gc.collect()
        assert closed.wait(PATIENCE_SECONDS)
