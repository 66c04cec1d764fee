"""What a request used is freed when it is over, without the garbage collector."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from volcano_locks_server.http.codec import Receive, Scope, Send
from volcano_locks_server.http.request_head import HTTP_1_1, RequestHead
from volcano_locks_server.http.server.asgi_request import AsgiRequest, asgi_scope


class _Connection:
    def is_closing(self) -> bool:
        return False

    def write(self, _data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def body_taken(self) -> None: ...
    def response_complete(self) -> None: ...
    def abort(self) -> None: ...


async def _app(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture(autouse=True)
def collector_is_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_a_request_and_its_connection_are_freed_after_its_response() -> None:
    connection = _Connection()
    reference = weakref.ref(connection)
    head = RequestHead(b"GET", HTTP_1_1, {}, keep_alive=True)
    request = AsgiRequest(connection, asgi_scope(head, b"/locks/a", client=None, is_tls=False), head)
    await request.run(_app)
    del request, connection
    assert reference() is None
