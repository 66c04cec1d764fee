"""CLI-4: a request without a response names what to change: the address, the proxy, the scheme, the certificates."""

import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import Result

from volcano_locks_server.testing import RunningServer

Invoke = Callable[..., Result]
COMMANDS = pytest.mark.parametrize("command", [("get", "k"), ("project", "list")], ids=["worker", "admin"])


class QuietServer(ThreadingHTTPServer):
    """Does not log failed handshakes, which these tests cause."""

    def handle_error(self, request: object, client_address: object) -> None: ...


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for `localhost` and its key, in one file."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost", "-keyout", "-", "-out", "-")
    file.write_bytes(subprocess.run([*make.split(), *names], check=True, capture_output=True).stdout)
    return file


@pytest.fixture(scope="module")
def tls_port(certificate: Path) -> Iterator[int]:
    """A port of this machine with TLS and that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with QuietServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.daemon_threads = True
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def message_of(result: Result) -> str:
    """The message, without raw text of the TLS library."""
    assert (result.exit_code, result.stdout) == (69, "")
    assert "[SSL" not in result.stderr
    assert "_ssl.c" not in result.stderr
    assert "`volcano-locks dev`" not in result.stderr, "a server is running"
    return result.stderr


@COMMANDS
def test_the_server_does_not_run(invoke: Invoke, command: tuple[str, ...]) -> None:
    found = invoke(*command, "--api-url", "http://127.0.0.1:9")
    assert (found.exit_code, found.stdout) == (69, "")
    assert found.stderr.startswith("volcano-locks: cannot connect to http://127.0.0.1:9: Connection refused\n")
    assert "`volcano-locks dev`" in found.stderr


@COMMANDS
def test_the_name_does_not_exist(invoke: Invoke, command: tuple[str, ...]) -> None:
    found = invoke(*command, "--api-url", "http://locks.invalid")
    assert found.exit_code == 69
    assert found.stderr.startswith("volcano-locks: cannot connect to http://locks.invalid: ")
    assert "Traceback" not in found.stderr


@COMMANDS
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_dead_proxy_is_named(invoke: Invoke, command: tuple[str, ...], scheme: str) -> None:
    """Case 56. Its password is not shown."""
    proxy = {f"{scheme}_proxy": "http://me:secret@127.0.0.1:9"}
    text = message_of(invoke(*command, "--api-url", f"{scheme}://locks.example.com", **proxy))
    assert f"the proxy http://127.0.0.1:9 (set by {scheme}_proxy): Connection refused" in text
    assert "NO_PROXY" in text
    assert "secret" not in text


@COMMANDS
def test_a_proxy_is_not_used_for_this_machine(invoke: Invoke, server: RunningServer, command: tuple[str, ...]) -> None:
    """Case 56."""
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy"), "http://127.0.0.1:9")
    assert invoke(*command, "--api-url", server.url, **proxies).exit_code == 0


@COMMANDS
def test_https_to_a_server_without_tls(invoke: Invoke, server: RunningServer, command: tuple[str, ...]) -> None:
    address = server.url.replace("http://", "https://")
    assert "begins with http://" in message_of(invoke(*command, "--api-url", address))


@COMMANDS
def test_http_to_a_server_with_tls(invoke: Invoke, tls_port: int, command: tuple[str, ...]) -> None:
    assert "begins with https://" in message_of(invoke(*command, "--api-url", f"http://127.0.0.1:{tls_port}"))


@COMMANDS
def test_untrusted_certificate(invoke: Invoke, tls_port: int, command: tuple[str, ...]) -> None:
    text = message_of(invoke(*command, "--api-url", f"https://localhost:{tls_port}"))
    assert "self-signed certificate" in text
    assert "SSL_CERT_FILE" in text


@COMMANDS
def test_certificate_for_another_name(
    invoke: Invoke, tls_port: int, certificate: Path, command: tuple[str, ...]
) -> None:
    """SSL_CERT_FILE makes the certificate trusted, as the previous test's message advises."""
    text = message_of(invoke(*command, "--api-url", f"https://127.0.0.1:{tls_port}", SSL_CERT_FILE=str(certificate)))
    assert "not valid for '127.0.0.1'" in text
    assert "--api-url" in text
    assert "SSL_CERT_FILE" not in text
