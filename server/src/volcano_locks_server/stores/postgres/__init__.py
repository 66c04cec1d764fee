"""The PostgreSQL store, for several nodes. Design: docs/architecture/stores.md."""

from .store import PostgresDatabase

__all__ = ["PostgresDatabase"]
