"""The default store: one SQLite file on a local disk, for one server. Design: docs/architecture/stores.md."""

from .store import SqliteFile

__all__ = ["SqliteFile"]
