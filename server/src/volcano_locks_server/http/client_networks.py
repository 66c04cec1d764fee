"""What counts as one client address. Pure: no I/O."""

import ipaddress
from typing import Final

IPV6_PREFIX_BITS: Final = 64  # a network of this size usually belongs to one customer or host


def network_of(address: str) -> str:
    """An IPv4 address, or the IPv6 network of IPV6_PREFIX_BITS."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), IPV6_PREFIX_BITS), strict=False))
