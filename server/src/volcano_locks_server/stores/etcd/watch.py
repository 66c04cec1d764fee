"""The few of etcd's messages that a watch needs: see `messages`."""

from typing import Final, NamedTuple

from .transactions import message_classes

WATCH: Final = "/etcdserverpb.Watch/Watch"

_FIELDS: Final = """
    KeyValue: value=5 bytes
    Event: type=1 int32, kv=2 KeyValue
    Create: key=1 bytes, range_end=2 bytes
    Progress:
    Request: create_request=1 Create, progress_request=3 Progress
    Answer: created=3 bool, canceled=4 bool, events=11 Event*
"""
_DELETED: Final = 1
_CLASSES: Final = message_classes(_FIELDS)
_Request: Final = _CLASSES["Request"]
_Answer: Final = _CLASSES["Answer"]


class WatchAnswer(NamedTuple):
    """What comes on a watch: that it begins, that it is over (for want of a permission, or because what it had still
    to tell was compacted), the values that were written, in their order, or nothing but a sign of life.
    """

    begins: bool
    is_over: bool
    values: list[bytes]


def watch(key: bytes, end: bytes) -> bytes:
    """Ask for all that is written from now on from `key` to before `end`."""
    request = _Request()
    request.create_request.key, request.create_request.range_end = key, end
    return bytes(request.SerializeToString())


def ask_for_life() -> bytes:
    """Ask a watch for a sign of life."""
    request = _Request()
    request.progress_request.SetInParent()
    return bytes(request.SerializeToString())


def watch_answer(wire: bytes) -> WatchAnswer:
    """An answer from the wire."""
    message = _Answer.FromString(wire)
    values = [event.kv.value for event in message.events if event.type != _DELETED]
    return WatchAnswer(message.created, message.canceled, values)
