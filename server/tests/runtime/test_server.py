"""Starting and stopping a server: requests in flight complete, new ones are refused, everything is closed."""

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from testsupport.certificates import new_certificate
from testsupport.server_ports import FaultyStore

from volcano_locks_server.http.codec import BODY_BYTES_MAX
from volcano_locks_server.ports.lock_store import RecordKey
from volcano_locks_server.rules.lease import Free
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.runtime import server
from volcano_locks_server.runtime.listen_errors import ListenError
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings, SettingsError
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock, memory_store, running_server, running_server_async

TOKEN = "5b0c3f43-6f3c-4b53-9d3b-0c8f2a1f7f10"


def gated_store() -> FaultyStore:
    """A memory store whose commits wait for the test."""
    store = FaultyStore(MemoryStore(ManualClock()))
    store.gate.clear()
    return store


@pytest.mark.real_time
async def test_a_hanging_store_does_not_keep_the_process_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP-23: a stop is bounded."""
    monkeypatch.setattr(server, "STORE_CLOSE_SECONDS_MAX", 0.05)
    log = io.StringIO()

    async def hang() -> None:
        await asyncio.Event().wait()

    store = replace(memory_store(MemoryStore(ManualClock())), close=hang)
    async with running_server_async(Settings(port=0), store=store, log_stream=log):
        pass
    events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert events == ["started", "stopping", "store_close_cut_short", "stopped"]


async def test_requests_in_flight_are_answered_and_new_ones_get_503() -> None:
    """HTTP-23, OPS-2: new requests get 503, `/readyz` too; the one in flight gets its lease."""
    store = gated_store()
    async with running_server_async(store=memory_store(store)) as running:
        headers = {"Authorization": f"Bearer {running.service_key}", "X-Volcano-Lock-Token": TOKEN}
        async with httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
            await client.get("/healthz")
            in_flight = asyncio.create_task(client.post("/locks/a/lease", json={"ttl_seconds": 30}))
            await asyncio.wait_for(store.entered.acquire(), 30)
            stopping = asyncio.create_task(running.server.close())
            await asyncio.sleep(0)
            for path in ("/locks/b", "/readyz", "/projects"):
                turned_away = await client.get(path)
                assert (turned_away.status_code, turned_away.json()["code"]) == (503, "lock_service_unavailable")
                assert turned_away.headers["retry-after"] == "1"
            assert (await client.get("/healthz")).status_code == 200
            too_long = await client.post("/locks/b/lease", content=b"x" * (BODY_BYTES_MAX + 1))
            assert too_long.status_code == 413  # HTTP-13: the size is checked first
            assert not in_flight.done()
            store.gate.set()
            answer = await asyncio.wait_for(in_flight, 30)
            assert answer.status_code == 201
            await asyncio.wait_for(stopping, 12)
            with pytest.raises(httpx2.TransportError):
                await client.get("/healthz")


async def test_a_client_that_disconnects_during_a_commit_affects_no_other() -> None:
    """HTTP-24: its command may still take effect; the server keeps running."""
    store = gated_store()
    async with running_server_async(store=memory_store(store)) as running:
        headers = {"Authorization": f"Bearer {running.service_key}", "X-Volcano-Lock-Token": TOKEN}
        async with httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
            impatient = asyncio.create_task(client.post("/locks/a/lease", json={"ttl_seconds": 30}))
            await asyncio.wait_for(store.entered.acquire(), 30)
            impatient.cancel()
            await asyncio.wait([impatient])
            store.gate.set()
            assert (await client.get("/locks/a")).json()["held"] is True


async def test_the_last_use_of_keys_is_stored_at_the_stop() -> None:
    """ADMIN-2."""
    clock = ManualClock()
    async with running_server_async(clock=clock) as running, httpx2.AsyncClient(base_url=running.url) as client:
        registry = running.server.store.registry
        await client.get("/locks/a", headers={"Authorization": f"Bearer {running.service_key}"})
    (key,) = (await registry.service_keys(running.project_id, limit=10, cursor=None)).items
    assert key.last_used_at_ms == clock.now_ms()


async def test_a_server_can_be_closed_twice_and_frees_its_port() -> None:
    """HTTP-23."""
    server = Server(Settings(store="memory://", port=0, log_level="error"))
    await server.start()
    url = server.url
    await server.close()
    await server.close()
    port = int(url.rsplit(":", 1)[1])
    async with Server(Settings(store="memory://", port=port, log_level="error")) as again:
        assert again.url == url


async def test_a_port_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port}: .*--port"):
            await Server(Settings(store="memory://", port=port)).start()


@pytest.mark.real_time
async def test_it_serves_tls_with_the_given_files(tmp_path: Path) -> None:
    """With TLS the server may listen on any address; unusable files are reported with their flags."""
    certificate, key = files = new_certificate(tmp_path)
    settings = Settings(
        store="memory://", host="0.0.0.0", port=0, tls_certificate=certificate, tls_key=key, log_level="error"
    )
    async with Server(settings) as server, httpx2.AsyncClient(verify=files.trusting_context()) as client:
        assert server.url.startswith("https://0.0.0.0:")
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert (await client.get(url + "/healthz")).status_code == 200
    key.write_text("no key")
    with pytest.raises(SettingsError, match="--tls-certificate"):
        await Server(settings).start()


async def test_an_unknown_kind_of_store_is_reported() -> None:
    with pytest.raises(SettingsError, match=r"--store.*memory://"):
        await Server(Settings(store="mysql://x", port=0)).start()


def test_a_server_in_a_thread_serves_tests_that_are_not_asynchronous() -> None:
    with running_server() as running, httpx2.Client(base_url=running.url) as client:
        answer = client.get("/locks/a", headers={"Authorization": f"Bearer {running.service_key}"})
        assert answer.json() == {"held": False}
        assert running.service_key not in repr(running)
        assert running.admin_token not in repr(running)


async def test_the_same_object_runs_under_any_asgi_server() -> None:
    """The ASGI lifespan opens and closes the server; a failure to open is reported to the ASGI server."""
    server = Server(Settings(store="memory://", log_level="error"))
    messages = iter(["lifespan.startup", "lifespan.shutdown"])
    events: list[str] = []

    async def receive() -> dict[str, str]:
        if events:
            transport = httpx2.ASGITransport(app=server)
            async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
                events.append(str((await client.get("/readyz")).status_code))
        return {"type": next(messages)}

    async def send(message: dict[str, str]) -> None:
        events.append(message["type"])

    await server({"type": "lifespan"}, receive, send)  # type: ignore[arg-type]
    assert events == ["lifespan.startup.complete", "200", "lifespan.shutdown.complete"]
    broken = Server(Settings(store="mysql://", log_level="error"))
    messages = iter(["lifespan.startup"])
    events.clear()
    await broken({"type": "lifespan"}, receive, send)  # type: ignore[arg-type]
    assert events == ["lifespan.startup.failed"]


async def test_an_issued_key_is_created_once_and_then_gets_new_secrets() -> None:
    async with Server(Settings(store="memory://", port=0, log_level="error")) as server:
        first = await server.issue_service_key("dev", "dev")
        second = await server.issue_service_key("dev", "dev")
        assert (first.project_id, first.key_id) == (second.project_id, second.key_id)
        assert first.secret not in repr(first)
        async with httpx2.AsyncClient(base_url=server.url) as client:
            for secret, status in ((first.secret, 401), (second.secret, 200)):
                answer = await client.get("/locks/a", headers={"Authorization": f"Bearer {secret}"})
                assert answer.status_code == status


async def test_old_records_are_purged_in_portions() -> None:
    """LEASE-13."""
    store = MemoryStore(ManualClock())
    store.records.update({RecordKey("p", LockKey(f"k{number}")): Free(1, 1) for number in range(2_500)})
    server = Server(Settings(log_level="error"), store=memory_store(store))
    await server.open()
    await server.purge()
    assert not store.records
    await server.close()


PROGRAM = """
import asyncio, sys
from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.process import run
from volcano_locks_server.runtime.settings import Settings
async def started(server): print(server.url, flush=True)
run(Server(Settings(store=sys.argv[1], port=0)), started=started)
print("ended", flush=True)
"""


@pytest.mark.real_time
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_gracefully(tmp_path: Path, number: signal.Signals) -> None:
    """HTTP-23, OPS-6: starts and stops are logged, and only the owner can read the stored admin token."""
    database = tmp_path / "locks.db"
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{database}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx2.get(url + "/readyz").status_code == 200
        process.send_signal(number)
        out, log = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "ended\n")
    assert [json.loads(line)["event"] for line in log.splitlines()] == ["started", "stopping", "stopped"]
    token = database.with_name("locks.db.admin-token")
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() not in log
