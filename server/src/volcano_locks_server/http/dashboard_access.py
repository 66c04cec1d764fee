"""From where the dashboard may be used: the names in `Host`, the origin of a change, and the path of a credential.

A page of another site can make a browser send requests here: with the session's cookie, or under a name of its own that
resolves to this address (DNS rebinding). The checks here refuse both (UI-7, UI-8). Pure: no I/O.
"""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from ..rules.errors import LockError
from ..rules.values import shown
from .audit_log import address_of
from .codec import FORWARDED_PROTO, HOST, ORIGIN, SEC_FETCH_SITE, X_FORWARDED_FOR, Scope

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9_-]*[a-z0-9])?)*")
_PORT: Final = re.compile(rb":([0-9]{1,5})$")
_NAME_LENGTH_MAX: Final = 253
_HOST_LENGTH_MAX: Final = _NAME_LENGTH_MAX + len(":65535")  # nothing longer is examined (HTTP-27)
_ORIGIN_LENGTH_MAX: Final = _HOST_LENGTH_MAX + len("https://")
_SAME_SITES: Final = (b"same-origin", b"none")


class DashboardAccess:
    """The names under which one server's dashboard may be used: loopback, `listening_host`, and those of `hosts`.

    `hosts` are names or addresses, with commas. Raises ValueError with the entry that is neither.
    """

    def __init__(self, hosts: str = "", listening_host: str = "") -> None:
        self._given: Final = frozenset(_checked(entry.strip()) for entry in hosts.split(",")) if hosts else frozenset()
        listening = listening_host.lower()
        self._names: Final = self._given if _is_unspecified(listening) else self._given | {listening}

    def check_host(self, fields: dict[bytes, bytes]) -> None:
        """Raise LockError `host_not_allowed` (UI-7)."""
        host = fields.get(HOST, b"").decode("latin-1")
        name = _name_of(host)
        if name not in self._names and not _is_loopback(name):
            raise LockError(
                "host_not_allowed",
                f"the dashboard is not served under the name {shown(host)}: start the server with "
                "--dashboard-hosts NAME to allow it",
            )

    def check_origin(self, fields: dict[bytes, bytes]) -> None:
        """Raise LockError `cross_site_refused` if a page of another origin sent this change (UI-8)."""
        site, origin = fields.get(SEC_FETCH_SITE), fields.get(ORIGIN)
        if site is not None and site not in _SAME_SITES:
            raise _cross_site("Sec-Fetch-Site is not same-origin")
        if origin is None:
            return
        if len(origin) > _ORIGIN_LENGTH_MAX:
            raise _cross_site("Origin is too long")
        try:
            found = urlsplit(origin.decode("latin-1"))
            is_own = found.netloc == fields.get(HOST, b"").decode("latin-1") or (found.hostname or "") in self._given
        except ValueError:  # such as http://[
            is_own = False
        if not is_own:
            raise _cross_site("Origin is not this server's own")

    def check_private(self, scope: Scope, fields: dict[bytes, bytes]) -> None:
        """Raise LockError `invalid_request` if others could read a credential in this request (UI-2)."""
        if not (is_https(scope) or is_loopback_request(scope, fields)):
            raise LockError(
                "invalid_request",
                "a credential is accepted only over TLS, from this machine, or from a proxy in --trusted-proxies that "
                "sends X-Forwarded-Proto: https; sign in with the link that volcano-locks dashboard prints instead",
            )


def is_https(scope: Scope) -> bool:
    """Whether the client speaks TLS, to this server or to a trusted proxy."""
    return bool(scope.get("scheme") == "https")


def is_loopback_request(scope: Scope, fields: dict[bytes, bytes]) -> bool:
    """Whether the request comes from a program on this machine, and not from a proxy on it."""
    is_proxied = X_FORWARDED_FOR in fields or FORWARDED_PROTO in fields
    return not is_proxied and _is_loopback(address_of(scope) or "") and has_loopback_host(fields)


def has_loopback_host(fields: dict[bytes, bytes]) -> bool:
    """Whether `Host` is a loopback name or address."""
    return _is_loopback(_name_of(fields.get(HOST, b"").decode("latin-1")))


def port_of_host(fields: dict[bytes, bytes]) -> str:
    """The port in `Host`, empty if it has none."""
    found = _PORT.search(fields.get(HOST, b"")[-len(":65535") :])
    return "" if found is None else found[1].decode()


def _cross_site(why: str) -> LockError:
    return LockError("cross_site_refused", f"this change did not come from the dashboard's own page: {why}")


def _name_of(host: str) -> str:
    """The name or address in a Host field, without port and brackets; empty if it is malformed."""
    if len(host) > _HOST_LENGTH_MAX:
        return ""
    if host.startswith("["):
        address, bracket, port = host[1:].partition("]")
        return address.lower() if bracket and (not port or port[0] == ":") else ""
    name, _, _port = host.partition(":")
    return name.lower()


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_unspecified(name: str) -> bool:
    try:
        return not name or ipaddress.ip_address(name).is_unspecified
    except ValueError:
        return False


def _checked(entry: str) -> str:
    name = entry.lower()
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    if len(name) > _NAME_LENGTH_MAX or _NAME.fullmatch(name) is None:
        raise ValueError(f"{entry!r} is not a host name or an address, without scheme and port")
    return name
