"""PostgreSQL as the store of several nodes. See ../DESIGN.md for why it is used so."""

from .schema import migrate
from .store import BATCHES_IN_FLIGHT, PostgresDatabase

__all__ = ["BATCHES_IN_FLIGHT", "PostgresDatabase", "migrate"]
