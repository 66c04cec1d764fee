"""Which error an answer becomes, and where the client finds its server (SDK-8, SDK-9)."""

import copy
import json
import pickle
import subprocess
import sys

import pytest

import volcano_locks
from volcano_locks import AsyncClient, Client, Lease, errors
from volcano_locks.config import Config, default_holder
from volcano_locks.protocol.messages import Answer, refusal_from

RID = "aaaaaaaa-2222-4333-8444-555555555555"


def refusal(status: int, body: bytes, headers: dict[str, str] | None = None) -> errors.VolcanoError:
    return refusal_from(Answer(status, headers or {}, body), request_id=RID)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_ttl", errors.ValidationError),
        (401, "invalid_credentials", errors.AuthenticationError),
        (403, "missing_permission", errors.PermissionDeniedError),
        (404, "not_found", errors.NotFoundError),
        (405, "method_not_allowed", errors.VolcanoError),
        (409, "lock_held", errors.LockHeldError),
        (409, "lock_ownership_lost", errors.LockOwnershipLostError),
        (409, "something_new", errors.ConflictError),
        (413, "request_too_large", errors.ValidationError),
        (429, "lock_rate_limited", errors.RateLimitedError),
        (500, "internal", errors.ServerError),
        (502, None, errors.ServerError),
        (503, "lock_service_unavailable", errors.UnavailableError),
        (302, None, errors.ServerError),
    ],
)
def test_every_refusal_has_its_type_and_its_facts(
    status: int, code: str | None, kind: type[errors.VolcanoError]
) -> None:
    """SDK-9: status, code, retry_after in whole seconds and the request id."""
    error = refusal(status, json.dumps({"error": "why", "code": code}).encode(), {"retry-after": "7"})
    assert type(error) is kind
    assert (str(error), error.status, error.code) == ("why", status, code)
    assert (error.retry_after, type(error.retry_after), error.request_id) == (7, int, RID)


def test_the_kinds_stand_in_the_order_of_the_contract() -> None:
    """SDK-9: catching a kind catches what is beneath it."""
    assert issubclass(errors.LockHeldError, errors.ConflictError)
    assert issubclass(errors.LockOwnershipLostError, errors.ConflictError)
    assert issubclass(errors.UnavailableError, errors.ServerError)
    assert issubclass(errors.PermissionDeniedError, errors.AuthenticationError)
    assert all(
        issubclass(getattr(volcano_locks, name), errors.VolcanoError)
        for name in volcano_locks.__all__
        if name.endswith("Error")
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0), ("007", 7), ("1.5", 2), ("1.0", 1), ("0.001", 1), ("3599.5", 3600), ("9" * 400, 3600), ("0" * 20, 0)],
)
def test_a_retry_after_is_a_whole_number_of_seconds(header: str, seconds: int) -> None:
    """SDK-9: a fraction is rounded up, and a program formats the number as it is."""
    retry_after = refusal(503, b"", {"retry-after": header}).retry_after
    assert (retry_after, type(retry_after)) == (seconds, int)


@pytest.mark.parametrize(
    "retry_after", ["", "-1", "1.", ".5", "1e3", "inf", "soon", "²", "1 2", "Wed, 21 Oct 2026 07:28:00 GMT"]
)
def test_a_retry_after_that_is_no_number_counts_as_not_told(retry_after: str) -> None:
    assert refusal(503, b"", {"retry-after": retry_after}).retry_after is None


def test_a_page_of_a_proxy_is_an_error_without_its_markup() -> None:
    assert str(refusal(502, b"<html>Bad gateway</html>")) == "HTTP 502 without a reason"
    assert str(refusal(500, b'{"error": "a\\u001b[31mb"}')) == "a?[31mb"
    assert len(str(refusal(500, json.dumps({"error": "x" * 10_000}).encode()))) < 400


def test_errors_survive_a_trip_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(refusal(429, b'{"error": "why", "code": "c"}', {"retry-after": "3"})))
    assert (type(error), error.code, error.retry_after) == (errors.RateLimitedError, "c", 3)
    unsent = copy.copy(errors.TransportError("gone", request_sent=False))
    assert unsent.request_sent is False


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_API_URL", "https://from.environment/base/")
    monkeypatch.setenv("VOLCANO_SERVICE_KEY", "sk-environment")
    found = Config.resolve(None, None, 10, None)
    assert (found.api_url, found.service_key) == ("https://from.environment/base", "sk-environment")
    given = Config.resolve("http://given:1", "sk-given", 10, None)
    assert (given.api_url, given.service_key) == ("http://given:1", "sk-given")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_wrong_is_named_by_where_it_came_from(
    kind: type[Client] | type[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLCANO_API_URL", "locks.example.com")
    monkeypatch.setenv("VOLCANO_SERVICE_KEY", "sk two words")
    with pytest.raises(ValueError, match=r"^VOLCANO_API_URL must be like https://.*'locks.example.com'"):
        kind()
    with pytest.raises(ValueError, match=r"^api_url must be like https://"):
        kind("ftp://x")
    with pytest.raises(ValueError, match=r"^VOLCANO_SERVICE_KEY must be visible ASCII"):
        kind("http://x")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_missing_is_named_with_both_ways_to_give_it(
    kind: type[Client] | type[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VOLCANO_API_URL", raising=False)
    monkeypatch.setenv("VOLCANO_SERVICE_KEY", "")
    with pytest.raises(ValueError, match=r"api_url is missing: pass api_url=… or set .* VOLCANO_API_URL"):
        kind()
    with pytest.raises(ValueError, match=r"service_key is missing: .* VOLCANO_SERVICE_KEY"):
        kind("http://localhost")


@pytest.mark.parametrize(
    "url", ["localhost:7420", "ftp://x", "http://", "http://a b", "http://x:port", "http://[::1", "http://x/?q=1", "x"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="api_url"):
        Config.resolve(url, "sk-x", 10, None)


def test_a_password_in_the_address_is_refused_unseen() -> None:
    """SDK-8: neither used nor shown."""
    with pytest.raises(ValueError, match="user name or password") as refused:
        Config.resolve("https://me:hunter2@x", "sk-x", 10, None)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("service_key", ["sk secret", "sk-secret\r\nX-Other: 1", "sk-secrét"])
def test_a_service_key_that_would_break_its_header_is_refused_unseen(service_key: str) -> None:
    """SDK-8: the error does not show it."""
    with pytest.raises(ValueError, match="service_key must be visible ASCII") as refused:
        Client("http://x", service_key)
    assert "secr" not in str(refused.value)


def test_no_repr_shows_the_service_key() -> None:
    """SDK-8."""
    client = Client("http://x", "sk-secret")
    config = Config.resolve("http://x", "sk-secret", 10, None)
    assert "secret" not in repr(client) + repr(client.locks) + repr(config)
    assert repr(AsyncClient("http://x", "sk-secret")) == "AsyncClient('http://x')"


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan")])
def test_a_timeout_must_be_a_time(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout_seconds must be above 0"):
        Client("http://x", "sk-x", timeout_seconds=timeout)


def test_the_holder_is_a_short_visible_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "büro eins" * 50)
    label = default_holder()
    assert len(label) == 128
    assert label.startswith("b-ro-eins")
    for wrong in ("", "two words", "x" * 129):
        with pytest.raises(ValueError, match="holder must be 1 to 128 visible"):
            Client("http://x", "sk-x", holder=wrong)


def test_importing_the_package_and_its_errors_does_not_load_the_http_stack() -> None:
    """A command line that only needs the errors starts fast."""
    code = "import sys, volcano_locks.errors, volcano_locks.protocol.messages; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"httpx2", "httpcore2", "asyncio", "ssl"} & set(loaded)


def test_every_public_name_is_there_and_no_other() -> None:
    assert {name for name in volcano_locks.__all__ if getattr(volcano_locks, name) is None} == set()
    assert set(volcano_locks.__all__) <= set(dir(volcano_locks))
    assert volcano_locks.Lease is Lease
    with pytest.raises(AttributeError, match="no attribute 'Mutex'"):
        _ = volcano_locks.Mutex
