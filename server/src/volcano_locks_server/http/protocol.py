"""HTTP/1.1 on one connection, with limits."""

from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KEEP_ALIVE_SECONDS: Final = 90


class BoundedHttpProtocol(HttpToolsProtocol):
    pass
