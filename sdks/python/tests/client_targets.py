"""The threaded and the asyncio client behind one set of awaited calls, so that each promise is tested on both."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, TypeVar

from volcano_locks import AsyncClient, Client, Leadership, LockView
from volcano_locks.sync.block import LockGuard

T = TypeVar("T")


class SyncTarget:
    """A threaded client, called from worker threads."""

    name = "sync"

    def __init__(self, client: Client) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client.locks, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call

    def hold(self, key: str, ttl: int = 30, **options: Any) -> "SyncHold":
        return SyncHold(self.client, key, ttl, **options)

    async def iterated(self, items: Iterator[T]) -> AsyncIterator[T]:
        while True:
            one = await asyncio.to_thread(next, items, None)
            if one is None:
                return
            yield one

    def watched(self, key: str) -> AsyncIterator[Leadership]:
        return self.iterated(self.client.locks.watch(key))

    def listed(self, *args: Any, **options: Any) -> AsyncIterator[LockView]:
        return self.iterated(self.client.locks.list(*args, **options))

    async def wait_lost(self, guard: Any, timeout: float | None = None) -> bool:
        lost: bool = await asyncio.to_thread(guard.wait_lost, timeout)
        return lost

    async def close(self) -> None:
        await asyncio.to_thread(self.client.close)


class SyncHold:
    """`with client.locks.with_lock(…)`, entered and left in worker threads."""

    def __init__(self, client: Client, key: str, ttl: int, **options: Any) -> None:
        self.block = client.locks.with_lock(key, ttl=ttl, **options)

    async def __aenter__(self) -> LockGuard:
        return await asyncio.to_thread(self.block.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.block.__exit__, kind, error, trace)


class AsyncTarget:
    """An asyncio client."""

    name = "async"

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client.locks, name)

    def hold(self, key: str, ttl: int = 30, **options: Any) -> Any:
        return self.client.locks.with_lock(key, ttl=ttl, **options)

    def watched(self, key: str) -> AsyncIterator[Leadership]:
        return self.client.locks.watch(key)

    def listed(self, *args: Any, **options: Any) -> AsyncIterator[LockView]:
        return self.client.locks.list(*args, **options)

    async def wait_lost(self, guard: Any, timeout: float | None = None) -> bool:
        lost: bool = await guard.wait_lost(timeout)
        return lost

    async def close(self) -> None:
        await self.client.close()


Target = SyncTarget | AsyncTarget
