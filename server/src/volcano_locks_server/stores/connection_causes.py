"""Says why a connection to a database failed, for operators: in the log, at the start and in `doctor` (CLI-15)."""

import asyncio
import errno
import re
import socket
import ssl
from contextlib import suppress
from typing import Final

PROBE_SECONDS_MAX: Final = 1.0
_REFUSED: Final = "the connection was refused"
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")  # asyncio joins the errors of several addresses in one text


def cause_of(error: BaseException) -> str:
    """The cause in a few words, without anything that the other side sent."""
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({(error.reason or 'no reason given').replace('_', ' ').lower()})"
    if isinstance(error, TimeoutError):
        return "it did not respond in time"
    if isinstance(error, OSError):
        found = _ERRNO.search(str(error))
        number = error.errno or (int(found[1]) if found else 0)
        return _REFUSED if number == errno.ECONNREFUSED else error.strerror or "the connection failed"
    return "the connection failed"


async def unreachable_cause(host: str, port: int) -> str | None:
    """Why no TCP connection to this address is possible; None if one is. Takes up to PROBE_SECONDS_MAX."""
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except OSError as error:  # TimeoutError and gaierror are such
        return cause_of(error)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None
