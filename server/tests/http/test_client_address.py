"""Which address counts as the client's behind proxies (HTTP-30)."""

import io
import json
from collections.abc import Sequence

import httpx2
import pytest

from volcano_locks_server.http.server.client_address import PROXIES_IN_A_ROW_MAX, TrustedProxies
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import running_server_async

from .conftest import new_token

PROXIES = TrustedProxies("10.0.0.0/8, 2001:db8:1::/48,192.0.2.7")
CLIENT = "203.0.113.9"
NAMING_THE_CLIENT = frozenset({"refused", "force_released", "project_created"})


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", CLIENT, CLIENT),
        ("192.0.2.7", CLIENT, CLIENT),
        ("192.0.2.8", CLIENT, "192.0.2.8"),
        ("2001:db8:1::5", CLIENT, CLIENT),
        ("2001:db8:2::5", CLIENT, "2001:db8:2::5"),
        ("::ffff:10.1.2.3", CLIENT, CLIENT),
        ("10.1.2.3", f"198.51.100.1, {CLIENT}", CLIENT),
        ("10.1.2.3", f"198.51.100.1,{CLIENT}, 10.9.9.9,192.0.2.7", CLIENT),
        ("10.1.2.3", f"made up,{CLIENT}", CLIENT),
        ("10.1.2.3", "10.0.0.1,10.0.0.2", "10.0.0.1"),
        ("10.1.2.3", "2001:DB8::9", "2001:db8::9"),
        ("10.1.2.3", "[2001:db8::9]", "2001:db8::9"),
        ("10.1.2.3", "[2001:db8::9]:443", "2001:db8::9"),
        ("10.1.2.3", f"{CLIENT}:443", CLIENT),
        ("10.1.2.3", f"::ffff:{CLIENT}", CLIENT),
        ("10.1.2.3", ",".join([CLIENT, *["10.0.0.1"] * (PROXIES_IN_A_ROW_MAX - 1)]), CLIENT),
        ("10.1.2.3", ",".join([CLIENT, *["10.0.0.1"] * PROXIES_IN_A_ROW_MAX]), "10.1.2.3"),
    ],
)
def test_the_rightmost_address_that_is_no_trusted_proxy(peer: str, forwarded_for: str | None, address: str) -> None:
    """HTTP-30."""
    sent = None if forwarded_for is None else forwarded_for.encode()
    assert PROXIES.client_address(peer, sent) == address


@pytest.mark.parametrize(
    "forwarded_for",
    [
        "", ",", " ", "unknown", "_hidden", "203.0.113", "203.0.113.9.9", "203.0.113.09", "1", f"{CLIENT} x",
        f"{CLIENT},", f"{CLIENT},,10.0.0.1", f"{CLIENT}:", f"{CLIENT}:x", "[2001:db8::9", "2001:db8::9]", "[::1]x",
        f"[{CLIENT}]", "fe80::1%eth0", "\xe9", "\N{ARABIC-INDIC DIGIT ONE}.1.1.1", f'"{CLIENT}"', f"for={CLIENT}",
    ],
)  # fmt: skip
def test_a_malformed_entry_gives_the_address_of_the_proxy(forwarded_for: str) -> None:
    """HTTP-30."""
    assert PROXIES.client_address("10.1.2.3", forwarded_for.encode()) == "10.1.2.3"


def test_no_proxy_is_trusted_by_default() -> None:
    """HTTP-30."""
    assert TrustedProxies().client_address("127.0.0.1", CLIENT.encode()) == "127.0.0.1"


@pytest.mark.parametrize(
    ("trusted", "fields", "address"),
    [
        ("127.0.0.1", [CLIENT], CLIENT),
        ("127.0.0.1", ["198.51.100.1", CLIENT], CLIENT),
        ("127.0.0.1", [CLIENT, "127.0.0.1"], CLIENT),
        ("127.0.0.1", ["x" * 1_000], "127.0.0.1"),
        ("127.0.0.2", [CLIENT], "127.0.0.1"),
        (None, [CLIENT], "127.0.0.1"),
    ],
)
async def test_the_log_has_the_address_of_the_client(trusted: str | None, fields: Sequence[str], address: str) -> None:
    """HTTP-30: also if a proxy sends a second field; a refusal, a force release and an admin change have it."""
    log = io.StringIO()
    token = "an-admin-token-for-tests"
    settings = Settings(store="memory://", port=0, admin_token=token, log_level="debug", trusted_proxies=trusted)
    headers = [("X-Forwarded-For", field) for field in fields]
    running_server = running_server_async(settings, log_stream=log)
    async with running_server as running, httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
        key = {"Authorization": f"Bearer {running.service_key}"}
        assert (await client.get("/locks/a")).status_code == 401
        assert (await client.delete("/locks/a", headers=key)).status_code == 204
        for token, status in ((new_token(), 201), (new_token(), 409)):  # a plain lease request takes the short way
            lease = {**key, "X-Volcano-Lock-Token": token}
            acquired = await client.post("/locks/a/lease", headers=lease, json={"ttl_seconds": 30})
            assert acquired.status_code == status
        admin = {"Authorization": f"Bearer {running.admin_token}"}
        assert (await client.post("/projects", headers=admin, json={"name": "new"})).status_code == 201
    lines = [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] in NAMING_THE_CLIENT]
    assert [line["event"] for line in lines] == ["refused", "force_released", "refused", "project_created"]
    assert {line["address"] for line in lines} == {address}


async def test_trusted_proxies_have_no_limit_of_their_own() -> None:
    """HTTP-29, HTTP-30: a proxy opens connections for all its clients."""
    settings = Settings(
        store="memory://", port=0, log_level="warning", trusted_proxies="127.0.0.1", connections_per_address=1
    )
    running_server = running_server_async(settings)
    async with running_server as running, httpx2.AsyncClient() as first, httpx2.AsyncClient() as second:
        for client in (first, second):
            assert (await client.get(f"{running.url}/healthz")).status_code == 200
        assert running.server.listener.connections == 2
