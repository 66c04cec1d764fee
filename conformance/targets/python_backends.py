"""What is behind the Python clients of a target: a server, or the fake that the client ships."""

from collections.abc import Mapping
from typing import Any, Protocol

from volcano_locks.testing import FakeLocks

from .client_clock import ClientClock
from .proxied_server import ProxiedServer
from .raw_http import ms_of
from .server_harness import ServerHarness
from .target import Result


class Backend(Protocol):
    """What the clients connect to, and their clock."""

    clock: ClientClock

    def client_options(self, actor: str) -> dict[str, Any]:
        """The options of the client of this actor."""

    def now_ms(self) -> int: ...
    def do(self, verb: str, args: Mapping[str, object]) -> Result: ...
    def close(self) -> None: ...


class ServerBackend(ProxiedServer):
    """A listening server behind a fault proxy. The clients run their default transport."""

    def __init__(self, harness: ServerHarness) -> None:
        super().__init__(harness)
        self.clock = ClientClock(self.proxy)

    def client_options(self, actor: str) -> dict[str, Any]:
        return {"api_url": self.proxy.url(actor), "service_key": self.service_key}


class FakeBackend:
    """The fake that the client ships for its users' tests (SDK-10)."""

    def __init__(self) -> None:
        self.clock = ClientClock()
        self._fake = FakeLocks(self.clock)

    def client_options(self, actor: str) -> dict[str, Any]:  # noqa: ARG002 - all use the same
        return {"api_url": "http://fake.invalid", "service_key": "sk-fake", "transport": self._fake}

    def now_ms(self) -> int:
        return ms_of(self.clock.utc_now())

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        raise NotImplementedError(f"a fake has no network and no server: {verb} {args}")

    def close(self) -> None:
        return
