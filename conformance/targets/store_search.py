"""Searches a store's contents and a server's log for an owner token, which must not appear there (LEASE-15)."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from volcano_locks_server.stores import OpenStore

from .target import Result


def stored_bytes(store: OpenStore, folder: Path) -> list[bytes]:
    """Everything that a store keeps: its records in memory and its files in `folder`."""
    in_memory = repr(getattr(store.locks, "records", "")).encode()
    return [in_memory, *(path.read_bytes() for path in folder.rglob("*") if path.is_file())]


def search(token: str, contents: Iterable[bytes]) -> Result:
    """Whether `contents` hold the token. `digest_found` shows that the search works: the digest must be there."""
    contents = list(contents)
    raw = bytes.fromhex(token.replace("-", ""))
    return {
        "found": any(_contains(content, sought) for content in contents for sought in (token.encode(), raw)),
        "digest_found": any(_contains(content, sha256(token.encode()).digest()) for content in contents),
    }


def _contains(content: bytes, sought: bytes) -> bool:
    """As bytes, in hex, or as Python's `repr` shows them."""
    return any(form in content for form in (sought, sought.hex().encode(), repr(sought)[2:-1].encode()))
