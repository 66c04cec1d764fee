"""The lock operations, and the lookup of one by the method and path of a request under `/locks`."""

from typing import Final, NamedTuple

from ..rules.errors import LockError
from .problems import MethodNotAllowedError

ALL_LOCKS: Final = b"/locks"
PREFIX: Final = b"/locks/"
_LEASE: Final = b"/lease"
_EVENTS: Final = b"/events"


class LockOperation(NamedTuple):
    """One method of one address. `granted` is the status of a granted lease."""

    name: str
    on_lease: bool = False
    takes_ttl: bool = False
    granted: int = 200
    is_read_only: bool = False


ACQUIRE: Final = LockOperation("acquire", on_lease=True, takes_ttl=True, granted=201)
RENEW: Final = LockOperation("renew", on_lease=True, takes_ttl=True)
RELEASE: Final = LockOperation("release", on_lease=True)
READ: Final = LockOperation("read", is_read_only=True)
VIEW: Final = LockOperation("view", is_read_only=True)
LIST: Final = LockOperation("list", is_read_only=True)
WATCH: Final = LockOperation("watch", is_read_only=True)
WATCH_ALL: Final = LockOperation("watch", is_read_only=True)
FORCE_RELEASE: Final = LockOperation("force_release")

_ON_LEASE: Final = {"POST": ACQUIRE, "PATCH": RENEW, "DELETE": RELEASE}
_ON_LOCK: Final = {"GET": READ, "DELETE": FORCE_RELEASE}
_ON_ALL_LOCKS: Final = {"GET": LIST}
_ON_EVENTS: Final = {"GET": WATCH}


def lock_operation(raw_path: bytes, method: str) -> tuple[LockOperation, bytes]:
    """The operation and the undecoded key, or LockError `not_found`, `method_not_allowed`.

    `GET /locks/events` counts as a read here. Its query decides whether it opens a stream, and is parsed later.
    """
    if raw_path == ALL_LOCKS:
        raw_key, operations = b"", _ON_ALL_LOCKS
    elif raw_path.endswith(_LEASE) and len(raw_path) > len(PREFIX) + len(_LEASE) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_LEASE)], _ON_LEASE
    elif raw_path.endswith(_EVENTS) and len(raw_path) > len(PREFIX) + len(_EVENTS) - 1:
        raw_key, operations = raw_path[len(PREFIX) : -len(_EVENTS)], _ON_EVENTS
    else:
        raw_key, operations = raw_path[len(PREFIX) :], _ON_LOCK
    if b"/" in raw_key:
        raise LockError("not_found", "there is no such address: a key has no /, and its lease is at /locks/{key}/lease")
    operation = operations.get(method)
    if operation is None:
        raise MethodNotAllowedError(", ".join(operations))
    return operation, raw_key
