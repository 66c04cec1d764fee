"""Who watches locks, and what they are told, on this node and over all nodes (EVENT rules in spec/watching.md)."""

from .event import Happening, happened
from .hub import Hub
from .subscriber import Told, Watcher

__all__ = ["Happening", "Hub", "Told", "Watcher", "happened"]
