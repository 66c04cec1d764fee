"""The fault proxy: stands between a client's default transport and a server, and injects the faults of a scenario."""

from .faults import ScriptedFault, SentRequests
from .proxy import FaultProxy

__all__ = ["FaultProxy", "ScriptedFault", "SentRequests"]
