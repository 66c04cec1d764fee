"""Lock clients of volcano-locks, etcd and Redis behind one interface, each with a connection of its own."""

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

from .http_connection import Connection

TTL_SECONDS: Final = 60  # far longer than any client holds a lock
WAIT_SECONDS: Final = 60


class LockClient(Protocol):
    """A client that acquires and releases locks."""

    async def acquire(self, key: str) -> None:
        """Wait until this client holds the lock."""
        ...

    async def release(self, key: str) -> None: ...


class LockClients(Protocol):
    """The clients of one lock service."""

    async def connect(self) -> LockClient:
        """A new client."""
        ...

    async def requests(self) -> int:
        """The number of requests of all clients so far."""
        ...


class HttpLockClient:
    """Uses the HTTP API of volcano-locks with the headers that its clients send."""

    def __init__(self, connection: Connection, service_key: str) -> None:
        self._connection: Final = connection
        self._bearer: Final = f"Bearer {service_key}"
        self._token = ""

    async def acquire(self, key: str) -> None:
        self._token = str(uuid4())
        await self._request("POST", key, {201}, b'{"ttl_seconds":%d,"wait_seconds":%d}' % (TTL_SECONDS, WAIT_SECONDS))

    async def release(self, key: str) -> None:
        await self._request("DELETE", key, {204})

    async def _request(self, method: str, key: str, expected: set[int], body: bytes = b"") -> None:
        status, response = await self._connection.request(
            method,
            f"/locks/{key}/lease",
            body,
            Authorization=self._bearer,
            X_Volcano_Lock_Token=self._token,
            X_Volcano_Request_Id=str(uuid4()),
            X_Volcano_Lock_Holder="bench/1",
        )
        if status not in expected:
            raise SystemExit(f"{method} of a lease returned {status}: {response.decode()}")


class HttpLockClients:
    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])
        self._service_key: Final = os.environ["BENCH_SERVICE_KEY"]

    async def connect(self) -> HttpLockClient:
        return HttpLockClient(await Connection.open(self._port), self._service_key)

    async def requests(self) -> int:
        return Connection.sent


class PythonLockClient:
    """The asyncio client of volcano-locks."""

    def __init__(self, client: AsyncClient) -> None:
        self._locks: Final = client.locks
        self._lease: Lease | None = None

    async def acquire(self, key: str) -> None:
        self._lease = await self._locks.acquire(key, ttl=TTL_SECONDS, wait=inf)

    async def release(self, key: str) -> None:
        assert self._lease is not None
        await self._locks.release(key, self._lease)


class PythonLockClients:
    """The server counts the requests, including those that a client sends by itself."""

    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])
        self._service_key: Final = os.environ["BENCH_SERVICE_KEY"]

    async def connect(self) -> PythonLockClient:
        return PythonLockClient(AsyncClient(f"http://127.0.0.1:{self._port}", self._service_key))

    async def requests(self) -> int:
        connection = await Connection.open(self._port)
        _, text = await connection.request("GET", "/metrics")
        connection.abort()
        counted = re.findall(rb"^volcano_locks_(?:requests|waits)_total\{[^}]*\} ([0-9.e+]+)$", text, re.MULTILINE)
        return round(sum(map(float, counted)))


class EtcdLockClient:
    """etcd's lock service, a fair queue, through its HTTP gateway. The session's lease outlasts the round."""

    def __init__(self, connection: Connection, lease: str) -> None:
        self._connection: Final = connection
        self._lease: Final = lease
        self._owner_key = ""

    async def acquire(self, key: str) -> None:
        name = base64.b64encode(key.encode()).decode()
        self._owner_key = (await etcd_request(self._connection, "lock/lock", {"name": name, "lease": self._lease}))[
            "key"
        ]

    async def release(self, key: str) -> None:  # noqa: ARG002 - etcd needs the key that it returned
        await etcd_request(self._connection, "lock/unlock", {"key": self._owner_key})


class EtcdLockClients:
    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])

    async def connect(self) -> EtcdLockClient:
        connection = await Connection.open(self._port)
        lease = (await etcd_request(connection, "lease/grant", {"TTL": 3600}))["ID"]
        return EtcdLockClient(connection, lease)

    async def requests(self) -> int:
        return Connection.sent


async def etcd_request(connection: Connection, path: str, body: dict[str, object]) -> dict[str, str]:
    """The response to one call of etcd's HTTP gateway."""
    status, response = await connection.request("POST", f"/v3/{path}", json.dumps(body).encode())
    if status != 200:
        raise SystemExit(f"etcd returned {status} for {path}: {response.decode()}")
    parsed: dict[str, str] = json.loads(response)
    return parsed


class RedisLockClient:
    """The `Lock` of redis-py, which polls every 100 ms."""

    def __init__(self, client: "CountingRedis") -> None:
        self._client: Final = client
        self._lock: Any = None

    async def acquire(self, key: str) -> None:
        self._lock = self._client.lock(key, timeout=TTL_SECONDS, blocking=True)
        await self._lock.acquire()

    async def release(self, key: str) -> None:  # noqa: ARG002 - the lock knows its key
        await self._lock.release()


class CountingRedis(redis.asyncio.Redis):
    """redis-py's client, with its commands counted."""

    sent = 0

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        CountingRedis.sent += 1
        return super().execute_command(*arguments, **options)  # type: ignore[no-untyped-call]


class RedisLockClients:
    def __init__(self) -> None:
        self._port: Final = int(os.environ["BENCH_PORT"])

    async def connect(self) -> RedisLockClient:
        client = CountingRedis(port=self._port)
        await asyncio.wait_for(client.ping(), 10)
        return RedisLockClient(client)

    async def requests(self) -> int:
        return CountingRedis.sent


LOCK_CLIENTS: Final[dict[str, type[LockClients]]] = {
    "http": HttpLockClients,
    "python": PythonLockClients,
    "etcd": EtcdLockClients,
    "redis": RedisLockClients,
}
