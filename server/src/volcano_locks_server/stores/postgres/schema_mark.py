"""Notices that the schema changed under a running node: it needs a newer release, or is another one (OPS-8).

The mark is read by the statement that reads the clock, so it holds for the transaction that decides by it.
"""

from typing import Final

from ...rules.errors import StoreUnavailableError

MARK: Final = """(SELECT max(needs) || ' ' || min(extract(epoch FROM applied_at)) FROM volcano_locks.migration)"""


class SchemaGuard:
    """The schema as this node found it at its start. `newest` is the newest migration that this release knows."""

    def __init__(self, newest: int) -> None:
        self._newest: Final = newest
        self._created_at: str | None = None
        self._accepted: str | None = None

    def check(self, mark: str | None) -> None:
        """Raise StoreUnavailableError if this node must not use the schema with that mark."""
        if mark == self._accepted and mark is not None:
            return
        needs, _, created_at = (mark or "").partition(" ")
        if self._created_at not in (None, created_at) or not needs:
            raise StoreUnavailableError(
                "schema_replaced",
                "the store's schema is not the one that this node started on: restore the database, or start again",
            )
        if int(needs) > self._newest:
            raise newer_version(int(needs), self._newest)
        self._created_at, self._accepted = created_at, mark


def newer_version(needs: int, newest: int) -> StoreUnavailableError:
    return StoreUnavailableError(
        "newer_version",
        f"the database's schema needs a release that knows version {needs}; this one knows up to {newest}: "
        "use a newer release",
    )
