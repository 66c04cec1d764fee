"""A cluster with authentication: user and password, and certificates on both sides."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from testsupport.engines import etcd
from testsupport.engines.processes import program

from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.stores import open_store
from volcano_locks_server.stores.maintenance import check_health
from volcano_locks_server.testing import ManualClock

from ..signal_recorder import SignalRecorder
from ..store_actions import key, read_records, until_ready, write_records


@pytest.fixture(scope="module")
def guarded() -> Iterator[etcd.Cluster]:
    """A member where `locks` with the password `p@ss` may use the prefix `ours`."""
    with etcd.cluster(1, "--unsafe-no-fsync", "--bcrypt-cost=4") as cluster:
        ask = cluster.members[0].ask
        for name, password in (("root", "rootpass"), ("locks", "p@ss")):
            ask("auth/user/add", name=name, password=password)
            ask("auth/role/add", name=name)
            ask("auth/user/grant", user=name, role=name)
        begin, end = "b3Vycy8=", "b3VyczA="  # ours/ to ours0
        ask("auth/role/grant", name="locks", perm={"permType": "READWRITE", "key": begin, "range_end": end})
        ask("auth/enable")
        yield cluster


async def refusal(url: str) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        await open_store(url, ManualClock())
    assert "p@ss" not in caught.value.message
    assert "127.0.0.1:" in caught.value.message, "CLI-15: it names the member"
    return caught.value.cause_code


async def test_a_node_authenticates_again_when_its_token_is_lost(guarded: etcd.Cluster) -> None:
    """A member forgets its tokens when it restarts."""
    store = await open_store(guarded.url("ours", credentials="locks:p%40ss@"), ManualClock())
    await write_records(store.locks, (key("a"), Free(1, 1)))
    guarded.members[0].kill()
    guarded.start()
    await until_ready(store)
    assert await read_records(store.locks, key("a")) == [Free(1, 1)]
    await store.close()


async def test_signals_resume_when_the_token_is_lost(guarded: etcd.Cluster) -> None:
    stores = [await open_store(guarded.url("ours", credentials="locks:p%40ss@"), ManualClock()) for _ in range(2)]
    one, other = [SignalRecorder(store.signals) for store in stores if store.signals is not None]
    for number in range(2):
        if number:
            guarded.members[0].kill()
            await one.until(lambda: not (one.signals.working or other.signals.working))
            guarded.start()
        await one.until_working()
        await other.until_working()
        other.signals.publish(b"%d" % number)
        await one.until_received(b"%d" % number)
    for store in stores:
        await store.close()


async def test_wrong_credentials_have_their_own_causes(guarded: etcd.Cluster) -> None:
    assert await refusal(guarded.url("ours", credentials="locks:wrong@")) == "etcd_credentials"
    assert await refusal(guarded.url("ours")) == "etcd_credentials"
    assert await refusal(guarded.url("theirs", credentials="locks:p%40ss@")) == "etcd_permission"


async def test_authentication_may_be_switched_on_and_off_under_a_node() -> None:
    """OPS-8: a node with a user in its URL goes on in both cases, and `doctor` says that everyone may write."""
    with etcd.cluster(1, "--unsafe-no-fsync", "--bcrypt-cost=4") as cluster:
        ask = cluster.members[0].ask
        ask("auth/user/add", name="root", password="word")
        ask("auth/user/grant", user="root", role="root")
        url = cluster.url("ours", credentials="root:word@")
        store = await open_store(url, ManualClock())
        await write_records(store.locks, (key("a"), Free(1, 1)))
        findings = [finding for finding in await check_health(url) if not finding.good]
        assert "access" in [finding.about for finding in findings]
        for number in (2, 3):
            ask("auth/enable")
            await write_records(store.locks, (key("a"), Free(number, 1)))
            assert "access" not in [finding.about for finding in await check_health(url) if not finding.good]
            token = ask("auth/authenticate", name="root", password="word")["token"]
            ask("auth/disable", token=token)
            await write_records(store.locks, (key("a"), Free(number, 2)))
        await store.close()


def signed(folder: Path) -> None:
    """Create in `folder` an authority, and a certificate for 127.0.0.1 that both sides use."""
    openssl = program("openssl", "openssl")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ask = [openssl, "req", *curve, "-x509", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"]
    subprocess.run(ask, cwd=folder, check=True, capture_output=True)
    ask = [openssl, "req", *curve[:-2], "-subj", "/CN=us", "-keyout", "us.key", "-out", "us.csr"]
    subprocess.run(ask, cwd=folder, check=True, capture_output=True)
    (folder / "names").write_text("subjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth, clientAuth\n")
    sign = [openssl, "x509", "-req", "-in", "us.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    subprocess.run([*sign, "-extfile", "names", "-out", "us.pem"], cwd=folder, check=True, capture_output=True)


async def test_mutual_tls(tmp_path: Path) -> None:
    signed(tmp_path)
    ca, cert, cert_key = tmp_path / "ca.pem", tmp_path / "us.pem", tmp_path / "us.key"
    words = ["--cert-file", cert, "--key-file", cert_key, "--trusted-ca-file", ca, "--client-cert-auth"]
    with etcd.cluster(1, "--unsafe-no-fsync", *words, scheme="https") as cluster:
        url = cluster.url()
        store = await open_store(f"{url}?ca={ca}&cert={cert}&key={cert_key}", ManualClock())
        await write_records(store.locks, (key("a"), Free(1, 1)))
        await store.close()
        for mode, wrong in ((0o640, ["permissions"]), (0o600, [])):
            cert_key.chmod(mode)
            findings = await check_health(f"{url}?ca={ca}&cert={cert}&key={cert_key}")
            assert [finding.about for finding in findings if not finding.good] == wrong
        for parameters in (f"?ca={ca}", "?tls=1", ""):
            assert await refusal(url + parameters) in ("etcd_unreachable", "etcd_lost")
        with pytest.raises(ValueError, match=r"cannot be read: .*never\.pem"):
            await open_store(f"{url}?ca={tmp_path}/never.pem", ManualClock())
