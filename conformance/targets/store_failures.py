"""The failures of the store that a scenario's `outage` names, for `testsupport.server_ports.FaultyStore`."""

from collections.abc import Iterable
from itertools import repeat
from typing import Final

from testsupport.server_ports import When

UNLIMITED: Final = 1 << 30


def store_failures(kind: str, count: int) -> Iterable[When]:
    """`store_before`: the next `count` updates fail before they are written; `store_after`: afterwards."""
    return repeat("before" if kind == "store_before" else "after", count)
