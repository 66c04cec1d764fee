"""The address of the client behind trusted proxies (HTTP-30). Pure: no I/O."""

import ipaddress
from functools import lru_cache
from typing import Final

PROXIES_IN_A_ROW_MAX: Final = 16
PEERS_CACHED: Final = 1_024

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """The networks of proxies whose `X-Forwarded-For` is believed. `listed` are addresses and CIDRs, with commas.

    Raises ValueError with the entry that is neither.
    """

    def __init__(self, listed: str = "") -> None:
        entries = [entry.strip() for entry in listed.split(",")] if listed else []
        self._networks: Final = tuple(_network(entry) for entry in entries)
        self._is_trusted_peer: Final = lru_cache(maxsize=PEERS_CACHED)(self._find)

    def trusts(self, peer: str) -> bool:
        """Whether the peer of a connection is a trusted proxy."""
        return bool(self._networks) and self._is_trusted_peer(peer)

    def _find(self, peer: str) -> bool:
        address = _parsed(peer.partition("%")[0])
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def client_address(self, peer: str, forwarded_for: bytes | None) -> str:
        """The address of the client whose request arrived from `peer` with this X-Forwarded-For.

        It is the rightmost address that is not a trusted proxy, or the leftmost one if all are trusted proxies. It is
        `peer` if that is not trusted, if an entry up to there is malformed, or if it is not among the last
        PROXIES_IN_A_ROW_MAX entries.
        """
        if forwarded_for is None or not self.trusts(peer):
            return peer
        rest = forwarded_for
        for _ in range(PROXIES_IN_A_ROW_MAX):
            rest, comma, entry = rest.rpartition(b",")
            address = _parsed(_without_port(entry.strip(b" \t").decode("latin-1")))
            if address is None:
                return peer
            if not comma or not self._is_trusted(address):
                return str(address)
        return peer


def _network(entry: str) -> Network:
    try:
        return ipaddress.ip_network(entry)
    except ValueError as error:
        raise ValueError(f"{entry!r} is not an address or a network such as 10.0.0.0/8: {error}") from None


def _parsed(text: str) -> Address | None:
    """The address, an IPv4 address in IPv6 form as IPv4. None if it is malformed, or has a zone."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return None if address.scope_id is not None else address.ipv4_mapped or address
    return address


def _without_port(entry: str) -> str:
    """The address in `192.0.2.7:80`, `[2001:db8::1]:80` and `[2001:db8::1]`; other text as it is."""
    if entry.startswith("["):
        address, bracket, port = entry[1:].partition("]")
        is_valid = ":" in address and bracket and (not port or _is_port(port))
        return address if is_valid else ""
    if entry.count(":") == 1:
        address, _, port = entry.partition(":")
        return address if _is_port(":" + port) else ""
    return entry


def _is_port(text: str) -> bool:
    return text[0] == ":" and text[1:].isascii() and text[1:].isdigit()
