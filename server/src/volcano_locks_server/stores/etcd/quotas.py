"""Counts the requests of each project in a minute, for all nodes together.

A project's key holds the two newest minutes, because a node whose clock is slightly behind still draws from the minute
that others have left. A change compares the key's revision, like every write to etcd.
"""

import asyncio
import random
from typing import Final

import msgspec

from ...rules.errors import StoreUnavailableError
from .endpoints import Endpoints
from .layout import Layout
from .transactions import Compare, Get, Put

WINDOWS_STORED: Final = 2
ATTEMPTS_MAX: Final = 20
JITTER_SECONDS: Final = 0.004

_Drawn = dict[int, int]  # the start of a minute in milliseconds: requests drawn from it


class EtcdQuotas:
    """The QuotaStore. Made by `EtcdCluster`."""

    def __init__(self, endpoints: Endpoints, layout: Layout) -> None:
        self._endpoints: Final = endpoints
        self._layout: Final = layout

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        key = self._layout.quota(project_id)
        found = (await self._endpoints.read(Get(key))).one(0)
        for attempt in range(ATTEMPTS_MAX):
            drawn = {} if found is None else _decode(found.value)
            took = max(0, min(wanted, limit - drawn.get(window_started_at_ms, 0)))
            if took == 0 or (len(drawn) == WINDOWS_STORED and window_started_at_ms < min(drawn)):
                return 0
            drawn[window_started_at_ms] = drawn.get(window_started_at_ms, 0) + took
            stored = {window: drawn[window] for window in sorted(drawn)[-WINDOWS_STORED:]}
            compare = Compare(key, found.mod_revision if found else 0)
            result = await self._endpoints.write([compare], [Put(key, msgspec.json.encode(stored))], [Get(key)])
            if result.succeeded:
                return took
            found = result.one(0)
            self._endpoints.counts.conflicts += 1
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS * attempt))  # noqa: S311
        raise StoreUnavailableError("conflict", "other nodes kept drawing on the same quota: try again in a moment")


def _decode(value: bytes) -> _Drawn:
    """The counts in a value; none if another program spoilt it: counts are lost at the end of a minute anyway."""
    try:
        return msgspec.json.decode(value, type=_Drawn)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
