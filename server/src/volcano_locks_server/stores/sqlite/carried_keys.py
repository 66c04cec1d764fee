"""Carries the revocations of service keys and admin tokens from a replaced file into a restored one (KEEP-8).

A file remembers the ids of its deleted keys and admin tokens in `revoked_key`; triggers write them. A key that both
files know has the secrets of the newer file, because an older secret was replaced on purpose. A file that is lost takes
its memory along.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import apsw

_HAS_MEMORY: Final = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'revoked_key')"
_REVOKED: Final = "SELECT id FROM revoked_key"
_PREFIXES: Final = "SELECT key_prefix, id FROM service_key"
_SECRETS: Final = "SELECT digest, key_id, is_old, good_until_ms FROM secret ORDER BY is_old"

_CHANGED: Final = (
    "SELECT count(*) FROM newer WHERE is_old = 0 AND digest NOT IN (SELECT digest FROM secret WHERE is_old = 0)"
)

_Row = Sequence[Any]


class KeyHistory(NamedTuple):
    """What a file knows of its service keys: the ids of revoked ones, and the prefixes and secrets of the others."""

    revoked: Sequence[_Row] = ()
    prefixes: Sequence[_Row] = ()
    secrets: Sequence[_Row] = ()


def read_history(connection: apsw.Connection) -> KeyHistory:
    """The history in that file, which may be older than this memory. Raises apsw.Error."""
    revoked = connection.execute(_REVOKED).fetchall() if connection.execute(_HAS_MEMORY).get else []
    return KeyHistory(revoked, connection.execute(_PREFIXES).fetchall(), connection.execute(_SECRETS).fetchall())


def apply_history(connection: apsw.Connection, history: KeyHistory, *, is_newer: bool) -> tuple[int, int]:
    """Revoke what the other file revoked; if it `is_newer`, also take its secrets. Call in a transaction.

    Returns how many keys were deleted, and how many got other secrets.
    """
    execute, many = connection.execute, connection.executemany
    many("INSERT OR IGNORE INTO revoked_key (id) VALUES (?)", history.revoked).fetchall()
    execute("DELETE FROM service_key WHERE id IN (SELECT id FROM revoked_key)")
    revoked = connection.changes()
    execute("DELETE FROM admin_token WHERE id IN (SELECT id FROM revoked_key)")
    revoked += connection.changes()
    if not is_newer:
        return revoked, 0
    execute("CREATE TEMP TABLE newer (digest BLOB, key_id TEXT, is_old INTEGER, good_until_ms INTEGER)")
    many("INSERT INTO newer VALUES (?, ?, ?, ?)", history.secrets).fetchall()
    execute("DELETE FROM newer WHERE key_id NOT IN (SELECT id FROM service_key)")
    replaced = "SELECT digest FROM secret WHERE key_id IN (SELECT key_id FROM newer)"
    changed = execute(_CHANGED).get
    execute(f"DELETE FROM secret WHERE digest IN ({replaced})")
    execute("INSERT INTO secret (digest, key_id, is_old, good_until_ms) SELECT * FROM newer")
    many("UPDATE service_key SET key_prefix = ? WHERE id = ?", history.prefixes).fetchall()
    execute("DROP TABLE newer")
    return revoked, int(changed)
