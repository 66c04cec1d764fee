"""The port of the shared quota: counts the requests that all nodes draw from a project's quota of one minute.

A store for a single process has no quota store.
"""

from typing import Protocol


class QuotaStore(Protocol):
    """The common counts of the nodes. They need not be durable."""

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        """Draw up to `wanted` requests of that minute; returns how many were drawn, 0 once `limit` are drawn.

        May raise `StoreUnavailableError`.
        """
        ...
