"""Counts the requests of each project in a minute, for all nodes together.

A draw does not wait for its commit: a crash of the database may forget the draws of a fraction of a second. For
a quota, unlike a lease, that is acceptable.
"""

from typing import Final

from .connections import ConnectionPool

_OPEN: Final = """
    INSERT INTO volcano_locks.quota (window_started_at_ms, project_id, taken) VALUES ($1, $2, 0)
    ON CONFLICT DO NOTHING"""
_TAKE: Final = """
    WITH before AS (
        SELECT taken FROM volcano_locks.quota WHERE window_started_at_ms = $1 AND project_id = $2 FOR UPDATE
    )
    UPDATE volcano_locks.quota SET taken = before.taken + greatest(0, least($3::bigint, $4::bigint - before.taken))
    FROM before WHERE window_started_at_ms = $1 AND project_id = $2
    RETURNING quota.taken - before.taken"""


class PostgresQuotas:
    """The QuotaStore on `connections`. Made by `PostgresDatabase`. Purging locks purges old minutes too."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections: Final = connections

    async def take(self, project_id: str, window_started_at_ms: int, *, limit: int, wanted: int) -> int:
        async with self._connections.transaction(durable=False) as transaction:
            window = (window_started_at_ms, project_id)
            taken = await transaction.fetch(_TAKE, *window, wanted, limit)
            if not taken:
                await transaction.fetch(_OPEN, *window)
                taken = await transaction.fetch(_TAKE, *window, wanted, limit)
            return int(taken[0][0])
