"""Maps errors of PostgreSQL and of the connection to the service's errors.

Each cause has its own `cause_code` for logs, metrics and `/readyz`. PostgreSQL's text stays in the exception's
`__cause__`, because it may name hosts and SQL, which no client should see.
"""

from typing import Final

import asyncpg

from ...rules.errors import StoreUnavailableError

_NO_SCHEMA: Final = (
    "no_schema",
    "the store's tables do not exist: restore the database, or run volcano-locks migrate for a new store",
)
_NO_PERMISSION: Final = (
    "no_permission",
    "the database's user lacks a permission on the store's schema: grant it, or disable row-level security there",
)
# The longest matching prefix of the SQLSTATE counts.
_BY_STATE: Final = {
    "25006": (
        "read_only",
        "the database is read-only: it is a standby, or was demoted; the service looks for a writable one",
    ),
    "57P": ("connection_lost", "the database is restarting or ended the connection: the service reconnects"),
    "08": ("connection_lost", "the connection to the database was lost: the service reconnects"),
    "08P01": (
        "connection_lost",
        "a pooler refused or ended the connection: its log says why; it needs pool_mode = transaction or session",
    ),
    "25P03": ("connection_lost", "this node exceeded the database's idle time-out: the service reconnects"),
    "55P03": ("store_busy", "another transaction holds rows of the store for too long: end it"),
    "57014": ("store_slow", "the database took too long for a statement: check its load"),
    "40": ("store_busy", "transactions on the same locks conflicted: try again"),
    "53100": ("disk_full", "the database's disk is full: free some space"),
    "53300": (
        "too_many_connections",
        "the database allows no further connection: raise max_connections, or the limit of the role",
    ),
    "53": ("store_busy", "the database lacks memory or another resource"),
    "28": ("no_permission", "the database refused this user: check user, password and pg_hba.conf"),
    "42501": _NO_PERMISSION,
    "55000": ("no_permission", "the database accepts no connection: ALTER DATABASE … ALLOW_CONNECTIONS true"),
    "3D000": ("no_database", "the database does not exist: create it first"),
    "42P01": _NO_SCHEMA,
    "3F000": _NO_SCHEMA,
}
_UNKNOWN: Final = ("store_error", "the database failed; the log says why")
_CONNECTION_LOST: Final = ("connection_lost", "the connection to the database was lost: the service reconnects")

# After these the node must look for another server (case 26).
_SERVER_LOST: Final = ("25006", "57P", "08")
_RETRIED: Final = ("40001", "40P01")


class StoreWentBackError(StoreUnavailableError):
    """The newest instant in the database is older than one that this node has read there (OPS-8)."""

    def __init__(self) -> None:
        super().__init__(
            "store_went_back",
            "the database was set back to an older state, which lacks leases, or is a primary that was replaced: stop "
            "all nodes, wait for the longest TTL, start them",
        )


def store_fault(error: Exception) -> StoreUnavailableError:
    """The error for callers, with `error` as its cause."""
    if isinstance(error, StoreUnavailableError):
        return error
    state = _state(error)
    if state is None:
        code_and_message = _CONNECTION_LOST
    else:
        prefixes = [prefix for prefix in _BY_STATE if state.startswith(prefix)]
        code_and_message = _BY_STATE[max(prefixes, key=len)] if prefixes else _UNKNOWN
    fault = StoreUnavailableError(*code_and_message)
    fault.__cause__ = error
    return fault


def is_server_lost(error: BaseException) -> bool:
    """Whether the server is gone, shutting down or no longer writable, so that every connection to it is useless."""
    state = _state(error)
    return isinstance(error, asyncpg.InterfaceError | OSError) if state is None else state.startswith(_SERVER_LOST)


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was rolled back because of another, and may be repeated."""
    state = _state(error)
    return state is not None and state.startswith(_RETRIED)


def _state(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
