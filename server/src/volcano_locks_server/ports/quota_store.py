"""The port of the shared quota: the count of requests that the nodes over one store have drawn from a project's minute.

A store for a single process has none.
"""

from typing import Protocol


class QuotaStore(Protocol):
    """The common counts of the nodes. They need not be durable."""

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        """Draw up to `wanted` requests of the project's minute; returns how many, 0 once `limit` are drawn.

        May raise `StoreUnavailableError`.
        """
        ...
