"""What the connections of a listener share: the application, the limits, the read buffer, the turns of requests."""

import asyncio
from typing import Final

from ..lease_requests import LeaseRequests
from .asgi_request import AsgiApp
from .client_address import TrustedProxies
from .connection_limits import ConnectionLimits
from .request_turns import RequestTurns

READ_BYTES: Final = 16_384  # in one read


class ConnectionContext:
    """What the connections of one listener share."""

    def __init__(
        self,
        app: AsgiApp,
        lease_requests: LeaseRequests | None,
        limits: ConnectionLimits,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.app: Final = app
        self.lease_requests: Final = lease_requests
        self.limits: Final = limits
        self.proxies: Final = proxies or TrustedProxies()
        self.loop: Final = asyncio.get_running_loop()
        self.read_buffer: Final = bytearray(READ_BYTES)
        self.read_view: Final = memoryview(self.read_buffer)
        self.turns: Final = RequestTurns()
