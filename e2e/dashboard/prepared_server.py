"""A server with the dashboard, its keys, and a project with many locks."""

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2 as httpx

from volcano_locks_server.ports.clock import SystemClock
from volcano_locks_server.ports.lock_store import RecordKey, Records, StepResult
from volcano_locks_server.rules.lease import Held
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.runtime.issue_service_key import IssuedKey, issue_service_key
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.stores import open_store
from volcano_locks_server.testing import RunningServer, running_server

MANY: Final = int(os.environ.get("DASHBOARD_LOCKS", "20000"))
"""Locks in the long list. DASHBOARD_LOCKS=100000 takes 15 s on an idle machine, and minutes on a busy one."""
BATCH: Final = 5_000


@dataclass(frozen=True, slots=True)
class PreparedServer:
    """`operator` and `reader` are service keys of one project, `many` is one of a project with MANY held locks."""

    running: RunningServer
    operator: str = field(repr=False)
    reader: str = field(repr=False)
    many: str = field(repr=False)

    @property
    def url(self) -> str:
        return self.running.url

    def admin(self) -> httpx.Client:
        """A client with the admin token."""
        return _client(self.url, self.running.admin_token)

    def worker(self) -> "Worker":
        return Worker(self.url, self.operator)


class Worker:
    """Acquires and releases locks as a worker does, with one owner token for each."""

    def __init__(self, url: str, service_key: str) -> None:
        self._client: Final = _client(url, service_key)
        self._tokens: Final[dict[str, str]] = {}

    def acquire(self, key: str, *, holder: str = "web-1:4711", ttl_seconds: int = 60) -> int:
        """Returns the fencing token."""
        self._tokens[key] = str(uuid.uuid4())
        headers = {"X-Volcano-Lock-Token": self._tokens[key], "X-Volcano-Lock-Holder": holder}
        response = self._client.post(f"/locks/{key}/lease", json={"ttl_seconds": ttl_seconds}, headers=headers)
        token: int = response.raise_for_status().json()["fencing_token"]
        return token

    def renew(self, key: str) -> None:
        headers = {"X-Volcano-Lock-Token": self._tokens[key]}
        self._client.patch(f"/locks/{key}/lease", json={"ttl_seconds": 60}, headers=headers).raise_for_status()

    def release(self, key: str) -> None:
        headers = {"X-Volcano-Lock-Token": self._tokens.pop(key)}
        self._client.delete(f"/locks/{key}/lease", headers=headers).raise_for_status()

    def force_release(self, key: str) -> None:
        self._client.delete(f"/locks/{key}").raise_for_status()

    def is_held(self, key: str) -> bool:
        return bool(self._client.get(f"/locks/{key}").raise_for_status().json()["held"])

    def close(self) -> None:
        for key in list(self._tokens):
            self._client.delete(f"/locks/{key}")
        self._client.close()


@contextmanager
def prepared_server(directory: Path) -> Iterator[PreparedServer]:
    """The server, on a SQLite file in `directory`."""
    store = f"sqlite:///{directory}/locks.db"
    many = asyncio.run(_fill(store))
    settings = Settings(store=store, port=0, log_level="warning", dashboard=True)
    with running_server(settings) as running:
        admin = _client(running.url, running.admin_token)
        with admin:
            admin.patch(f"/projects/{running.project_id}", json={"requests_per_minute": 0}).raise_for_status()
            keys = [_new_key(admin, running.project_id, *one) for one in (("operator", "*"), ("reader", "locks.read"))]
        yield PreparedServer(running, *keys, many.secret)


def _new_key(admin: httpx.Client, project_id: str, name: str, permission: str) -> str:
    body = {"name": name, "permissions": [permission]}
    secret: str = admin.post(f"/projects/{project_id}/service-keys", json=body).raise_for_status().json()["key_value"]
    return secret


async def _fill(url: str) -> IssuedKey:
    store = await open_store(url, SystemClock())
    now_ms = int(time.time() * 1_000)
    issued = await issue_service_key(store.registry, now_ms, "many", "many")
    hour_ms = 3_600_000

    def hold(records: Records, _now_ms: int) -> StepResult:
        until_ms = now_ms + hour_ms
        changed = {
            key: Held(b"\1" * 32, now_ms, until_ms, until_ms, now_ms, now_ms, 3_600, f"web-{number % 40}:7")
            for number, key in enumerate(records)
        }
        return StepResult(changed, [None] * len(changed))

    for begin in range(0, MANY, BATCH):
        keys = [RecordKey(issued.project_id, LockKey(f"job:{number:06}")) for number in range(begin, begin + BATCH)]
        await store.locks.update(keys, hold)
    await store.close()
    return issued


def _client(url: str, credential: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {credential}"})
