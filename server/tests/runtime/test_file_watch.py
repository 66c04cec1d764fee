"""A server logs a fault of its store's file once, shows it in its metrics, and is not ready (OPS-9, OPS-11)."""

import io
import json
from pathlib import Path

import httpx2

from volcano_locks_server.http.readiness import PROBES_APART_MS
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.runtime.file_watch import FileWatch
from volcano_locks_server.telemetry import LineWriter, Log
from volcano_locks_server.testing import ManualClock, running_server_async


class FailingFile:
    """A store file that raises `fault`."""

    log_bytes = checkpoint_failures = 7
    fault: StoreUnavailableError | None = None

    async def check(self) -> None:
        if self.fault is not None:
            raise self.fault


async def test_each_fault_is_logged_once_and_its_end_too() -> None:
    """OPS-9, case 71."""
    file, lines = FailingFile(), io.StringIO()
    writer = LineWriter(lines)
    watch = FileWatch(file, Log(writer, "info"))
    failing = StoreUnavailableError("checkpoint_failing", "check the disk")
    for file.fault in (None, failing, failing, StoreUnavailableError("file_replaced", "restore"), None, None):
        await watch.check()
    writer.close()
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["cause"], line.get("message")) for line in logged] == [
        ("store_file_fault", "warning", "checkpoint_failing", "check the disk"),
        ("store_file_fault", "warning", "file_replaced", "restore"),
        ("store_file_recovered", "info", "file_replaced", None),
    ]


async def test_a_replaced_file_ends_readiness_and_grants(tmp_path: Path) -> None:
    """OPS-11, case 72: `cp old.db locks.db` while the server runs."""
    path, clock = tmp_path / "locks.db", ManualClock()
    server = running_server_async(clock=clock, store_url=f"sqlite:///{path}")
    async with server as running, httpx2.AsyncClient() as client:
        metrics = (await client.get(f"{running.url}/metrics")).text
        assert "volcano_locks_checkpoint_failures_total 0.0" in metrics
        assert f"volcano_locks_wal_bytes {float(path.with_name('locks.db-wal').stat().st_size)}" in metrics
        assert (await client.get(f"{running.url}/readyz")).status_code == 200
        path.write_bytes(path.read_bytes())
        clock.advance(PROBES_APART_MS)
        ready = await client.get(f"{running.url}/readyz")
        assert (ready.status_code, "file_replaced" in ready.text) == (503, True)
        headers = {
            "Authorization": f"Bearer {running.service_key}",
            "X-Volcano-Lock-Token": "6f1c2a34-0000-4000-8000-000000000001",
        }
        body = {"ttl_seconds": 30}
        assert (await client.post(f"{running.url}/locks/a/lease", headers=headers, json=body)).status_code == 503
