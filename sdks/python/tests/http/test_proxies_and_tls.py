"""Proxies and TLS, with both clients and a real proxy. Only the proxy finds `locks.test`."""

import base64
import contextlib
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from volcano_locks import AsyncClient, Client, Leadership, TransportError, VolcanoError
from volcano_locks.http.address import Address, proxy_for
from volcano_locks.testing import FakeLocks

from ..client_targets import AsyncTarget, SyncTarget, Target
from ..conftest import handler_of, serve_http
from ..socket_server import ServerConnection, certificate_for, header, socket_server

both = pytest.mark.parametrize("kind", [Client, AsyncClient])
Kind = type[Client] | type[AsyncClient]
CREDENTIALS = "me:hunter%202@"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy is set but the test's own."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@contextlib.asynccontextmanager
async def target_at(kind: Kind, url: str, ca_file: Path | None = None) -> AsyncIterator[Target]:
    client = kind(url, "sk-secret", ca_file=ca_file)
    target: Target = SyncTarget(client) if isinstance(client, Client) else AsyncTarget(client)
    try:
        yield target
    finally:
        await target.close()


class Proxy:
    """Connects every request to this machine, whatever its host. `refusal`: what it answers instead."""

    def __init__(self, refusal: bytes | None = None) -> None:
        self.heads: list[str] = []
        self.refusal = refusal

    def __call__(self, connection: ServerConnection, number: int) -> None:
        head = connection.head()
        self.heads.append(head)
        if self.refusal is not None:
            connection.respond(self.refusal)
            connection.sock.shutdown(socket.SHUT_WR)
            connection.sock.recv(65_536)
            return
        method, target, _ = head.split(" ", 2)
        port = urlsplit(f"//{target}" if method == "CONNECT" else target).port
        with socket.create_connection(("127.0.0.1", port or 0)) as upstream:
            if method == "CONNECT":
                connection.respond(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream.sendall(head.encode())
            back = threading.Thread(target=copy, args=(upstream, connection.sock), daemon=True)
            back.start()
            copy(connection.sock, upstream)
            back.join(20)


def copy(source: socket.socket, to: socket.socket) -> None:
    """Copy to the end of `source`."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            to.sendall(data)
        to.shutdown(socket.SHUT_WR)


@pytest.fixture
def dead_proxy() -> str:
    """A proxy that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture
def tls_url(server: FakeLocks, folder: Path) -> Iterator[tuple[str, Path]]:
    """The URL of the fake's locks over TLS as `locks.test`, and the certificate."""
    certificate, tls = certificate_for(folder, "locks.test")
    with serve_http(handler_of(server), tls) as url:
        yield url.replace("127.0.0.1", "locks.test"), certificate


async def use(target: Target) -> None:
    """Send each kind of request."""
    async with target.hold("k"):
        assert (await target.view("k")).held
    changes = target.watched("k")
    assert await anext(changes) == Leadership(False)
    await changes.aclose()  # type: ignore[attr-defined]


@both
@pytest.mark.parametrize("variable", ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"])
async def test_tls_runs_in_a_tunnel_through_the_proxy(
    kind: Kind, variable: str, tls_url: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-8: the proxy gets its own credentials, and neither key nor token. One tunnel serves many requests."""
    url, certificate = tls_url
    proxy = Proxy()
    with socket_server(proxy) as proxy_url:
        monkeypatch.setenv(variable, proxy_url.replace("//", f"//{CREDENTIALS}"))
        async with target_at(kind, url, certificate) as target:
            await use(target)
    authority = url.removeprefix("https://")
    assert len(proxy.heads) == 2, "one for the requests, one for the watch"
    for head in proxy.heads:
        assert head.startswith(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n")
        assert header(head, "Proxy-Authorization") == f"Basic {base64.b64encode(b'me:hunter 2').decode()}"
        assert "sk-secret" not in head


@both
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
async def test_plain_http_is_sent_to_the_proxy(
    kind: Kind, variable: str, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy()
    url = server_url.replace("127.0.0.1", "locks.test")
    with socket_server(proxy) as proxy_url:
        monkeypatch.setenv(variable, proxy_url.replace("http://", CREDENTIALS))
        async with target_at(kind, url) as target:
            await use(target)
    assert proxy.heads[0].startswith(f"POST {url}/locks/k/lease HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\n")
    assert header(proxy.heads[0], "Proxy-Authorization").startswith("Basic ")


@both
async def test_a_server_on_this_machine_needs_no_proxy(
    kind: Kind, server_url: str, dead_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 56: the proxy is set and dead."""
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(variable, dead_proxy)
    for url in (server_url, server_url.replace("127.0.0.1", "localhost")):
        async with target_at(kind, url) as target:
            await use(target)


@pytest.mark.parametrize(
    ("host", "no_proxy", "proxied"),
    [
        *(("127.0.0.1", "", False), ("127.1.2.3", "", False), ("[::1]", "", False)),
        *(("localhost", "", False), ("a.localhost", "", False)),
        *(("locks.test", "", True), ("10.1.2.3", "", True), ("[2001:db8::1]", "", True), ("notlocalhost", "", True)),
        *(("[2001:db8::1]", "2001:db8::1", False), ("[2001:db8::1]", "[2001:db8::1]", False)),
        *(("locks.test", "locks.test", False), ("locks.test", "other, .TEST", False), ("locks.test", "*", False)),
        *(
            ("locks.test", "s.test", True),
            ("locks.test", "locks.test:7420", False),
            ("locks.test", "locks.test:1", True),
        ),
    ],
)
def test_which_hosts_need_no_proxy(host: str, no_proxy: str, proxied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """case 56: NO_PROXY names hosts, domains and ports; this machine is never proxied."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    proxy = proxy_for(urlsplit(f"http://{host}:7420"))
    assert (proxy is not None) is proxied
    assert proxy_for(urlsplit(f"https://{host}:7420")) is None, "HTTP_PROXY is for http only"


@both
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_error_names_the_proxy_without_its_password(
    kind: Kind, scheme: str, dead_proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-8, case 56: nothing was sent."""
    monkeypatch.setenv(f"{scheme}_proxy", f"http://{CREDENTIALS}{dead_proxy}")
    async with target_at(kind, f"{scheme}://locks.test") as target:
        with pytest.raises(TransportError, match="cannot connect: Connection") as failed:
            await target.acquire("k", ttl=30)
    assert f"(through the proxy http://{dead_proxy} (set by {scheme}_proxy))" in str(failed.value)
    assert "hunter" not in repr(failed.value) + repr(Address.of(f"{scheme}://locks.test"))
    assert failed.value.request_sent is False


REFUSALS = [
    (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "answered 407: it wants a user name"),
    (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "the proxy answered 502"),
    (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "the response is not HTTP"),
    (b"", "closed before the response was complete"),
]


@both
@pytest.mark.parametrize(("refusal", "reason"), REFUSALS)
async def test_a_tunnel_that_the_proxy_refuses_is_an_error(
    kind: Kind, refusal: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 56: the error names the proxy, and nothing was sent."""
    proxy = Proxy(refusal)
    with socket_server(proxy) as proxy_url:
        monkeypatch.setenv("https_proxy", proxy_url)
        async with target_at(kind, "https://locks.test") as target:
            with pytest.raises(TransportError, match=f"{reason}.*through the proxy {proxy_url}") as failed:
                await target.acquire("k", ttl=30)
    assert failed.value.request_sent is False
    assert [head.split()[0] for head in proxy.heads] == ["CONNECT", "CONNECT"]


@both
async def test_a_proxy_that_wants_a_password_is_named_for_http_too(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """case 56: the proxy answers in place of the server, which is final."""
    with socket_server(Proxy(REFUSALS[0][0])) as proxy_url:
        monkeypatch.setenv("http_proxy", proxy_url)
        async with target_at(kind, "http://locks.test") as target:
            with pytest.raises(VolcanoError, match=f"answered 407: it wants a user .*the proxy {proxy_url}") as failed:
                await target.acquire("k", ttl=30)
            with pytest.raises(VolcanoError, match="through the proxy"):
                await anext(target.watched("k"))
    assert failed.value.status == 407


@both
@pytest.mark.parametrize("proxy", ["socks5://me:hunter2@proxy.test:1", "https://me:hunter2@proxy.test", "http://:3128"])
def test_an_unsupported_proxy_is_refused(kind: Kind, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-8: when the client is created, by the variable's name and without the password."""
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(ValueError, match=r"^the proxy .*\(set by http_proxy\) is not supported") as refused:
        kind("http://locks.test", "sk-x")
    assert "hunter2" not in str(refused.value)
    kind("http://localhost:1", "sk-x")


@pytest.mark.parametrize(
    "proxy",
    ["http://me:hunter2@proxy.test:port", "http://me:hunter2@[::1", "http://me:hunter2/3@p", "me:hunter2?x@p:3128"],
)
def test_a_malformed_proxy_is_refused_by_its_name(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-8."""
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(ValueError, match=r"set by https_proxy") as refused:
        Client("https://locks.test", "sk-x")
    assert "hunter2" not in str(refused.value)


def test_an_ipv6_address_is_written_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://[2001:db8::9]:3128")
    address = Address.of("https://[2001:db8::1]/path")
    assert address.tunnel is not None
    assert address.tunnel.startswith(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n")
    assert address.connect_to == ("2001:db8::9", 3128)
    monkeypatch.delenv("HTTPS_PROXY")
    assert Address.of("https://[2001:db8::1]").connect_to == ("2001:db8::1", 443)


@both
async def test_a_given_ca_is_trusted_and_no_other(kind: Kind, server: FakeLocks, folder: Path) -> None:
    """A certificate of another authority, or for another name, is refused before anything is sent."""
    certificate, tls = certificate_for(folder, "localhost")
    other, _ = certificate_for(folder, "other.test")
    with serve_http(handler_of(server), tls) as url:
        named = url.replace("127.0.0.1", "localhost")
        async with target_at(kind, named, certificate) as target:
            await use(target)
        for ca_file, at in ((None, named), (other, named), (certificate, url)):
            async with target_at(kind, at, ca_file) as target:
                with pytest.raises(TransportError, match="cannot connect: SSLCertVerificationError") as failed:
                    await target.acquire("k", ttl=30)
            assert failed.value.request_sent is False


@both
async def test_the_certificate_is_checked_inside_a_tunnel(
    kind: Kind, tls_url: tuple[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the proxy could read the service key."""
    other, _ = certificate_for(folder, "other.test")
    with socket_server(Proxy()) as proxy_url:
        monkeypatch.setenv("https_proxy", proxy_url)
        async with target_at(kind, tls_url[0], other) as target:
            with pytest.raises(TransportError, match=r"SSLCertVerificationError.*through the proxy"):
                await target.acquire("k", ttl=30)


@both
def test_a_ca_file_that_cannot_be_read_is_refused(kind: Kind, tmp_path: Path) -> None:
    """When the client is created, by its name."""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for ca_file in (tmp_path / "missing.pem", empty):
        with pytest.raises(ValueError, match=re.escape(f"ca_file {ca_file} cannot be used: ")):
            kind("https://locks.test", "sk-x", ca_file=ca_file)
