"""From where the dashboard may be used: UI-2, UI-3, UI-7, UI-8, UI-9."""

from typing import Any

import httpx2
import pytest

from volcano_locks_server.http.dashboard_access import DashboardAccess, is_loopback_request
from volcano_locks_server.http.dashboard_headers import with_dashboard_headers
from volcano_locks_server.http.sessions import cookie_secret
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.runtime.settings import Settings, SettingsError
from volcano_locks_server.testing import ManualClock, running_server_async

from .conftest import HttpHarness, problem

SECRET = b"a" * 43


@pytest.fixture
def dashboard() -> bool:
    return True


@pytest.fixture
def over_socket() -> bool:
    return True


def fields(**sent: str) -> dict[bytes, bytes]:
    return {name.replace("_", "-").encode(): value.encode() for name, value in sent.items()}


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:7420", True),
        ("127.0.0.1:7420", True),
        ("127.9.9.9", True),
        ("[::1]:7420", True),
        ("locks.example.com", True),
        ("Locks.Example.com:443", True),
        ("10.1.2.3:7420", True),
        ("evil.example.com", False),
        ("localhost.evil.example.com", False),
        ("127.0.0.1.evil.example.com", False),
        ("locks.example.com.evil.com", False),
        ("0.0.0.0:7420", False),
        ("", False),
        ("[::1", False),
        ("(sent more than once)", False),
        ("localhost" + ":" * 1_000, False),
    ],
)
def test_only_known_names_are_served(host: str, is_allowed: bool) -> None:
    """UI-7."""
    access = DashboardAccess("locks.example.com, 192.0.2.1", "10.1.2.3")
    if is_allowed:
        access.check_host(fields(host=host))
        return
    with pytest.raises(LockError) as caught:
        access.check_host(fields(host=host))
    assert caught.value.code == "host_not_allowed"
    assert "--dashboard-hosts" in caught.value.message


def test_an_unspecified_address_to_listen_on_is_no_name() -> None:
    for address in ("0.0.0.0", "::"):
        with pytest.raises(LockError):
            DashboardAccess("", address).check_host(fields(host=address))


@pytest.mark.parametrize(
    ("sent", "is_allowed"),
    [
        ({}, True),
        ({"origin": "https://locks.example.com"}, True),
        ({"origin": "https://locks.example.com", "sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"origin": "https://public.example.com"}, True),
        ({"origin": "http://locks.example.com:8080"}, False),
        ({"origin": "https://evil.example.com"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "(sent more than once)"}, False),
        ({"origin": "http://["}, False),
        ({"origin": "http://[x]"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site"}, False),
        ({"origin": "https://locks.example.com", "sec_fetch_site": "cross-site"}, False),
    ],
)
def test_a_change_comes_from_the_dashboards_own_page(sent: dict[str, str], is_allowed: bool) -> None:
    """UI-8."""
    access = DashboardAccess("public.example.com", "locks.example.com")
    if is_allowed:
        access.check_origin(fields(host="locks.example.com", **sent))
        return
    with pytest.raises(LockError) as caught:
        access.check_origin(fields(host="locks.example.com", **sent))
    assert caught.value.code == "cross_site_refused"


@pytest.mark.parametrize(
    ("client", "sent", "is_loopback"),
    [
        ("127.0.0.1", {"host": "localhost:7420"}, True),
        ("::1", {"host": "[::1]:7420"}, True),
        ("192.0.2.9", {"host": "localhost"}, False),
        ("127.0.0.1", {"host": "locks.example.com"}, False),
        ("127.0.0.1", {"host": "localhost", "x_forwarded_for": "192.0.2.9"}, False),
        ("127.0.0.1", {"host": "localhost", "x_forwarded_proto": "http"}, False),
        (None, {"host": "localhost"}, False),
    ],
)
def test_a_request_through_a_proxy_is_not_from_this_machine(
    client: str | None, sent: dict[str, str], is_loopback: bool
) -> None:
    """UI-2, UI-3."""
    scope: dict[str, Any] = {"client": None if client is None else (client, 1), "scheme": "http"}
    assert is_loopback_request(scope, fields(**sent)) is is_loopback
    access = DashboardAccess()
    if is_loopback:
        access.check_private(scope, fields(**sent))
    else:
        with pytest.raises(LockError, match="only over TLS"):
            access.check_private(scope, fields(**sent))
        access.check_private({**scope, "scheme": "https"}, fields(**sent))


async def test_on_this_machine_a_form_may_send_the_credential(harness: HttpHarness) -> None:
    """UI-2, UI-3: and the cookie is not Secure."""
    given = {"credential": harness.service_key}
    signed_in = await harness.request("POST", "/ui/session", key=None, json=given)
    assert signed_in.status_code == 200
    assert signed_in.headers["set-cookie"].endswith("; Path=/; Max-Age=28800")
    assert (await harness.request("GET", "/locks", key=None)).status_code == 200
    for sent in ({"X-Forwarded-For": "192.0.2.9"}, {"Host": "locks.test"}, {"X-Forwarded-Proto": "https"}):
        refused = await harness.request("POST", "/ui/session", key=None, json=given, headers=sent)
        assert problem(refused) == (400, "invalid_request")


async def test_only_a_browser_on_this_machine_gets_a_cookie_for_plain_http(harness: HttpHarness) -> None:
    """UI-3: another one signs in by a code, and keeps the cookie if it speaks TLS to a proxy."""
    for sent, ending in (({}, "Max-Age=28800"), ({"X-Forwarded-For": "192.0.2.9"}, "; Secure")):
        code = (await harness.request("POST", "/ui/codes")).json()["code"]
        signed_in = await harness.request("POST", "/ui/session", key=None, json={"code": code}, headers=sent)
        assert signed_in.headers["set-cookie"].endswith(ending)


async def test_an_unknown_credential_is_401(harness: HttpHarness) -> None:
    refused = await harness.request("POST", "/ui/session", key=None, json={"credential": "sk-" + "0" * 43})
    assert problem(refused) == (401, "invalid_credentials")


async def test_another_name_is_refused_before_anything_else(harness: HttpHarness) -> None:
    """UI-7: under /ui always; elsewhere only with the cookie alone."""
    await harness.request("POST", "/ui/session", key=None, json={"credential": harness.service_key})
    other = {"Host": "evil.example.com", "Cookie": f"__Host-volcano_locks_session={SECRET.decode()}"}
    for method, path in (("GET", "/ui"), ("GET", "/ui/session"), ("POST", "/ui/session"), ("GET", "/locks")):
        refused = await harness.request(method, path, key=None, headers=other)
        assert problem(refused) == (421, "host_not_allowed")
    assert (await harness.request("GET", "/locks", headers=other)).status_code == 200


async def test_another_site_signs_no_one_in_or_out(harness: HttpHarness) -> None:
    """UI-8."""
    given = {"credential": harness.service_key}
    other = {"Origin": "https://evil.example.com"}
    refused = await harness.request("POST", "/ui/session", key=None, json=given, headers=other)
    assert problem(refused) == (403, "cross_site_refused")
    await harness.request("POST", "/ui/session", key=None, json=given)
    refused = await harness.request("DELETE", "/ui/session", key=None, headers={"Sec-Fetch-Site": "same-site"})
    assert problem(refused) == (403, "cross_site_refused")
    assert (await harness.request("GET", "/ui/session", key=None)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/ui/nothing", 404),
        ("GET", "/ui/session", 401),
        ("POST", "/ui/session", 400),
        ("PUT", "/ui/session", 405),
        ("GET", "/ui/codes", 405),
        ("DELETE", "/ui/session", 204),
    ],
)
async def test_every_response_under_ui_has_the_headers(
    harness: HttpHarness, method: str, path: str, status: int
) -> None:
    """UI-9."""
    response = await harness.request(method, path, key=None)
    assert response.status_code == status
    assert response.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["cache-control"] == "no-store"


def test_a_file_may_have_its_own_cache_control() -> None:
    """UI-9."""
    sent = with_dashboard_headers([(b"cache-control", b"no-cache")])
    assert [value for name, value in sent if name == b"cache-control"] == [b"no-cache"]


@pytest.mark.parametrize(
    ("host", "cookie", "is_found"),
    [
        ("a.example", "__Host-volcano_locks_session=SECRET", True),
        ("a.example", "a=1; __Host-volcano_locks_session=SECRET; b=2", True),
        ("a.example", "a=1;__Host-volcano_locks_session=SECRET", True),
        ("a.example", "x__Host-volcano_locks_session=1; __Host-volcano_locks_session=SECRET", True),
        ("a.example", "x__Host-volcano_locks_session=SECRET", False),
        ("a.example", "__Host-volcano_locks_session=SECRETa", False),
        ("a.example", "__Host-volcano_locks_session=short", False),
        ("a.example", "__Host-volcano_locks_session=", False),
        ("a.example", "(sent more than once)", False),
        ("a.example", "", False),
        ("a.example:8443", "__Host-volcano_locks_session_8443=SECRET", True),
        ("a.example:8443", "__Host-volcano_locks_session=SECRET", False),
        ("a.example:8443", "__Host-volcano_locks_session_8444=SECRET", False),
        ("a.example", "volcano_locks_session=SECRET", False),
        ("localhost", "volcano_locks_session=SECRET", True),
        ("127.0.0.1:7420", "volcano_locks_session_7420=SECRET", True),
        ("[::1]:7420", "volcano_locks_session_7420=SECRET", True),
        ("[::1]:7420", "__Host-volcano_locks_session_7420=SECRET", True),
        ("127.0.0.1:7420", "volcano_locks_session=SECRET", False),
        ("localhost:7420; a", "volcano_locks_session=SECRET", True),
    ],
)
def test_the_cookie_is_found_among_others(host: str, cookie: str, *, is_found: bool) -> None:
    """UI-3: by its name, which another server on the host has not; without `__Host-` only on this machine."""
    found = cookie_secret(fields(host=host, cookie=cookie.replace("SECRET", SECRET.decode())))
    assert found == (SECRET if is_found else None)


async def test_servers_on_one_host_have_cookies_of_their_own(clock: ManualClock) -> None:
    """UI-3: a browser sends the cookies of a host to all of its ports."""
    settings = Settings(store="memory://", port=0, log_level="error", dashboard=True)
    async with (
        running_server_async(settings, clock=clock) as one,
        running_server_async(settings, clock=clock) as other,
        httpx2.AsyncClient() as browser,
    ):
        for running in (one, other):
            signed_in = await browser.post(f"{running.url}/ui/session", json={"credential": running.service_key})
            assert signed_in.status_code == 200
        for running in (one, other):
            assert (await browser.get(f"{running.url}/ui/session")).status_code == 200


@pytest.mark.parametrize("hosts", ["https://a.example", "a.example:80", "a b", "a.example,", "-a", "a" * 254])
def test_a_host_that_cannot_be_used_is_refused(hosts: str) -> None:
    with pytest.raises(SettingsError, match="dashboard_hosts"):
        Settings(store="memory://", dashboard_hosts=hosts)


@pytest.mark.parametrize("proxies", ["127.0.0.0/8", "192.0.2.0/24"])
async def test_a_trusted_proxy_speaks_for_its_client(proxies: str, clock: ManualClock) -> None:
    """UI-2, UI-3, HTTP-30: another peer cannot say that it speaks TLS."""
    settings = Settings(store="memory://", port=0, log_level="error", dashboard=True, trusted_proxies=proxies)
    async with running_server_async(settings, clock=clock) as running:
        sent = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
        async with httpx2.AsyncClient(base_url=running.url, headers=sent) as client:
            signed_in = await client.post("/ui/session", json={"credential": running.service_key})
            if proxies.startswith("192"):
                assert problem(signed_in) == (400, "invalid_request")
            else:
                assert signed_in.status_code == 200
                assert signed_in.headers["set-cookie"].startswith("__Host-")
                assert signed_in.headers["set-cookie"].endswith("; Secure")
