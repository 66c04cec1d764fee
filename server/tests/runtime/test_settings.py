"""Where settings come from, and how invalid ones are refused: with name, flag, variable and value."""

from dataclasses import fields
from pathlib import Path

import pytest

from volcano_locks_server.runtime.admin_token import admin_token, token_path
from volcano_locks_server.runtime.settings import SETTINGS, Settings, SettingsError

TOKEN = "0123456789abcdef-token"


def test_the_table_names_every_setting() -> None:
    assert [setting.name for setting in SETTINGS] == [field.name for field in fields(Settings)]


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"VOLCANO_LOCKS_PORT": "7000", "VOLCANO_LOCKS_HOST": "::1", "VOLCANO_LOCKS_LOG_LEVEL": ""}
    settings = Settings.load({"port": "8000", "store": None}, environ)
    assert (settings.port, settings.host, settings.log_level) == (8000, "::1", "info")
    assert Settings.load({}, {}) == Settings()
    assert Settings().port == 7420


def test_every_setting_can_come_from_the_environment() -> None:
    environ = {
        "VOLCANO_LOCKS_STORE": "postgresql://db/locks",
        "VOLCANO_LOCKS_ALLOW_PLAINTEXT_STORE": "true",
        "VOLCANO_LOCKS_HOST": "0.0.0.0",
        "VOLCANO_LOCKS_PORT": "0",
        "VOLCANO_LOCKS_ADMIN_TOKEN": TOKEN,
        "VOLCANO_LOCKS_TLS_CERTIFICATE": "/c.pem",
        "VOLCANO_LOCKS_TLS_KEY": "/k.pem",
        "VOLCANO_LOCKS_BEHIND_PROXY": "yes",
        "VOLCANO_LOCKS_TRUSTED_PROXIES": "10.0.0.0/8, ::1",
        "VOLCANO_LOCKS_CONNECTIONS_PER_ADDRESS": "100",
        "VOLCANO_LOCKS_DASHBOARD": "on",
        "VOLCANO_LOCKS_DASHBOARD_HOSTS": "locks.example.com",
        "VOLCANO_LOCKS_METRICS_TOKEN_FILE": "/metrics.token",
        "VOLCANO_LOCKS_METRICS_PER_PROJECT": "1",
        "VOLCANO_LOCKS_OWNER_RESERVE": "off",
        "VOLCANO_LOCKS_HISTORY_DAYS": "30",
        "VOLCANO_LOCKS_WORKERS": "4",
        "VOLCANO_LOCKS_LOG_LEVEL": "debug",
        "VOLCANO_LOCKS_LOG_GRANTS": "yes",
    }
    assert {setting.variable for setting in SETTINGS} - set(environ) == {"VOLCANO_LOCKS_STORE_URL_FILE"}
    assert Settings.load({}, environ) == Settings(
        store="postgresql://db/locks", host="0.0.0.0", port=0, admin_token=TOKEN, tls_certificate=Path("/c.pem"),
        tls_key=Path("/k.pem"), behind_proxy=True, trusted_proxies="10.0.0.0/8, ::1", connections_per_address=100,
        owner_reserve=False, workers=4, log_level="debug", allow_plaintext_store=True,
        dashboard=True, dashboard_hosts="locks.example.com", metrics_token_file=Path("/metrics.token"),
        metrics_per_project=True, log_grants=True, history_days=30,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "http"), ("port", "65536"), ("port", "-1"), ("port", "7.0"), ("log_level", "loud"),
        ("behind_proxy", "maybe"), ("owner_reserve", "2"), ("tls_certificate", "/c.pem"), ("tls_key", "/k.pem"),
        ("host", "0.0.0.0"), ("host", "locks.example"), ("host", "192.168.0.1"), ("host", "::"),
        ("workers", "0"), ("workers", "65"), ("workers", "many"), ("workers", "2"),
        ("history_days", "-1"), ("history_days", "366"),
        ("connections_per_address", "-1"), ("connections_per_address", "10001"),
        ("trusted_proxies", "10.0.0.1/8"), ("trusted_proxies", "10.0.0.0/8,proxy"), ("trusted_proxies", "10.0.0.1,"),
        ("dashboard_hosts", "https://locks.example"), ("dashboard_hosts", "a.b:80"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_refused_by_name(name: str, value: str) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    with pytest.raises(SettingsError) as refused:
        Settings.load({name: value}, {})
    message = str(refused.value)
    if name.startswith("tls"):
        setting = next(setting for setting in SETTINGS if setting.name.startswith("tls") and setting.name != name)
        value = "nothing"
    for part in (setting.name, setting.flag, setting.variable, value):
        assert part in message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert Settings(host=host).host == host


@pytest.mark.parametrize(
    "token", ["short", "with blanks in the middle", "sk-0123456789abcdef0", "a,b" * 10, "é" * 20, "x" * 257]
)
def test_a_weak_admin_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(SettingsError, match="VOLCANO_LOCKS_ADMIN_TOKEN") as refused:
        Settings(admin_token=token)
    assert token not in str(refused.value)


def test_the_admin_token_is_not_in_the_repr() -> None:
    assert TOKEN not in repr(Settings(admin_token=TOKEN))


def test_a_password_in_the_store_s_url_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(Settings(store="postgresql://me:hunter2@db/locks"))


def test_a_generated_admin_token_is_stored_for_the_next_start(tmp_path: Path) -> None:
    database = tmp_path / "locks.db"
    made = admin_token(Settings(), database)
    path = token_path(database)
    assert path.name == "locks.db.admin-token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert admin_token(Settings(), database) == made
    assert admin_token(Settings(admin_token=TOKEN), database) == TOKEN
    assert admin_token(Settings(), None) != made
    assert sorted(tmp_path.iterdir()) == [path]


def test_an_admin_token_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "locks.db"
    admin_token(Settings(), database)
    token_path(database).chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        admin_token(Settings(), database)


def test_a_file_that_holds_no_token_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "locks.db"
    path = token_path(database)
    path.touch(0o600)
    with pytest.raises(SettingsError, match="holds no token"):
        admin_token(Settings(), database)
    with pytest.raises(SettingsError, match="cannot be used"):
        admin_token(Settings(), tmp_path / "nowhere" / "locks.db")
