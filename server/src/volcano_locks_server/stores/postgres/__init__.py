"""The PostgreSQL store, for several nodes. Design: docs/architecture/stores.md."""

from .schema import migrate
from .store import BATCHES_IN_FLIGHT, PostgresDatabase

__all__ = ["BATCHES_IN_FLIGHT", "PostgresDatabase", "migrate"]
