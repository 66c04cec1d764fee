"""The default store: one SQLite file on a local disk, for one server. Design: docs/architecture/stores.md."""

from .store import CLOCK_WAIT_MAX_MS, SqliteFile

__all__ = ["CLOCK_WAIT_MAX_MS", "SqliteFile"]
