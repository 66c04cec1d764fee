"""Backups over HTTP: with the admin token, in parts, one at a time (KEEP-9)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from volcano_locks_server.http import backup_routes
from volcano_locks_server.testing import RunningServer, running_server_async


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningServer]:
    async with running_server_async(store_url=f"sqlite:///{tmp_path / 'locks.db'}") as server:
        yield server


@pytest.fixture
async def admin(running: RunningServer) -> AsyncIterator[httpx2.AsyncClient]:
    bearer = {"Authorization": f"Bearer {running.admin_token}"}
    async with httpx2.AsyncClient(base_url=running.url, headers=bearer) as client:
        yield client


async def test_a_backup_is_downloaded_in_parts(
    admin: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """KEEP-9."""
    monkeypatch.setattr(backup_routes, "PART_BYTES", 5_000)
    made = await admin.post("/backups")
    assert made.status_code == 201
    backup = made.json()
    assert backup["part_bytes"] == 5_000
    whole = b""
    while len(whole) < backup["size_bytes"]:
        part = await admin.get(f"/backups/{backup['id']}", params={"offset": len(whole)})
        assert part.headers["content-type"] == "application/octet-stream"
        whole += part.content
    assert len(whole) == backup["size_bytes"]
    assert whole.startswith(b"SQLite format 3\0")
    assert (await admin.delete(f"/backups/{backup['id']}")).status_code == 204
    assert (await admin.get(f"/backups/{backup['id']}")).status_code == 404
    assert not [one for one in tmp_path.iterdir() if "backup" in one.name]


async def test_a_newer_backup_replaces_the_previous_one(admin: httpx2.AsyncClient) -> None:
    """KEEP-9."""
    first, second = [(await admin.post("/backups", json={})).json()["id"] for _ in range(2)]
    assert (await admin.get(f"/backups/{first}")).json()["code"] == "not_found"
    assert (await admin.get(f"/backups/{second}")).status_code == 200


async def test_a_backup_expires_after_the_last_download(
    admin: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEEP-9."""
    monkeypatch.setattr(backup_routes, "KEPT_SECONDS", 0.0)
    made = (await admin.post("/backups")).json()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (await admin.get(f"/backups/{made['id']}")).status_code == 404


@pytest.mark.parametrize("offset", ["-1", "x", "1e3", "٣", "9" * 16, "999999999999999"])
async def test_an_invalid_offset_is_refused(admin: httpx2.AsyncClient, offset: str) -> None:
    made = (await admin.post("/backups")).json()
    response = await admin.get(f"/backups/{made['id']}", params={"offset": offset})
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")


async def test_a_body_with_fields_is_refused(admin: httpx2.AsyncClient) -> None:
    """HTTP-12."""
    response = await admin.post("/backups", json={"path": "/etc/passwd"})
    assert response.json() == {"error": "the body may have no fields; got 'path'", "code": "invalid_request"}


@pytest.mark.parametrize("bearer", ["service key", None])
async def test_backups_need_the_admin_token(running: RunningServer, bearer: str | None) -> None:
    """KEEP-9."""
    headers = {"Authorization": f"Bearer {running.service_key}"} if bearer else {}
    async with httpx2.AsyncClient(base_url=running.url, headers=headers) as client:
        for method, path in (("POST", "/backups"), ("GET", "/backups/x"), ("DELETE", "/backups/x")):
            assert (await client.request(method, path)).status_code == (403 if bearer else 401)
