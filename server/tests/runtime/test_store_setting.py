"""CLI-37: where the store's URL comes from, and which URLs are refused because they expose something."""

from pathlib import Path

import pytest

from volcano_locks_server.runtime.settings import Settings, SettingsError, read_token
from volcano_locks_server.stores.url_safety import has_password, plaintext_hosts

URL = "postgresql://locks:hunter2@127.0.0.1/locks"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "store.url"
    path.write_text(f"  {URL}\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "postgres://u:p@h/d",
        "postgresql://u:p@h1:1,h2:2/d?sslmode=require",
        "postgresql://h/d?password=p",
        "postgresql://h/d?user=u&sslpassword=p",
        "postgresql://u:p/w@h/d",
        "postgresql://u:p?w@h/d",
        "postgresql://u:p@w@h/d",
        "postgresql://u:%70@h/d",
        "etcd://u:p@h:2379/prefix?tls=1",
    ],
)
def test_a_password_in_a_url_is_found(url: str) -> None:
    assert has_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u@h:5432/d",
        "postgresql://h:5432/d",
        "postgresql://h:5432/d?application_name=a@b:c",
        "postgresql:///d?host=/run/postgresql",
        "postgresql://u:@h/d",
        "postgresql://[::1]:5432/d",
        "postgresql://h/d?password=",
        "etcd://a:2379,b:2379/p",
        "sqlite:///a:b@c.db",
        "memory://",
    ],
)
def test_a_url_without_a_password_passes(url: str) -> None:
    assert not has_password(url)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u@db/locks", ["db"]),
        ("postgresql://u@db:5432/locks?sslmode=prefer", ["db"]),
        ("postgresql://u@db/locks?sslmode=disable", ["db"]),
        ("postgresql://u@127.0.0.1,10.0.0.1:5433/locks", ["10.0.0.1"]),
        ("postgresql://[2001:db8::1]:5432/locks", ["2001:db8::1"]),
        ("postgresql:///locks?host=db,other", ["db", "other"]),
        ("postgresql:///locks?service=main", ["the host of the service file"]),
        ("etcd://a:2379,b:2379/p", ["a", "b"]),
        ("etcd://u:p@a:2379/p?tls=0", ["a"]),
        ("postgresql://u@db/locks?sslmode=require", []),
        ("postgresql://u@db/locks?sslmode=verify-full&sslrootcert=/ca.pem", []),
        ("etcd://a:2379/p?tls=1", []),
        ("etcd://a:2379/p?ca=/ca.pem", []),
        ("etcd://127.0.0.1:2379,[::1]:2379,localhost:2379/p", []),
        ("postgresql://u@localhost/locks", []),
        ("postgresql://u@%2Frun%2Fpostgresql/locks", []),
        ("postgresql:///locks?host=/run/postgresql", []),
        ("postgresql:///locks", []),
        ("sqlite:///locks.db", []),
        ("memory://", []),
    ],
)
def test_hosts_without_tls_are_named(url: str, hosts: list[str]) -> None:
    assert plaintext_hosts(url, {}) == hosts


def test_the_variables_of_the_driver_count() -> None:
    assert plaintext_hosts("postgresql:///locks", {"PGHOST": "db"}) == ["db"]
    assert plaintext_hosts("postgresql:///locks", {"PGSERVICE": "main"}) == ["the host of the service file"]
    assert plaintext_hosts("postgresql://db/locks", {"PGSSLMODE": "verify-full"}) == []
    assert plaintext_hosts("postgresql://db/locks?sslmode=allow", {"PGSSLMODE": "verify-full"}) == ["db"]


def test_a_password_in_an_option_is_refused_and_not_repeated() -> None:
    with pytest.raises(SettingsError, match=r"VOLCANO_LOCKS_STORE.*--store-url-file") as refused:
        Settings.load({"store": URL}, {})
    assert "hunter2" not in str(refused.value)
    assert Settings.load({}, {"VOLCANO_LOCKS_STORE": URL}).store == URL


def test_a_url_in_a_file_is_used(file: Path) -> None:
    assert Settings.load({"store_url_file": str(file)}, {}).store == URL
    assert Settings.load({}, {"VOLCANO_LOCKS_STORE_URL_FILE": str(file)}).store == URL
    assert Settings.load({"store_url_file": str(file)}, {"VOLCANO_LOCKS_STORE": "memory://"}).store == URL
    assert Settings.load({"store": "memory://"}, {"VOLCANO_LOCKS_STORE_URL_FILE": str(file)}).store == "memory://"


@pytest.mark.parametrize("source", ["option", "variable"])
def test_a_url_and_a_file_from_the_same_source_are_refused(file: Path, source: str) -> None:
    flags = {"store": "memory://", "store_url_file": str(file)}
    environ = {"VOLCANO_LOCKS_STORE": "memory://", "VOLCANO_LOCKS_STORE_URL_FILE": str(file)}
    with pytest.raises(SettingsError, match="both name a store"):
        Settings.load(flags if source == "option" else {}, {} if source == "option" else environ)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.chmod(0o604), "every user can read"),
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_text(" \n"), "is empty"),
        (lambda path: path.write_text("x" * 5_000), "more than 4096 bytes"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused(file: Path, change: object, words: str) -> None:
    change(file)  # type: ignore[operator]
    for load in (
        lambda: Settings.load({"store_url_file": str(file)}, {}),
        lambda: read_token("metrics_token_file", file),
    ):
        with pytest.raises(SettingsError, match=words) as refused:
            load()
        assert "hunter2" not in str(refused.value)


def test_a_store_beyond_this_machine_needs_tls_or_a_word() -> None:
    url = "postgresql://locks@db.internal/locks"
    with pytest.raises(SettingsError, match=r"db\.internal without TLS.*sslmode=verify-full.*--allow-plaintext-store"):
        Settings.load({"store": url}, {})
    assert Settings.load({"store": url, "allow_plaintext_store": True}, {}).store == url
    assert Settings.load({"store": url}, {"VOLCANO_LOCKS_ALLOW_PLAINTEXT_STORE": "yes"}).store == url
    assert Settings.load({"store": f"{url}?sslmode=require"}, {}).allow_plaintext_store is False


def test_a_weak_metrics_token_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """OPS-15."""
    path = tmp_path / "token"
    path.write_text("hunter2")
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=r"metrics_token_file.*16 to 256") as refused:
        read_token("metrics_token_file", path)
    assert "hunter2" not in str(refused.value)
    path.write_text("0123456789abcdef\n")
    assert read_token("metrics_token_file", path) == "0123456789abcdef"
