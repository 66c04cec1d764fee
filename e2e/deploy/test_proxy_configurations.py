"""The shipped configurations of nginx and HAProxy, run by the real programs in front of a real server."""

import contextlib
import io
import json
import re
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from testsupport.certificates import CertificateFiles, new_certificate
from testsupport.engines.processes import free_port

from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import RunningServer, running_server

from . import shipped_proxies

NAME = "locks.example.com"
OPERATOR, OUTSIDER = "127.0.0.1", "127.0.0.2"
WAIT_SECONDS_MAX = 60
Start = Callable[[tuple[str, str], CertificateFiles], AbstractContextManager[str]]
PROXIES: dict[str, Start] = {"nginx": shipped_proxies.nginx, "haproxy": shipped_proxies.haproxy}


class Proxied(NamedTuple):
    """A server behind a proxy at `address`."""

    server: RunningServer
    address: str
    certificate: CertificateFiles
    log: io.StringIO

    def client(self, source: str = OUTSIDER, *, bearer: str = "") -> httpx.Client:
        transport = httpx.HTTPTransport(verify=self.certificate.trusting_context(), local_address=source)
        headers = {"Authorization": f"Bearer {bearer or self.server.service_key}"}
        return httpx.Client(base_url=f"https://{self.address}", transport=transport, headers=headers, timeout=90)

    def raw(self, target: str, *, bearer: str = "", host_fields: str = f"Host: {NAME}\r\n") -> bytes:
        """The response to a GET of a target, or with fields, that a client library would change."""
        host, _, port = self.address.partition(":")
        context = self.certificate.trusting_context()
        with (
            socket.create_connection((host, int(port)), timeout=30, source_address=(OUTSIDER, 0)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            head = f"GET {target} HTTP/1.1\r\n{host_fields}Connection: close\r\n"
            if bearer:
                head += f"Authorization: Bearer {bearer}\r\n"
            connection.sendall(f"{head}\r\n".encode())
            parts = []
            with contextlib.suppress(ssl.SSLEOFError):
                while part := connection.recv(65_536):
                    parts.append(part)
            return b"".join(parts)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return new_certificate(tmp_path_factory.mktemp("tls"))


@contextlib.contextmanager
def behind(start: Start, certificate: CertificateFiles, *, second: str = "") -> Iterator[Proxied]:
    log = io.StringIO()
    settings = Settings(
        store="memory://",
        port=0,
        trusted_proxies="127.0.0.1",
        admin_token="admin-token-of-the-test",
        dashboard=True,
        dashboard_hosts=NAME,
    )
    with running_server(settings, log_stream=log) as server:
        node = server.url.removeprefix("http://")
        with start((node, second or node), certificate) as address:
            yield Proxied(server, address, certificate, log)


@pytest.fixture(scope="module", params=PROXIES.values(), ids=PROXIES)
def proxied(request: pytest.FixtureRequest, certificate: CertificateFiles) -> Iterator[Proxied]:
    with behind(request.param, certificate) as one:
        yield one


def hold(client: httpx.Client, key: str) -> httpx.Response:
    headers = {"X-Volcano-Lock-Token": str(uuid.uuid4())}
    return client.post(f"/locks/{key}/lease", headers=headers, json={"ttl_seconds": 600})


def test_lock_requests_pass_with_every_character_of_a_key(proxied: Proxied) -> None:
    with proxied.client() as client:
        for key in ("plain", "reports%3Adaily", "a.b_c-d"):
            assert hold(client, key).status_code == 201
            assert client.get(f"/locks/{key}").json()["held"]
            assert client.delete(f"/locks/{key}").status_code == 204
        keys = {row["key"] for row in client.get("/locks").json()["items"]}
    assert keys >= {"plain", "reports:daily", "a.b_c-d"}


@pytest.mark.parametrize(
    "target",
    [
        "/metrics",
        "/metrics?all=1",
        "/metrics/",
        "//metrics",
        "/./metrics",
        "/locks/../metrics",
        "/%6detrics",
        "/metrics%3f",
        "/metrics#x",
        "https://locks.example.com/metrics",
    ],
)
def test_metrics_are_closed(proxied: Proxied, target: str) -> None:
    response = proxied.raw(target)
    assert response.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ", b"HTTP/1.1 401 "))
    assert b"volcano_locks_" not in response


@pytest.mark.parametrize(
    "target",
    [
        "/projects",
        "/projects?limit=1",
        "/projects/",
        "//projects",
        "/./projects",
        "/locks/../projects",
        "/%70rojects",
        "https://locks.example.com/projects",
    ],
)
def test_the_admin_api_is_closed_to_other_networks(proxied: Proxied, target: str) -> None:
    """Even with the admin token."""
    response = proxied.raw(target, bearer=proxied.server.admin_token)
    assert response.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 404 ", b"HTTP/1.1 400 "))
    assert b'"items"' not in response


@pytest.mark.parametrize(
    ("fields", "is_named"),
    [
        (f"Host: {NAME}\r\n", True),
        (f"Host: {NAME}\r\nHost: evil.example.com\r\n", False),
        (f"Host: evil.example.com\r\nHost: {NAME}\r\n", False),
        ("Host: evil.example.com\r\n", False),
        ("Host: \r\n", False),
        ("", False),
        (f"Host : {NAME}\r\nHost: evil.example.com\r\n", False),
    ],
    ids=["one", "another second", "another first", "another", "empty", "none", "with a blank"],
)
def test_no_host_field_opens_what_is_closed(proxied: Proxied, fields: str, *, is_named: bool) -> None:
    """UI-7, HTTP-6: the dashboard is served under its name alone, also if the target is in absolute form."""
    admin = proxied.server.admin_token
    for origin in ("", f"https://{NAME}", "https://evil.example.com"):
        for closed in ("/metrics", "/projects"):
            response = proxied.raw(origin + closed, bearer=admin, host_fields=fields)
            assert response[9:12] in {b"400", b"403", b"404", b"421"}, (origin, response)
        if not is_named and origin != f"https://{NAME}":
            page = proxied.raw(origin + "/ui/session", host_fields=fields)
            assert page[9:12] in {b"400", b"421"}, (origin, page)
        with proxied.client() as client:
            assert client.get("/locks/next").status_code == 200
    assert proxied.raw("/ui/session").startswith(b"HTTP/1.1 401 ")


def test_every_admin_address_is_closed_to_other_networks(proxied: Proxied) -> None:
    """Those that the server itself refuses to a service key because they need the admin token."""
    with proxied.client() as client:
        paths = [re.sub(r"{\w+}", "x", path) for path in client.get("/openapi.json").json()["paths"]]
    needs_admin = []
    for path in paths:
        for method in ("GET", "POST", "PATCH", "DELETE"):
            headers = {"Authorization": f"Bearer {proxied.server.service_key}"}
            with httpx.stream(
                method, f"{proxied.server.url}{path}", headers=headers
            ) as direct:  # or events without end
                is_refused = direct.status_code == 403 and b"admin_token_required" in direct.read()
            if is_refused:
                needs_admin.append(path)
                with proxied.client(bearer=proxied.server.admin_token) as outsider:
                    assert outsider.request(method, path).status_code == 403, (method, path)
    assert {"/projects", "/admin-tokens", "/backups"} <= set(needs_admin)


def test_the_admin_api_is_open_to_operators(proxied: Proxied) -> None:
    with proxied.client(OPERATOR, bearer=proxied.server.admin_token) as operator:
        assert operator.get("/projects").status_code == 200
        assert operator.post("/projects", json={"name": "made-through-the-proxy"}).status_code == 201


def test_the_log_names_the_client(proxied: Proxied) -> None:
    """HTTP-30."""
    request_id = str(uuid.uuid4())
    with proxied.client(bearer="sk-unknown") as client:
        headers = {"X-Volcano-Request-Id": request_id, "X-Forwarded-For": "198.51.100.1"}
        assert client.get("/locks/a", headers=headers).status_code == 401
    deadline = time.monotonic() + 10
    while request_id not in proxied.log.getvalue():
        assert time.monotonic() < deadline, proxied.log.getvalue()
        time.sleep(0.05)
    lines = [json.loads(line) for line in proxied.log.getvalue().splitlines()]
    assert [line["address"] for line in lines if line.get("request_id") == request_id] == [OUTSIDER]


@pytest.mark.parametrize("proxy", PROXIES)
def test_tls_before_1_2_is_refused(proxy: str) -> None:
    text = shipped_proxies.DEPLOY / {"nginx": "nginx/volcano-locks.conf", "haproxy": "haproxy/haproxy.cfg"}[proxy]
    assert {"nginx": "ssl_protocols TLSv1.2 TLSv1.3;", "haproxy": "ssl-min-ver TLSv1.2"}[proxy] in text.read_text()


@pytest.mark.parametrize("proxy", PROXIES)
def test_requests_go_to_the_other_node_if_one_is_out(proxy: str, certificate: CertificateFiles) -> None:
    with (
        behind(PROXIES[proxy], certificate, second=f"127.0.0.1:{free_port()}") as one,
        one.client() as client,
    ):
        assert [hold(client, f"lock-{number}").status_code for number in range(20)] == [201] * 20


@pytest.mark.real_time
def test_the_longest_wait_and_a_quiet_stream_pass_nginx_and_haproxy(certificate: CertificateFiles) -> None:
    """Both wait without a proxy's time-out; the stream then passes an event on at once."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(behind(start, certificate)) for start in PROXIES.values()]
        outcomes: dict[int, list[object]] = {number: [] for number in range(len(both))}

        def wait(number: int) -> None:
            with both[number].client() as client:
                headers = {"X-Volcano-Lock-Token": str(uuid.uuid4())}
                body = {"ttl_seconds": 30, "wait_seconds": WAIT_SECONDS_MAX}
                began = time.monotonic()
                response = client.post("/locks/held/lease", headers=headers, json=body)
                outcomes[number] += [response.status_code, response.json()["code"], time.monotonic() - began >= 59]

        def follow(number: int) -> None:
            with both[number].client() as client, client.stream("GET", "/locks/watched/events") as response:
                assert response.status_code == 200
                for line in response.iter_lines():
                    if "late" in line:
                        return

        for one in both:
            with one.client() as client:
                assert hold(client, "held").status_code == 201
        waits = [threading.Thread(target=wait, args=(number,)) for number in range(len(both))]
        streams = [threading.Thread(target=follow, args=(number,)) for number in range(len(both))]
        for thread in [*waits, *streams]:
            thread.start()
        for thread in waits:
            thread.join(90)
        assert outcomes == {number: [409, "lock_held", True] for number in range(len(both))}
        for one in both:
            with one.client() as client:
                headers = {"X-Volcano-Lock-Token": str(uuid.uuid4()), "X-Volcano-Lock-Holder": "late"}
                acquired = client.post("/locks/watched/lease", headers=headers, json={"ttl_seconds": 600})
                assert acquired.status_code == 201
        for thread in streams:
            thread.join(10)
        assert not any(thread.is_alive() for thread in streams)


def test_every_configuration_is_tested() -> None:
    found = {path.parent.name for path in Path(shipped_proxies.DEPLOY).glob("*/*") if path.suffix in {".conf", ".cfg"}}
    assert found - {"systemd"} == set(PROXIES)
