"""One request at its node, in place of the product's HTTP/1.1 connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from volcano_locks_server.http.app import App
from volcano_locks_server.http.request_head import HTTP_1_1, RequestHead
from volcano_locks_server.http.server.asgi_request import AsgiRequest, asgi_scope

if TYPE_CHECKING:
    from .node import Process


class ServerRequest:
    """`respond` gets the response's bytes, or None if the connection broke."""

    def __init__(
        self, method: str, target: str, fields: dict[bytes, bytes], body: bytes, respond: Callable[[bytes | None], None]
    ) -> None:
        self.credential: Any = None
        self.method: Final = method
        self.target: Final = target
        self.fields: Final = fields
        self.arrived_at = 0.0
        self.is_over = False
        self._body: Final = body
        self._respond: Callable[[bytes | None], None] | None = respond
        self._written = b""
        self._process: Process | None = None
        self._asgi: AsgiRequest | None = None
        self._is_gone = False

    def serve(self, app: App, process: "Process") -> None:
        self._process, self.arrived_at = process, process.node.world.now
        head = RequestHead(self.method.encode(), HTTP_1_1, self.fields, keep_alive=True)
        target = self.target.encode()
        if app.lease_requests.start(self, head, target, self._body) is None:
            self._asgi = asgi = AsgiRequest(self, asgi_scope(head, target, client=None, is_tls=False), head)
            asgi.add_body(self._body)
            asgi.end_body()
            process.spawn(lambda: asgi.run(app))

    def disconnect(self) -> None:
        """The node learns that the client is gone."""
        if self.is_over:
            return
        self._is_gone = True
        if self._process is not None:
            self._process.node.observer.disconnected(self._process.node, self)
        if self._asgi is not None:
            self._asgi.disconnect()
        self._end()

    def connection_lost(self) -> None:
        """The process is gone or aborts the connection."""
        if not self.is_over:
            self._end_with(None)

    # --- Connection of the short way, AsgiConnection of the other ---

    def client_address(self, _forwarded_for: bytes | None) -> str | None:
        return None

    def is_closing(self) -> bool:
        return self._is_gone

    def write(self, data: bytes) -> None:
        self._written += data

    async def drain(self) -> None:
        return

    def body_taken(self) -> None: ...

    def response_complete(self) -> None:
        if not self.is_over:
            process = self._process
            assert process is not None
            process.node.observer.responded(process.node, self, self._written)
            self._end_with(self._written)

    def abort(self) -> None:
        self.connection_lost()

    def _end_with(self, response: bytes | None) -> None:
        respond = self._respond
        assert respond is not None
        self._end()
        respond(response)

    def _end(self) -> None:
        """The exchange and the ASGI request refer to this object: without references to them, it is freed at once."""
        self.is_over = True
        self._respond = self._asgi = None
        if self._process is not None:
            self._process.requests.pop(self, None)
