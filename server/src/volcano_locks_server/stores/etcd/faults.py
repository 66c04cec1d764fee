"""Maps errors of etcd and of the connection to the service's errors.

Each cause has its own `cause_code` for logs, metrics and `/readyz`. etcd's text stays in the exception's `__cause__`,
because it may name keys.
"""

from typing import Final

import grpc

_Code: Final = grpc.StatusCode
UNREACHABLE_CODE: Final = "etcd_unreachable"
UNREACHABLE: Final = "no member of the etcd cluster can be reached: check that it runs, its address, and its TLS"
CREDENTIALS_REFUSED: Final = ("etcd_credentials", "etcd does not take this user and password: check the store's URL")
TWO_CLUSTERS: Final = (
    "two_clusters",
    "the members in the store's URL belong to two etcd clusters: name those of one; after a restore, start again",
)
WENT_BACK: Final = (
    "store_went_back",
    "etcd was set back to an older state, which lacks leases: stop all nodes, wait for the longest TTL, start them",
)
LATE: Final = ("etcd_late", "etcd did not respond in time")
_FAULTS: Final = (  # gRPC code, part of etcd's text, and our cause code and message; the first match counts
    (_Code.DEADLINE_EXCEEDED, "", LATE),
    (_Code.UNAUTHENTICATED, "", CREDENTIALS_REFUSED),
    (_Code.INVALID_ARGUMENT, "authentication failed", CREDENTIALS_REFUSED),
    (_Code.INVALID_ARGUMENT, "user name is empty", ("etcd_credentials", "etcd asks for a user and a password")),
    (_Code.PERMISSION_DENIED, "", ("etcd_permission", "etcd's user may not read and write under the store's prefix")),
    (_Code.RESOURCE_EXHAUSTED, "space", ("etcd_full", "etcd's database is full: compact it, then disarm its alarm")),
    (_Code.UNAVAILABLE, "leader", ("etcd_no_leader", "etcd has no leader: it needs a majority of its members")),
    (_Code.UNAVAILABLE, "etcdserver", LATE),
    (_Code.UNAVAILABLE, "", ("etcd_lost", "the connection to etcd was lost")),
)


def fault_of(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    """The cause code and message for etcd's error. etcd's text stays in the cause, because it may name keys."""
    details = error.details() or ""
    fits = (words for code, text, words in _FAULTS if error.code() is code and text in details)
    return next(fits, ("etcd_error", "etcd refused the transaction; the log says why"))


def is_stale_token(error: grpc.aio.AioRpcError) -> bool:
    details = error.details() or ""
    return error.code() is _Code.UNAUTHENTICATED or "revision of auth store is old" in details


def is_auth_off(error: grpc.aio.AioRpcError) -> bool:
    """Whether etcd gives no token, because its authentication is off."""
    return "authentication is not enabled" in (error.details() or "")


def is_auth_on(error: grpc.aio.AioRpcError) -> bool:
    """Whether etcd refused a call for its lack of a token."""
    return "user name is empty" in (error.details() or "")


def is_permanent(error: grpc.aio.AioRpcError) -> bool:
    """Whether every member would respond the same."""
    return error.code() in (_Code.PERMISSION_DENIED, _Code.INVALID_ARGUMENT, _Code.FAILED_PRECONDITION)


def was_not_proposed(error: grpc.aio.AioRpcError) -> bool:
    """Whether the member refused the transaction before proposing it to the others."""
    details = error.details() or ""
    return details.endswith(("no leader", "too many requests"))
