"""One client's body does not harm the next client's request behind a proxy with shared connections.

nginx forwards the Upgrade header. HAProxy removes it, and this test notices if it stops doing so.
"""

import contextlib
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest
from testsupport.engines import proxies

from volcano_locks_server.testing import RunningServer, running_server

HIDDEN = b"DELETE /locks/payroll HTTP/1.1\r\nHost: x\r\nX-Swallowed: "
UPGRADES = {
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
}
BODIES = {
    "length": b"Content-Length: %d\r\n\r\n%b" % (len(HIDDEN), HIDDEN),
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with running_server() as one:
        yield one


@pytest.fixture(scope="module", params=[proxies.nginx, proxies.haproxy], ids=["nginx", "haproxy"])
def proxy(running: RunningServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a proxy in front of the server."""
    start: Callable[[str], AbstractContextManager[str]] = request.param
    with start(running.url.removeprefix("http://")) as address:
        yield address


def first_response(address: str, request: bytes) -> bytes:
    """The first response on a new connection."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            head = b"".join(iter(stream.readline, b"\r\n"))
            length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
            return head + stream.read(length)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
def test_a_body_beside_an_upgrade_is_not_a_request(
    running: RunningServer, proxy: str, upgrade: bytes, body: bytes
) -> None:
    """HTTP-26, case 57: a client without a credential cannot turn the next tenant's request into a release."""
    tenant = {"Authorization": f"Bearer {running.service_key}"}
    httpx.delete(f"{running.url}/locks/payroll", headers=tenant)
    lease = {**tenant, "X-Volcano-Lock-Token": str(uuid.uuid4())}
    held = httpx.post(f"{running.url}/locks/payroll/lease", headers=lease, json={"ttl_seconds": 600})
    assert held.status_code == 201
    attack = first_response(proxy, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + upgrade + body)
    assert attack.startswith(b"HTTP/1.1 200 ")
    for _ in range(3):
        mine = httpx.get(f"http://{proxy}/locks/mine", headers=tenant)
        assert (mine.status_code, mine.content) == (200, b'{"held":false}')
    payroll = httpx.get(f"{running.url}/locks/payroll", headers=tenant).json()
    assert payroll["held"]
    assert payroll["fencing_token"] == held.json()["fencing_token"]


@pytest.mark.parametrize("field", [b"Connection: close", b"Proxy-Connection: close", b"X: y"])
def test_a_trailer_field_does_not_take_the_next_response(running: RunningServer, proxy: str, field: bytes) -> None:
    """HTTP-26, case 57: HAProxy passes trailer fields on, and the shared connection serves the next tenant."""
    chunked = b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + field + b"\r\n\r\n"
    assert first_response(proxy, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + chunked).startswith(b"HTTP/1.1 200 ")
    mine = httpx.get(f"http://{proxy}/locks/mine", headers={"Authorization": f"Bearer {running.service_key}"})
    assert mine.status_code == 200


@pytest.mark.parametrize("end", [b"0\r\n\r\n", b""], ids=["complete", "broken off"])
def test_chunks_harm_no_other_client(running: RunningServer, proxy: str, end: bytes) -> None:
    """HTTP-21, HTTP-26: a response before the end of the chunks closes the connection and says so, so that no proxy
    sends the next client's request on it.
    """
    head = b"POST /locks/a/lease HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    tenant = {"Authorization": f"Bearer {running.service_key}"}
    host, _, port = proxy.partition(":")
    with httpx.Client(base_url=f"http://{proxy}", headers=tenant, timeout=30) as honest:
        for count in (1, 100, 200, 1_000, 2_000):
            with socket.create_connection((host, int(port)), timeout=30) as connection:
                connection.sendall(head + b"1\r\na\r\n" * count)
                with contextlib.suppress(OSError):  # the proxy may have closed it
                    connection.sendall(end)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(65_536)
            assert [honest.get("/locks/mine").status_code for _ in range(5)] == [200] * 5
