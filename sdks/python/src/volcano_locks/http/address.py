"""Where requests of one client go: the server of its API URL, and the proxy before it, if any.

A proxy is taken from `http_proxy`, `https_proxy` or `all_proxy`, in either case of letters, unless `no_proxy` names the
host. Connections to this machine never use one (case 56).
"""

import base64
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import SplitResult, unquote, urlsplit

from volcano_locks.http.response_reader import not_connected

if TYPE_CHECKING:
    import ssl


class OutgoingRequest(NamedTuple):
    """One request below the API URL, ready to send."""

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = b""


class Proxy(NamedTuple):
    """An HTTP proxy. `name` is for people: its URL without a password, and the variable that set it."""

    host: str
    port: int
    name: str
    credentials: bytes = b""

    def __repr__(self) -> str:
        return f"Proxy({self.name})"

    def open_tunnel(self, authority: bytes) -> bytes:
        """The request that opens a tunnel to the server."""
        return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority, authority, self.credentials)


class Address(NamedTuple):
    """The target of an API URL: where to connect, the Host header, and the prefix of every path."""

    host: str
    port: int
    tls: bool
    authority: bytes
    path: str
    proxy: Proxy | None = None

    @classmethod
    def of(cls, api_url: str) -> Self:
        """The address of a URL that `config` has checked."""
        parts = urlsplit(api_url)
        assert parts.hostname is not None
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.netloc.encode(), parts.path, proxy_for(parts))

    @property
    def connect_to(self) -> tuple[str, int]:
        """The host and port of the connection's other end."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    @property
    def tunnel(self) -> bytes | None:
        """The request that opens a tunnel through the proxy; None if there is none. TLS runs inside the tunnel."""
        if self.proxy is None or not self.tls:
            return None
        name = f"[{self.host}]" if ":" in self.host else self.host
        return self.proxy.open_tunnel(f"{name}:{self.port}".encode())

    def encode(self, request: OutgoingRequest) -> bytes:
        """The bytes of a request. Its parts were checked before and are visible ASCII, except the body."""
        target, credentials = (self.path + request.path).encode(), b""
        if self.proxy is not None and not self.tls:
            target, credentials = b"http://" + self.authority + target, self.proxy.credentials
        return b"%b %b HTTP/1.1\r\nHost: %b\r\n%b%bContent-Length: %d\r\n\r\n%b" % (
            request.method.encode(),
            target,
            self.authority,
            credentials,
            b"".join([b"%b: %b\r\n" % pair for pair in request.headers]),
            len(request.body),
            request.body,
        )

    def tls_context(self, ca_file: str | None) -> "ssl.SSLContext | None":
        """Trusts the system's certificates, or those in `ca_file`. None for http://, because loading them is slow.

        Raises `ValueError` if they cannot be loaded.
        """
        if not self.tls:
            return None
        import ssl  # noqa: PLC0415 - slow to load

        try:
            return ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            raise ValueError(f"ca_file {ca_file} cannot be used: {error}") from error

    def check_tunnel(self, status: int) -> None:
        """Raise NotConnectedError if the proxy answered the request for a tunnel with another status than success."""
        if status // 100 != 2:
            raise not_connected(proxy_refusal(status))


def proxy_refusal(status: int) -> str:
    """Why the proxy did not pass a request on."""
    return f"the proxy answered {status}" + (": it wants a user name and a password" if status == 407 else "")


def proxy_for(url: SplitResult) -> Proxy | None:
    """The proxy that the environment (on macOS and Windows, the system) sets for `url`, if any."""
    by_system = sys.platform in {"darwin", "win32"}
    if not by_system and not any(name.lower().endswith("_proxy") and value for name, value in os.environ.items()):
        return None
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - slow to load, and rarely needed

    assert url.hostname is not None
    proxies = getproxies()
    proxy_url = proxies.get(url.scheme) or proxies.get("all")
    if not proxy_url or _is_this_machine(url.hostname) or proxy_bypass(url.netloc) or proxy_bypass(url.hostname):
        return None
    variable = f"{url.scheme}_proxy" if proxies.get(url.scheme) else "all_proxy"
    try:
        parts = urlsplit(proxy_url if "://" in proxy_url else f"http://{proxy_url}")
        port = parts.port or 80
    except ValueError:  # whose text may contain the password
        raise ValueError(f"the proxy set by {variable} is not a URL like http://proxy:3128") from None
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]} (set by {variable})"
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"the proxy {shown} is not supported: its URL must begin with http://")
    return Proxy(parts.hostname, port, shown, _credentials(parts))


def _credentials(parts: SplitResult) -> bytes:
    if parts.username is None:
        return b""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return b"Proxy-Authorization: Basic %b\r\n" % base64.b64encode(pair.encode())


def _is_this_machine(host: str) -> bool:
    from ipaddress import ip_address  # noqa: PLC0415 - see proxy_for

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
