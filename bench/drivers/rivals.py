"""Those who want one lock, each over a connection of its own: by this project, by etcd and by Redis."""

import asyncio
import base64
import json
import os
import re
from math import inf
from typing import Any, Final, Protocol
from uuid import uuid4

import redis.asyncio

from volcano_locks import AsyncClient, Lease

from .bare_http import Connection

TTL_SECONDS: Final = 60  # nobody holds, or waits, for nearly so long
WAIT_SECONDS: Final = 60


class Rival(Protocol):
    """One who wants locks."""

    async def acquire(self, key: str) -> None:
        """Return when it has the lock."""
        ...

    async def release(self, key: str) -> None: ...


class Camp(Protocol):
    """Where rivals of one kind come from, and how many requests they sent so far."""

    async def rival(self) -> Rival: ...

    async def requests(self) -> int: ...


class OurCaller:
    """Speaks the HTTP API, with the headers that the clients send."""

    def __init__(self, connection: Connection, service_key: str) -> None:
        self._connection: Final = connection
        self._bearer: Final = f"Bearer {service_key}"
        self._token = ""

    async def acquire(self, key: str) -> None:
        self._token = str(uuid4())
        await self._ask("POST", key, {201}, b'{"ttl_seconds":%d,"wait_seconds":%d}' % (TTL_SECONDS, WAIT_SECONDS))

    async def release(self, key: str) -> None:
        await self._ask("DELETE", key, {204})

    async def _ask(self, method: str, key: str, expected: set[int], body: bytes = b"") -> None:
        status, answer = await self._connection.ask(
            method,
            f"/locks/{key}/lease",
            body,
            Authorization=self._bearer,
            X_Volcano_Lock_Token=self._token,
            X_Volcano_Request_Id=str(uuid4()),
            X_Volcano_Lock_Holder="bench/1",
        )
        if status not in expected:
            raise SystemExit(f"{method} of a lease was answered {status}: {answer.decode()}")


class OurCallers:
    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])
        self._service_key: Final = os.environ["BENCH_SERVICE_KEY"]

    async def rival(self) -> OurCaller:
        return OurCaller(await Connection.open(self._port), self._service_key)

    async def requests(self) -> int:
        return Connection.sent


class OurClient:
    """This project's Python client for asyncio."""

    def __init__(self, client: AsyncClient) -> None:
        self._locks: Final = client.locks
        self._lease: Lease | None = None

    async def acquire(self, key: str) -> None:
        self._lease = await self._locks.acquire(key, ttl=TTL_SECONDS, wait=inf)

    async def release(self, key: str) -> None:
        assert self._lease is not None
        await self._locks.release(key, self._lease)


class OurClients:
    """Requests are counted by the server: what a client adds by itself is among them."""

    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])
        self._service_key: Final = os.environ["BENCH_SERVICE_KEY"]

    async def rival(self) -> OurClient:
        return OurClient(AsyncClient(f"http://127.0.0.1:{self._port}", self._service_key))

    async def requests(self) -> int:
        connection = await Connection.open(self._port)
        _, text = await connection.ask("GET", "/metrics")
        connection.abort()
        counted = re.findall(rb"^volcano_locks_(?:requests|waits)_total\{[^}]*\} ([0-9.e+]+)$", text, re.MULTILINE)
        return round(sum(map(float, counted)))


class EtcdCaller:
    """etcd's lock service, a fair queue, through its HTTP gateway. The session's lease outlives the round."""

    def __init__(self, connection: Connection, lease: str) -> None:
        self._connection: Final = connection
        self._lease: Final = lease
        self._owned = ""

    async def acquire(self, key: str) -> None:
        name = base64.b64encode(key.encode()).decode()
        self._owned = (await etcd_asked(self._connection, "lock/lock", {"name": name, "lease": self._lease}))["key"]

    async def release(self, key: str) -> None:  # noqa: ARG002 - etcd wants the key that it gave
        await etcd_asked(self._connection, "lock/unlock", {"key": self._owned})


class EtcdCallers:
    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])

    async def rival(self) -> EtcdCaller:
        connection = await Connection.open(self._port)
        lease = (await etcd_asked(connection, "lease/grant", {"TTL": 3600}))["ID"]
        return EtcdCaller(connection, lease)

    async def requests(self) -> int:
        return Connection.sent


async def etcd_asked(connection: Connection, path: str, body: dict[str, object]) -> dict[str, str]:
    """The answer of one call of etcd's HTTP gateway."""
    status, answer = await connection.ask("POST", f"/v3/{path}", json.dumps(body).encode())
    if status != 200:
        raise SystemExit(f"etcd answered {path} with {status}: {answer.decode()}")
    parsed: dict[str, str] = json.loads(answer)
    return parsed


class RedisClient:
    """redis-py's own `Lock`, which asks again every 100 ms."""

    def __init__(self, client: "Counted") -> None:
        self._client: Final = client
        self._lock: Any = None

    async def acquire(self, key: str) -> None:
        self._lock = self._client.lock(key, timeout=TTL_SECONDS, blocking=True)
        await self._lock.acquire()

    async def release(self, key: str) -> None:  # noqa: ARG002 - the lock knows its key
        await self._lock.release()


class Counted(redis.asyncio.Redis):
    """redis-py's client, with its commands counted."""

    sent = 0

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        Counted.sent += 1
        return super().execute_command(*arguments, **options)  # type: ignore[no-untyped-call]


class RedisClients:
    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])

    async def rival(self) -> RedisClient:
        client = Counted(port=self._port)
        await asyncio.wait_for(client.ping(), 10)
        return RedisClient(client)

    async def requests(self) -> int:
        return Counted.sent


CAMPS: Final[dict[str, type[Camp]]] = {
    "http": OurCallers,
    "python": OurClients,
    "etcd": EtcdCallers,
    "redis": RedisClients,
}
