"""The application under another ASGI server (ADR 20): lock requests work there too."""

import asyncio
import socket

import httpx2
import uvicorn

from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings

from .conftest import ADMIN_TOKEN, new_token


async def test_the_application_runs_under_another_asgi_server() -> None:
    """HTTP-1: with its lifespan, which opens the store and closes it."""
    app = Server(Settings(store="memory://", admin_token=ADMIN_TOKEN, log_level="error"))
    other = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None, ws="none"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        serving = asyncio.create_task(other._serve([bound]))
        async with asyncio.timeout(30):
            while not other.started:
                await asyncio.sleep(0.001)
        issued = await app.issue_service_key("test", "first")
        headers = {"Authorization": f"Bearer {issued.secret}", "X-Volcano-Lock-Token": new_token()}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{bound.getsockname()[1]}", headers=headers) as client:
            acquired = await client.post("/locks/a/lease", json={"ttl_seconds": 30})
            assert acquired.status_code == 201
            assert (await client.get("/locks/a")).json()["fencing_token"] == acquired.json()["fencing_token"]
            assert (await client.delete("/locks/a/lease")).status_code == 204
        other.should_exit = True
        await serving
