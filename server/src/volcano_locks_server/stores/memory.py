"""The store that forgets everything at its end: for tests and for trying things out.

Correct by construction: one dictionary, one event loop, no await inside a step. It keeps no promise of
durability; within one process it keeps every other promise of a store.
"""

from collections.abc import Sequence
from typing import Final

from ..clock import Clock
from ..lease import LockRecord, blocks_others, purgeable
from ..store import RecordKey, Step


class MemoryStore:
    """Lock records in a dictionary."""

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self.records: Final[dict[RecordKey, LockRecord]] = {}

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        stepped = step({key: self.records.get(key) for key in keys}, self._clock.now_ms())
        self.records.update(stepped.changed)
        return stepped.results

    async def count_held(self) -> int:
        now_ms = self._clock.now_ms()
        return sum(blocks_others(record, now_ms) for record in self.records.values())

    async def purge(self, *, limit: int) -> int:
        now_ms = self._clock.now_ms()
        gone = [key for key, record in self.records.items() if purgeable(record, now_ms)][:limit]
        for key in gone:
            del self.records[key]
        return len(gone)

    async def ready(self) -> None:
        return
