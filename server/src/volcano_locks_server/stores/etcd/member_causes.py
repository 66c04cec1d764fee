"""Says which member of the cluster cannot be used, and why, at the start and in `doctor` (CLI-15)."""

import asyncio
from typing import Final

from ...rules.errors import StoreUnavailableError
from ..connection_causes import unreachable_cause
from .address import EtcdAddress
from .faults import CREDENTIALS_REFUSED, UNREACHABLE_CODE

REFUSALS: Final = (CREDENTIALS_REFUSED[0], "etcd_permission")


async def explained(error: StoreUnavailableError, address: EtcdAddress) -> StoreUnavailableError:
    """The error with the members and the causes in its message, if it is about the way to them."""
    if error.cause_code == UNREACHABLE_CODE:
        causes = await asyncio.gather(*(member_cause(address, endpoint) for endpoint in address.endpoints))
        found = "; ".join(f"{endpoint}: {cause}" for endpoint, cause in zip(address.endpoints, causes, strict=True))
        message = f"no member of the etcd cluster can be reached ({found}): check the store's URL and that they run"
        return StoreUnavailableError(error.cause_code, message)
    if error.cause_code in REFUSALS:
        return StoreUnavailableError(error.cause_code, f"{', '.join(address.endpoints)}: {error.message}")
    return error


async def member_cause(address: EtcdAddress, endpoint: str) -> str:
    """Why this member cannot be used."""
    host, _, port = endpoint.rpartition(":")
    cause = await unreachable_cause(host.strip("[]"), int(port))
    if cause is not None:
        return cause
    how = "with TLS" if address.tls else "without TLS"
    return f"it accepts connections, but does not respond as etcd {how}; see its port, and tls, ca, cert and key"
