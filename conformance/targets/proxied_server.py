"""A listening server behind a fault proxy: what the targets of all clients share."""

from collections.abc import Mapping
from typing import Final

from ..fault_proxy import FaultProxy
from .server_harness import ServerHarness
from .target import Result


class ProxiedServer:
    """Acts out the verbs of server and network, for a client that runs its default transport."""

    VERBS: Final = frozenset({"outage", "outage_ends", "sent", "cut", "restart", "purge"})

    def __init__(self, harness: ServerHarness) -> None:
        self._harness: Final = harness
        self.proxy: Final = FaultProxy(harness)
        self.service_key: Final = harness.service_key

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        """Act out one of `VERBS`. Its clock must settle afterwards: the client may have work to do."""
        result: Result = {}
        match verb:
            case "outage":
                self.proxy.add_fault(args)
            case "outage_ends":
                self.proxy.clear_faults()
            case "sent":
                result = self.proxy.take_sent(str(args["actor"]))
            case "cut":
                self.proxy.cut_streams(str(args["actor"]))
            case "restart":
                result = self.proxy.restart_server()
            case _:
                result = self._harness.purge()
        return result

    def now_ms(self) -> int:
        return self._harness.clock.now_ms()

    def close(self) -> None:
        self.proxy.close()
        self._harness.close()
