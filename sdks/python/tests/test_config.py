"""Settings from arguments and environment, checked (SDK-8)."""

import pytest

from volcano_locks import AsyncClient, Client
from volcano_locks.config import Config, default_holder


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLCANO_API_URL", "https://from.environment/base/")
    monkeypatch.setenv("VOLCANO_SERVICE_KEY", "sk-environment")
    from_environment = Config.resolve(None, None, 10, None)
    assert (from_environment.api_url, from_environment.service_key) == (
        "https://from.environment/base",
        "sk-environment",
    )
    from_arguments = Config.resolve("http://given:1", "sk-given", 10, None)
    assert (from_arguments.api_url, from_arguments.service_key) == ("http://given:1", "sk-given")


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_invalid_setting_is_named_by_its_source(
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
def test_only_the_service_key_must_be_set(
    kind: type[Client] | type[AsyncClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDK-25: without an address, the one of `volcano-locks dev`. A missing key is named with both sources."""
    monkeypatch.delenv("VOLCANO_API_URL", raising=False)
    monkeypatch.setenv("VOLCANO_SERVICE_KEY", "sk-environment")
    assert repr(kind()) == f"{kind.__name__}('http://127.0.0.1:7420')"
    monkeypatch.setenv("VOLCANO_API_URL", "")
    assert repr(kind()) == f"{kind.__name__}('http://127.0.0.1:7420')"
    monkeypatch.setenv("VOLCANO_SERVICE_KEY", "")
    with pytest.raises(ValueError, match=r"service_key is missing: .* VOLCANO_SERVICE_KEY"):
        kind()
    with pytest.raises(ValueError, match="api_url must be like"):
        kind("/", "sk-x")


def test_inside_run_the_error_says_why_the_key_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLI-6, case 64: the error names the option that passes the key on."""
    monkeypatch.delenv("VOLCANO_SERVICE_KEY", raising=False)
    monkeypatch.setenv("VOLCANO_LOCK_FENCING_TOKEN", "7")
    with pytest.raises(ValueError, match=r"service_key is missing: .*`volcano-locks run` .* --pass-service-key"):
        Client()
    monkeypatch.delenv("VOLCANO_LOCK_FENCING_TOKEN")
    with pytest.raises(ValueError, match="service_key is missing") as outside:
        Client()
    assert "--pass-service-key" not in str(outside.value)


@pytest.mark.parametrize(
    "url", ["localhost:7420", "ftp://x", "http://", "http://a b", "http://x:port", "http://[::1", "http://x/?q=1", "x"]
)
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="api_url"):
        Config.resolve(url, "sk-x", 10, None)


def test_a_password_in_the_url_is_refused_and_not_shown() -> None:
    """SDK-8: the password is neither used nor shown."""
    with pytest.raises(ValueError, match="user name or password") as refused:
        Config.resolve("https://me:hunter2@x", "sk-x", 10, None)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("service_key", ["sk secret", "sk-secret\r\nX-Other: 1", "sk-secrét"])
def test_a_service_key_that_would_break_its_header_is_refused_and_not_shown(service_key: str) -> None:
    """SDK-8: the error does not show the key."""
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
def test_a_timeout_must_be_positive_and_finite(timeout: float) -> None:
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
