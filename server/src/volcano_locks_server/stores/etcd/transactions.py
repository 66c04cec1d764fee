"""The few of etcd's messages that this store needs, and a transaction in our own words.

The tables below are our own short version of etcd's protocol: the fields we use, under etcd's numbers. The message
classes are made from them when this module is loaded, so there is no generated code; nobody but this module sees
one (`watch` makes its own). What others see: `Guard`, what must be so; `Op`, what to do; `Found`, a key as it was read;
`Answer`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TXN: Final = "/etcdserverpb.KV/Txn"
AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
STATUS: Final = "/etcdserverpb.Maintenance/Status"

_TYPES: Final = {"int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_FIELDS: Final = """
    KeyValue: key=1 bytes, create_revision=2 int64, mod_revision=3 int64, value=5 bytes
    Range: key=1 bytes, range_end=2 bytes, limit=3 int64, sort_order=5 int32, sort_target=6 int32, \
serializable=7 bool, keys_only=8 bool, min_create_revision=12 int64
    RangeAnswer: kvs=2 KeyValue*
    Put: key=1 bytes, value=2 bytes
    Delete: key=1 bytes, range_end=2 bytes
    Op: range=1 Range, put=2 Put, delete=3 Delete
    OpAnswer: range=1 RangeAnswer
    Compare: result=1 int32, target=2 int32, key=3 bytes, mod_revision=6 int64?
    Txn: compare=1 Compare*, success=2 Op*, failure=3 Op*
    Header: revision=3 int64
    TxnAnswer: header=1 Header, succeeded=2 bool, responses=3 OpAnswer*
    Authenticate: name=1 string, password=2 string
    AuthenticateAnswer: token=2 string
    StatusAnswer: version=2 string
"""
_ASCENDING: Final = 1
_BY_CREATION: Final = 2
_MOD_REVISION: Final = 2


class Guard(NamedTuple):
    """The key was last written at `mod_revision`; 0: it is not there."""

    key: bytes
    mod_revision: int


class Found(NamedTuple):
    """A key as it was read, with the revisions that created it and wrote it last."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int


class Read(NamedTuple):
    """Read one key, or all from `key` to before `end`: at most `limit` (0: all), created at a revision from
    `created_from` on and in that order where it is not 0, else in the order of the keys.
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
    """Delete one key, or all from `key` to before `end`."""

    key: bytes
    end: bytes = b""


Op = Read | Put | Delete


class Answer(NamedTuple):
    """Whether all guards held, and what each operation of that side found (nothing, for those that write).

    `revision` is the store's after it, and so the mod revision of what it wrote.
    """

    succeeded: bool
    found: Sequence[Sequence[Found]]
    revision: int

    def one(self, place: int) -> Found | None:
        """What the read of one key at `place` found."""
        return self.found[place][0] if self.found[place] else None


def txn(guards: Iterable[Guard], then: Iterable[Op], otherwise: Iterable[Op]) -> bytes:
    """A transaction on the wire."""
    message = _Txn()
    for key, mod_revision in guards:
        message.compare.add(target=_MOD_REVISION, key=key, mod_revision=mod_revision)
    _fill(message.success, then)
    _fill(message.failure, otherwise)
    return bytes(message.SerializeToString())


def txn_answer(wire: bytes) -> Answer:
    """Its answer from the wire."""
    message = _TxnAnswer.FromString(wire)
    found = [
        [Found(kv.key, kv.value, kv.create_revision, kv.mod_revision) for kv in response.range.kvs]
        for response in message.responses
    ]
    return Answer(message.succeeded, found, message.header.revision)


def authenticate(user: str, password: str) -> bytes:
    """Ask for a token."""
    return bytes(_Authenticate(name=user, password=password).SerializeToString())


def authenticate_answer(wire: bytes) -> str:
    """The token."""
    return str(_AuthenticateAnswer.FromString(wire).token)


def version_answer(wire: bytes) -> str:
    """A member's version, from its answer to STATUS (which asks nothing in particular)."""
    return str(_StatusAnswer.FromString(wire).version)


def _fill(side: Any, ops: Iterable[Op]) -> None:
    for op in ops:
        match op:
            case Read():
                wanted = side.add().range
                wanted.key, wanted.range_end, wanted.limit = op.key, op.end, op.limit
                wanted.keys_only, wanted.serializable = op.keys_only, op.stale
                if op.created_from:
                    wanted.sort_order, wanted.sort_target = _ASCENDING, _BY_CREATION
                    wanted.min_create_revision = op.created_from
            case Put():
                put = side.add().put
                put.key, put.value = op.key, op.value
            case Delete():
                delete = side.add().delete
                delete.key, delete.range_end = op.key, op.end


def message_classes(fields_of_each: str) -> dict[str, Any]:
    """The message classes of such a table, by name. `*` is repeated; `?` is sent also when it is 0."""
    file = descriptor_pb2.FileDescriptorProto(name="volcano_locks_etcd.proto", package="etcd", syntax="proto3")
    lines = [line.strip().partition(":") for line in fields_of_each.strip().splitlines()]
    for name, _, fields in lines:
        message = file.message_type.add(name=name)
        for field in filter(None, (text.strip() for text in fields.split(","))):
            label, _, kind = field.partition(" ")
            field_name, _, number = label.partition("=")
            added = message.field.add(name=field_name, number=int(number), label=3 if kind.endswith("*") else 1)
            if kind.endswith("?"):
                message.oneof_decl.add(name="_" + field_name)
                added.oneof_index, added.proto3_optional = 0, True
            plain = kind.rstrip("*?")
            if plain in _TYPES:
                added.type = _TYPES[plain]
            else:
                added.type, added.type_name = 11, ".etcd." + plain
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"etcd.{name}")) for name, _, _ in lines}


_CLASSES: Final = message_classes(_FIELDS)
_Txn: Final = _CLASSES["Txn"]
_TxnAnswer: Final = _CLASSES["TxnAnswer"]
_Authenticate: Final = _CLASSES["Authenticate"]
_AuthenticateAnswer: Final = _CLASSES["AuthenticateAnswer"]
_StatusAnswer: Final = _CLASSES["StatusAnswer"]
