"""PostgreSQL as the store of several nodes. See ../DESIGN.md for why it is used so."""

from .database import BATCHES_IN_FLIGHT, PostgresDatabase
from .schema import migrate

__all__ = ["BATCHES_IN_FLIGHT", "PostgresDatabase", "migrate"]
