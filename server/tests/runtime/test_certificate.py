"""The TLS certificate: what is refused, how it is reloaded, and the warnings before it expires (HTTP-31, OPS-7)."""

import asyncio
import datetime
import io
import json
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from testsupport.certificates import CertificateFiles, new_certificate

from volcano_locks_server.runtime.certificate import DAY_MS, load_certificate
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings, SettingsError
from volcano_locks_server.testing import START_MS, ManualClock

RELOADS = 5


@pytest.fixture
def files(tmp_path: Path) -> CertificateFiles:
    return new_certificate(tmp_path, name="first")


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(files: CertificateFiles, log: io.StringIO, clock: ManualClock) -> AsyncIterator[Server]:
    settings = Settings(store="memory://", port=0, tls_certificate=files.certificate, tls_key=files.key)
    async with Server(settings, clock=clock, log_stream=log) as server:
        yield server


def logged(server: Server, log: io.StringIO, event: str) -> list[dict[str, str]]:
    """The lines of that event; later ones are not written."""
    server.log.writer.close()
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line["event"] == event]


def client_of(server: Server, trusting: ssl.SSLContext) -> httpx2.AsyncClient:
    """A client with connections of its own."""
    return httpx2.AsyncClient(base_url=server.url, verify=trusting)


async def test_a_reload_applies_to_new_handshakes_only(
    server: Server, files: CertificateFiles, log: io.StringIO
) -> None:
    """OPS-7, case 54: an open connection goes on; new ones get the new certificate."""
    old = files.trusting_context()
    async with client_of(server, old) as before, client_of(server, old) as late:
        assert (await before.get("/healthz")).status_code == 200
        new = new_certificate(files.certificate.parent, name="second").trusting_context()
        server.reload_certificate()
        assert (await before.get("/healthz")).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            await late.get("/healthz")
        async with client_of(server, new) as after:
            assert (await after.get("/healthz")).status_code == 200
        assert server.listener.connections == 2
    assert len(logged(server, log, "certificate_reloaded")) == 1


async def test_reloads_interrupt_no_traffic(server: Server, files: CertificateFiles) -> None:
    """OPS-7, case 54: requests on open and on new connections succeed during the reloads."""
    any_certificate = ssl.create_default_context()
    any_certificate.check_hostname, any_certificate.verify_mode = False, ssl.CERT_NONE
    stop = asyncio.Event()

    async def requests_on(new_connections: bool) -> int:
        count = 0
        while not stop.is_set():
            async with client_of(server, any_certificate) as client:
                while not stop.is_set():
                    assert (await client.get("/healthz")).status_code == 200
                    count += 1
                    if new_connections:
                        break
        return count

    traffic = [asyncio.create_task(requests_on(new_connections)) for new_connections in (True, False)]
    for _ in range(RELOADS):
        new = new_certificate(files.certificate.parent)
        server.reload_certificate()
        for _ in range(50):
            await asyncio.sleep(0)
        async with client_of(server, new.trusting_context()) as client:
            assert (await client.get("/healthz")).status_code == 200
    stop.set()
    assert all(count > 0 for count in await asyncio.gather(*traffic))


def make_mismatched(files: CertificateFiles) -> None:
    certificate = files.certificate.read_bytes()
    new_certificate(files.certificate.parent)
    files.certificate.write_bytes(certificate)


def make_encrypted(files: CertificateFiles) -> None:
    command = ["openssl", "pkcs8", "-topk8", "-v2", "aes128", "-passout", "pass:secret", "-in", files.key]
    files.key.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)


BROKEN = {
    "another key": (make_mismatched, "key values mismatch"),
    "no key": (lambda files: files.key.unlink(), "No such file"),
    "not PEM": (lambda files: files.certificate.write_text("none"), "not a certificate chain"),
    "cut off": (lambda files: files.certificate.write_bytes(files.certificate.read_bytes()[:200]), "not a certificate"),
    "readable by all": (lambda files: files.key.chmod(0o644), "mode 0644: run chmod o-r "),
    "encrypted": (make_encrypted, "encrypted"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_files_that_cannot_be_used_are_refused(files: CertificateFiles, broken: str) -> None:
    """HTTP-31: the server does not start, and says why."""
    spoil, why = BROKEN[broken]
    spoil(files)
    with pytest.raises(SettingsError, match=why):
        load_certificate(*files)
    settings = Settings(store="memory://", port=0, tls_certificate=files.certificate, tls_key=files.key)
    with pytest.raises(SettingsError, match="--tls-key"):
        await Server(settings).start()


@pytest.mark.parametrize("broken", BROKEN)
async def test_files_that_cannot_be_used_are_not_reloaded(
    server: Server, files: CertificateFiles, log: io.StringIO, broken: str
) -> None:
    """OPS-7: the server keeps the pair it has, and logs the reason."""
    trusting = files.trusting_context()
    spoil, why = BROKEN[broken]
    spoil(files)
    server.reload_certificate()
    async with client_of(server, trusting) as client:
        assert (await client.get("/healthz")).status_code == 200
    (line,) = logged(server, log, "certificate_not_reloaded")
    assert why in line["why"]


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440, 0o640])
def test_a_key_that_its_group_can_read_is_used(files: CertificateFiles, mode: int) -> None:
    """HTTP-31: Kubernetes gives secrets to a group."""
    files.key.chmod(mode)
    load_certificate(*files)


def expiry(days: float) -> datetime.datetime:
    """An instant that many days after the start of the test's clock."""
    return datetime.datetime.fromtimestamp(START_MS / 1_000, datetime.UTC) + datetime.timedelta(days=days)


class TestExpiry:
    @pytest.fixture
    def files(self, tmp_path: Path) -> CertificateFiles:
        return new_certificate(tmp_path, expires_at=expiry(20.5))

    async def test_it_warns_once_a_day_from_14_days_before(
        self, server: Server, log: io.StringIO, clock: ManualClock
    ) -> None:
        """OPS-7: and goes on after the expiry."""
        for _ in range(22):
            clock.advance(DAY_MS)
            for _ in range(5):
                await asyncio.sleep(0)
        days_left = [line["days_left"] for line in logged(server, log, "certificate_expires_soon")]
        assert days_left == [*range(13, -3, -1)]

    async def test_a_reload_warns_and_a_new_certificate_ends_the_warnings(
        self, server: Server, files: CertificateFiles, log: io.StringIO, clock: ManualClock
    ) -> None:
        """OPS-7."""
        new_certificate(files.certificate.parent, expires_at=expiry(3.5))
        server.reload_certificate()
        new_certificate(files.certificate.parent, expires_at=expiry(90))
        server.reload_certificate()
        clock.advance(2 * DAY_MS)
        for _ in range(5):
            await asyncio.sleep(0)
        (warning,) = logged(server, log, "certificate_expires_soon")
        assert (warning["level"], warning["days_left"]) == ("warning", 3)

    async def test_the_metric_is_the_expiry(self, server: Server) -> None:
        """OPS-7, OPS-3."""
        (line,) = [
            line
            for line in server.metrics.text(0).decode().splitlines()
            if line.startswith("volcano_locks_certificate_expires_")
        ]
        assert float(line.split()[1]) == expiry(20.5).timestamp()


async def test_without_tls_a_reload_is_logged_and_ignored(log: io.StringIO) -> None:
    """OPS-7."""
    async with Server(Settings(store="memory://", port=0), log_stream=log) as server:
        server.reload_certificate()
        assert b"certificate_expires" not in server.metrics.text(0)
        assert len(logged(server, log, "reload_ignored")) == 1
