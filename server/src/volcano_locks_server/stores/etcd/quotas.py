"""What was drawn of each project's minute, by all nodes together.

One key a project holds the two newest minutes that were drawn from, because a node whose clock is a little behind
still draws from the minute that others have left. It is read and replaced by comparison like everything here.
"""

import asyncio
import random
from typing import Final

import msgspec

from ...rules.errors import StoreUnavailableError
from .endpoints import Members
from .layout import Layout
from .transactions import Found, Guard, Put, Read

WINDOWS_KEPT: Final = 2
ATTEMPTS_MAX: Final = 20
JITTER_SECONDS: Final = 0.004

_Drawn = dict[int, int]  # of the minute that began then (milliseconds), so many


class EtcdQuotas:
    """The QuotaStore. Made by `EtcdCluster`."""

    def __init__(self, members: Members, layout: Layout) -> None:
        self._members: Final = members
        self._layout: Final = layout

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        key = self._layout.quota(project_id)
        found = (await self._members.read(Read(key))).one(0)
        for attempt in range(ATTEMPTS_MAX):
            drawn = _drawn(found)
            took = max(0, min(wanted, limit - drawn.get(window_started_at_ms, 0)))
            if took == 0 or (len(drawn) == WINDOWS_KEPT and window_started_at_ms < min(drawn)):
                return 0
            drawn[window_started_at_ms] = drawn.get(window_started_at_ms, 0) + took
            kept = {window: drawn[window] for window in sorted(drawn)[-WINDOWS_KEPT:]}
            guard = Guard(key, found.mod_revision if found else 0)
            answer = await self._members.write([guard], [Put(key, msgspec.json.encode(kept))], [Read(key)])
            if answer.succeeded:
                return took
            found = answer.one(0)
            self._members.counts.conflicts += 1
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS * attempt))  # noqa: S311
        raise StoreUnavailableError("conflict", "other nodes kept drawing on the same quota: try again in a moment")


def _drawn(found: Found | None) -> _Drawn:
    return {} if found is None else msgspec.json.decode(found.value, type=_Drawn)
