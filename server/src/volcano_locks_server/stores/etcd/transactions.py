"""etcd transactions: the types that the store works with, and their encoding as protobuf messages.

`rpc.proto` declares the messages; only this module and `watch` use the generated classes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from . import rpc_pb2

TXN: Final = "/etcdserverpb.KV/Txn"
AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
STATUS: Final = "/etcdserverpb.Maintenance/Status"


class Compare(NamedTuple):
    """A condition: the key was last written at `mod_revision`. 0 means that the key does not exist."""

    key: bytes
    mod_revision: int


class KeyValue(NamedTuple):
    """A key as it was read, with the revisions that created it and last wrote it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int


class Get(NamedTuple):
    """Read one key, or the range from `key` up to but excluding `end`.

    `limit` 0 means no limit. If `created_from` is not 0, the read returns keys created at that revision or later, in
    order of creation; otherwise it returns keys in byte order. A `stale` read may be answered by one member alone.
    """

    key: bytes
    end: bytes = b""
    limit: int = 0
    created_from: int = 0
    keys_only: bool = False
    stale: bool = False


class Put(NamedTuple):
    """Write a key."""

    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Delete one key, or the range from `key` up to but excluding `end`."""

    key: bytes
    end: bytes = b""


Op = Get | Put | Delete


class TransactionResult(NamedTuple):
    """The outcome of a transaction.

    `succeeded` says whether every comparison held. `reads` has one entry for each operation of the branch that ran,
    empty for a write. `revision` is etcd's revision afterwards, so also the mod revision of the keys it wrote.
    """

    succeeded: bool
    reads: Sequence[Sequence[KeyValue]]
    revision: int

    def one(self, index: int) -> KeyValue | None:
        """The key that operation `index`, a read of one key, returned."""
        return self.reads[index][0] if self.reads[index] else None


class MemberStatus(NamedTuple):
    """A member's version and the id of its cluster."""

    version: str
    cluster_id: int


def encode_transaction(compares: Iterable[Compare], then: Iterable[Op], otherwise: Iterable[Op]) -> bytes:
    """The request: run `then` if every comparison holds, else `otherwise`."""
    request = rpc_pb2.TxnRequest()
    for key, mod_revision in compares:
        request.compare.add(target=rpc_pb2.Compare.MOD, key=key, mod_revision=mod_revision)
    _add_ops(request.success, then)
    _add_ops(request.failure, otherwise)
    return bytes(request.SerializeToString())


def decode_transaction(message: bytes) -> TransactionResult:
    """The result in a response to TXN."""
    response = rpc_pb2.TxnResponse.FromString(message)
    reads = [
        [KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision) for kv in one.response_range.kvs]
        for one in response.responses
    ]
    return TransactionResult(response.succeeded, reads, response.header.revision)


def encode_credentials(user: str, password: str) -> bytes:
    """The request for an access token."""
    return bytes(rpc_pb2.AuthenticateRequest(name=user, password=password).SerializeToString())


def decode_access_token(message: bytes) -> str:
    """The access token in a response to AUTHENTICATE."""
    return str(rpc_pb2.AuthenticateResponse.FromString(message).token)


def decode_status(message: bytes) -> MemberStatus:
    """The content of a response to STATUS, whose request is empty."""
    response = rpc_pb2.StatusResponse.FromString(message)
    return MemberStatus(str(response.version), int(response.header.cluster_id))


def _add_ops(branch: Any, ops: Iterable[Op]) -> None:
    for op in ops:
        match op:
            case Get():
                request = branch.add().request_range
                request.key, request.range_end, request.limit = op.key, op.end, op.limit
                request.keys_only, request.serializable = op.keys_only, op.stale
                if op.created_from:
                    request.sort_order = rpc_pb2.RangeRequest.ASCEND
                    request.sort_target = rpc_pb2.RangeRequest.CREATE
                    request.min_create_revision = op.created_from
            case Put():
                put = branch.add().request_put
                put.key, put.value = op.key, op.value
            case Delete():
                delete = branch.add().request_delete_range
                delete.key, delete.range_end = op.key, op.end
