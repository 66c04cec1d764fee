"""Parsing etcd:// URLs; no message repeats one."""

from pathlib import Path

import pytest

from volcano_locks_server.stores import open_store
from volcano_locks_server.stores.etcd.address import ENDPOINTS_MAX, EtcdAddress
from volcano_locks_server.testing import ManualClock


def test_a_url_has_members_user_prefix_and_tls() -> None:
    assert EtcdAddress.parse("etcd://a") == EtcdAddress(("a:2379",))
    assert EtcdAddress.parse("etcd://a:1,10.0.0.2,[::1]:3,a:1") == EtcdAddress(("a:1", "10.0.0.2:2379", "[::1]:3"))
    assert EtcdAddress.parse("etcd://me:p%40ss%3A%2F@a/one/two-3") == EtcdAddress(
        ("a:2379",), "one/two-3", "me", "p@ss:/"
    )
    assert EtcdAddress.parse("etcd://a?tls=1").tls
    mutual = EtcdAddress.parse("etcd://a?ca=/etc/ca.pem&cert=/etc/c.pem&key=/etc/k.pem")
    assert mutual.tls
    assert (mutual.authority, mutual.certificate, mutual.certificate_key) == (
        Path("/etc/ca.pem"),
        Path("/etc/c.pem"),
        Path("/etc/k.pem"),
    )


@pytest.mark.parametrize(
    "rest",
    [
        "",
        ",a",
        "a,,b",
        "a:0",
        "a:65536",
        "a:x",
        "a b",
        ",".join(f"h{number}" for number in range(ENDPOINTS_MAX + 1)),
        "secret@a",
        "user:@a",
        ":secret@a",
        "a/",
        "a//x",
        "a/x/",
        "a/x y",
        "a?tls=2",
        "a?tls=0&ca=/secret",
        "a?ca=",
        "a?cert=/secret",
        "a?key=/secret",
        "a?user=secret",
        "a?tls=1&tls=1",
        "a?secret",
    ],
)
async def test_an_invalid_url_is_refused_without_being_repeated(rest: str) -> None:
    with pytest.raises(ValueError, match=r"^store must be ") as caught:
        await open_store(f"etcd://{rest}", ManualClock())
    assert "secret" not in str(caught.value)


def test_the_repr_hides_the_password() -> None:
    assert "hush" not in repr(EtcdAddress.parse("etcd://me:hush@a"))
