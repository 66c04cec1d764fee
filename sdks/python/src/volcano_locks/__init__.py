"""Client of the lock service: hold a lease, keep it renewed, and learn of its loss.

`Client` is for threads, `AsyncClient` for asyncio; both have the same methods on `.locks`. The names below are loaded
on first use, so that `import volcano_locks` does not load the HTTP stack.

Limit: a lease cannot stop a paused process. Send `fencing_token` with every write, and let the destination refuse a
lower one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volcano_locks.asyncio.block import AsyncLockGuard
    from volcano_locks.asyncio.client import AsyncClient
    from volcano_locks.errors import (
        AuthenticationError,
        ConflictError,
        LockHeldError,
        LockOwnershipLostError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitedError,
        ServerError,
        TransportError,
        UnavailableError,
        ValidationError,
        VolcanoError,
    )
    from volcano_locks.features.watch import Leadership
    from volcano_locks.protocol.hold_entry import HoldEntry
    from volcano_locks.protocol.lease import Lease, LockState
    from volcano_locks.protocol.lock_view import LockView
    from volcano_locks.sync.block import LockGuard
    from volcano_locks.sync.client import Client

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncLockGuard",
    "AuthenticationError",
    "Client",
    "ConflictError",
    "HoldEntry",
    "Leadership",
    "Lease",
    "LockGuard",
    "LockHeldError",
    "LockOwnershipLostError",
    "LockState",
    "LockView",
    "NotFoundError",
    "PermissionDeniedError",
    "RateLimitedError",
    "ServerError",
    "TransportError",
    "UnavailableError",
    "ValidationError",
    "VolcanoError",
]

_MODULE_OF = {
    "AsyncClient": "asyncio.client",
    "AsyncLockGuard": "asyncio.block",
    "Client": "sync.client",
    "HoldEntry": "protocol.hold_entry",
    "Leadership": "features.watch",
    "Lease": "protocol.lease",
    "LockGuard": "sync.block",
    "LockState": "protocol.lease",
    "LockView": "protocol.lock_view",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
