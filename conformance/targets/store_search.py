"""Looking for an owner token where none may be: in what a store keeps and in what a server writes (LEASE-15)."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from volcano_locks_server.stores import OpenStore

from .target import Answer


def kept_by(store: OpenStore, folder: Path) -> list[bytes]:
    """Everything a store keeps: its records in memory and its files in `folder`."""
    in_memory = repr(getattr(store.locks, "records", "")).encode()
    return [in_memory, *(path.read_bytes() for path in folder.rglob("*") if path.is_file())]


def search(text: str, places: Iterable[bytes]) -> Answer:
    """Whether the token `text` stands in one of `places`; and its digest, to show that the search finds things."""
    places = list(places)
    raw = bytes.fromhex(text.replace("-", ""))
    return {
        "found": any(_stands_in(place, sought) for place in places for sought in (text.encode(), raw)),
        "digest_found": any(_stands_in(place, sha256(text.encode()).digest()) for place in places),
    }


def _stands_in(place: bytes, sought: bytes) -> bool:
    """As it is, in hex, or as Python shows it."""
    return any(form in place for form in (sought, sought.hex().encode(), repr(sought)[2:-1].encode()))
