"""The messages of an etcd watch, encoded as protobuf (see `rpc.proto`)."""

from typing import Final, NamedTuple

from . import rpc_pb2

WATCH: Final = "/etcdserverpb.Watch/Watch"


class WatchResponse(NamedTuple):
    """One response on a watch: it was created, it was cancelled, values were written, or (all empty) it is alive.

    etcd cancels a watch if a permission is missing, or if it compacted revisions that the watch had not sent yet.
    """

    is_created: bool
    is_cancelled: bool
    values: list[bytes]


def encode_watch(key: bytes, end: bytes) -> bytes:
    """The request to watch writes from now on, from `key` up to but excluding `end`."""
    create = rpc_pb2.WatchCreateRequest(key=key, range_end=end)
    return bytes(rpc_pb2.WatchRequest(create_request=create).SerializeToString())


def encode_progress_request() -> bytes:
    """The request for a response that shows the watch to be alive."""
    return bytes(rpc_pb2.WatchRequest(progress_request=rpc_pb2.WatchProgressRequest()).SerializeToString())


def decode_watch_response(message: bytes) -> WatchResponse:
    """The response, with the values that were put, in order."""
    response = rpc_pb2.WatchResponse.FromString(message)
    values = [event.kv.value for event in response.events if event.type != rpc_pb2.Event.DELETE]
    return WatchResponse(response.created, response.canceled, values)
