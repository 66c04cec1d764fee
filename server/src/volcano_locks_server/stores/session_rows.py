"""The dashboard's sessions as rows, for the two SQL stores."""

from typing import Final

from ..ports.session_store import StoredSession
from .registry_rows import Row

SESSION_COLUMNS: Final = "digest, purpose, owner_kind, owner_id, credential_digest, good_until_ms"


def session_of(row: Row) -> StoredSession:
    """The session in a row of SESSION_COLUMNS. The table's checks leave nothing to decode."""
    return StoredSession(*row)
