"""The lock operations, and the lookup of one by the method and path of a request under `/locks`."""

from typing import Final, NamedTuple

from ..rules.errors import LockError
from .problems import MethodNotAllowedError

ALL_LOCKS: Final = b"/locks"
ALL_HISTORY: Final = b"/history"
PREFIX: Final = b"/locks/"
_LEASE: Final = b"/lease"
_EVENTS: Final = b"/events"
_HISTORY: Final = b"/history"
_LEASES: Final = b"/leases/"


class LockOperation(NamedTuple):
    """One method of one address. `granted` is the status of a granted lease. `is_short`: a request may take the short
    way (`lease_requests`). `takes_session`: the dashboard's session may ask for it (UI-5).
    """

    name: str
    on_lease: bool = False
    takes_ttl: bool = False
    granted: int = 200
    is_read_only: bool = False
    is_short: bool = False
    takes_session: bool = False


ACQUIRE: Final = LockOperation("acquire", on_lease=True, takes_ttl=True, granted=201, is_short=True)
RENEW: Final = LockOperation("renew", on_lease=True, takes_ttl=True, is_short=True)
RELEASE: Final = LockOperation("release", on_lease=True, is_short=True)
READ: Final = LockOperation("read", is_read_only=True, is_short=True, takes_session=True)
VIEW: Final = LockOperation("view", is_read_only=True, takes_session=True)
LIST: Final = LockOperation("list", is_read_only=True, takes_session=True)
WATCH: Final = LockOperation("watch", is_read_only=True, takes_session=True)
WATCH_ALL: Final = LockOperation("watch", is_read_only=True, takes_session=True)
HISTORY: Final = LockOperation("history", is_read_only=True, takes_session=True)
HISTORY_ALL: Final = LockOperation("history", is_read_only=True, takes_session=True)
FORCE_RELEASE: Final = LockOperation("force_release", takes_session=True)  # also of one lease, by its fencing token

_ON_LEASE: Final = {"POST": ACQUIRE, "PATCH": RENEW, "DELETE": RELEASE}
_ON_LOCK: Final = {"GET": READ, "DELETE": FORCE_RELEASE}
_ON_NUMBERED_LEASE: Final = {"DELETE": FORCE_RELEASE}
_ON_ALL_LOCKS: Final = {"GET": LIST}
_ON_EVENTS: Final = {"GET": WATCH}
_ON_HISTORY: Final = {"GET": HISTORY}
_ON_ALL_HISTORY: Final = {"GET": HISTORY_ALL}


def lock_operation(raw_path: bytes, method: str) -> tuple[LockOperation, bytes, bytes]:
    """The operation, the undecoded key, and the undecoded fencing token of `/locks/{key}/leases/{fencing_token}`.

    Raises LockError `not_found`, `method_not_allowed`.

    `GET /locks/events` counts as a read here. Its query decides whether it opens a stream, and is parsed later.
    """
    raw_token = b""
    if raw_path == ALL_LOCKS:
        raw_key, operations = b"", _ON_ALL_LOCKS
    elif raw_path.endswith(_LEASE) and len(raw_path) > len(PREFIX) + len(_LEASE) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_LEASE)], _ON_LEASE
    elif raw_path.endswith(_EVENTS) and len(raw_path) > len(PREFIX) + len(_EVENTS) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_EVENTS)], _ON_EVENTS
    elif raw_path.endswith(_HISTORY) and len(raw_path) > len(PREFIX) + len(_HISTORY) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_HISTORY)], _ON_HISTORY
    elif raw_path == ALL_HISTORY:
        raw_key, operations = b"", _ON_ALL_HISTORY
    else:
        raw_key, operations = raw_path[len(PREFIX) :], _ON_LOCK
        if _LEASES in raw_key and not raw_key.endswith(b"/"):
            operations = _ON_NUMBERED_LEASE
            raw_key, _, raw_token = raw_key.partition(_LEASES)
    if b"/" in raw_key or b"/" in raw_token or not is_lock_address(raw_path):
        raise LockError("not_found", "there is no such address: a key has no /, and its lease is at /locks/{key}/lease")
    operation = operations.get(method)
    if operation is None:
        raise MethodNotAllowedError(", ".join(operations))
    return operation, raw_key, raw_token


def is_lock_address(raw_path: bytes) -> bool:
    """Whether `lock_operation` knows addresses of this kind."""
    return raw_path.startswith(PREFIX) or raw_path in (ALL_LOCKS, ALL_HISTORY)
