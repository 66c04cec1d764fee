"""The port of the shared quota: how many requests of a project's minute the nodes over one store have drawn together.

A store that serves one process has none.
"""

from typing import Protocol


class QuotaStore(Protocol):
    """The part of a project's minute that nodes share. Need not be durable. May raise `StoreUnavailableError`."""

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        """Draw up to `wanted` requests of the project's minute for this node; how many were drawn, 0 once `limit`
        are gone.
        """
        ...
