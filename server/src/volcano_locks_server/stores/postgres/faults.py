"""What PostgreSQL and the way to it may report, in the words of the service.

Each cause has its own `cause_code`, for logs, metrics and `/readyz`. PostgreSQL's own text stays in the exception's
`__cause__`: it may name hosts and SQL, which no caller should see.
"""

from typing import Final

import asyncpg

from ...rules.errors import StoreUnavailableError

# The longest beginning of the SQLSTATE counts.
_BY_STATE: Final = {
    "25006": ("read_only", "the database can only be read: it is a standby, or was demoted; a writable one is sought"),
    "57P": ("connection_lost", "the database is restarting or ended the connection: another one is sought"),
    "08": ("connection_lost", "the connection to the database was lost: another one is sought"),
    "25P03": ("connection_lost", "this node was slower than the database waits for: another connection is sought"),
    "55P03": ("store_busy", "somebody else holds rows of the store for too long: end that transaction"),
    "57014": ("store_slow", "the database took too long for a statement: see what else it does"),
    "40": ("store_busy", "transactions on the same locks got in each other's way: try again"),
    "53100": ("disk_full", "the database's disk is full: make room"),
    "53300": ("too_many_connections", "the database allows no further connection: raise max_connections"),
    "53": ("store_busy", "the database lacks memory or another resource"),
    "28": ("no_permission", "the database does not let this user in: check user, password and pg_hba.conf"),
    "42501": ("no_permission", "the database's user lacks a permission on the store's schema: grant it"),
    "3D000": ("no_database", "the database does not exist: create it first"),
    "42P01": ("no_schema", "the store's tables are not there: run volcano-locks migrate"),
    "3F000": ("no_schema", "the store's tables are not there: run volcano-locks migrate"),
}
_UNKNOWN: Final = ("store_error", "the database failed; the log says why")
_LOST: Final = ("connection_lost", "the connection to the database was lost: another one is sought")

# A server that answers so is not the one to ask again: case 26.
_ELSEWHERE: Final = ("25006", "57P", "08")
_RETRIED: Final = ("40001", "40P01")


def store_fault(error: Exception) -> StoreUnavailableError:
    """The fault that callers hear of, with `error` as its cause."""
    if isinstance(error, StoreUnavailableError):
        return error
    state = _state(error)
    if state is None:
        told = _LOST
    else:
        found = [begin for begin in _BY_STATE if state.startswith(begin)]
        told = _BY_STATE[max(found, key=len)] if found else _UNKNOWN
    fault = StoreUnavailableError(*told)
    fault.__cause__ = error
    return fault


def is_elsewhere(error: BaseException) -> bool:
    """Whether the server itself is gone, ending, or not writable any more, so that no connection to it is of use."""
    state = _state(error)
    return isinstance(error, asyncpg.InterfaceError | OSError) if state is None else state.startswith(_ELSEWHERE)


def is_conflict(error: BaseException) -> bool:
    """Whether the transaction was undone for another's sake, and may be done again."""
    state = _state(error)
    return state is not None and state.startswith(_RETRIED)


def _state(error: BaseException) -> str | None:
    return error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
