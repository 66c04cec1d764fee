"""Where an etcd cluster is and how to enter it, read from the store's URL.

    etcd://user:password@a:2379,b:2379,c:2379/prefix?ca=/etc/ca.pem&cert=/etc/me.pem&key=/etc/me.key&tls=1

User, password, prefix and parameters may be left out. User and password are percent-encoded where they hold
characters of the URL's own. `ca` names the authority that signed the members' certificates and, like `cert` and
`key` (ours, for a cluster that asks for one), switches TLS on; `tls=1` alone trusts the system's authorities.
A message about a URL never repeats it: it may hold a password.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

PORT_DEFAULT: Final = 2379
PREFIX_DEFAULT: Final = "volcano-locks"
ENDPOINTS_MAX: Final = 16
SHAPE: Final = "etcd://host:port,host:port or etcd://user:password@host:port/prefix?ca=…&cert=…&key=…&tls=1"

_ENDPOINT: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", re.ASCII)
_PARAMETERS: Final = frozenset({"ca", "cert", "key", "tls"})


@dataclass(frozen=True, slots=True)
class Address:
    """A cluster: its members as `host:port`, the prefix of all our keys there, and what opens its doors."""

    endpoints: tuple[str, ...]
    prefix: str = PREFIX_DEFAULT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    authority: Path | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None

    @classmethod
    def parse(cls, url: str) -> "Address":
        """The address that `url` names. Raises ValueError, for people to read, without the URL's text."""
        scheme, separator, rest = url.partition("://")
        if scheme != "etcd" or not separator:
            raise _refused("it does not begin with etcd://")
        place, _, query = rest.partition("?")
        entrance, at, where = place.rpartition("@")
        hosts, slash, prefix = where.partition("/")
        if slash and _PREFIX.fullmatch(prefix) is None:
            raise _refused("its prefix may hold letters, digits, . _ - and single slashes in between")
        user, password = _entrance(entrance) if at else (None, None)
        parameters = _parameters(query)
        authority, certificate, key = (_path(parameters.get(name)) for name in ("ca", "cert", "key"))
        if (certificate is None) != (key is None):
            raise _refused("cert and key go together")
        tls = parameters.get("tls", "1" if authority or certificate else "0")
        if tls not in ("0", "1") or (tls == "0" and (authority or certificate)):
            raise _refused("tls is 0 or 1, and not 0 beside ca, cert and key")
        return cls(_endpoints(hosts), prefix or PREFIX_DEFAULT, user, password, tls == "1", authority, certificate, key)


def _entrance(text: str) -> tuple[str, str]:
    user, colon, password = text.partition(":")
    if not user or not colon or not password:
        raise _refused("before the @ stand a user and a password, with a colon between")
    return unquote(user), unquote(password)


def _endpoints(hosts: str) -> tuple[str, ...]:
    endpoints = []
    for host in hosts.split(","):
        found = _ENDPOINT.fullmatch(host)
        if found is None or not 0 < int(found[2] or PORT_DEFAULT) < 65_536:
            raise _refused("after the user come host:port pairs with commas between")
        endpoints.append(f"{found[1]}:{found[2] or PORT_DEFAULT}")
    if len(endpoints) > ENDPOINTS_MAX:
        raise _refused(f"it names more than {ENDPOINTS_MAX} members")
    return tuple(dict.fromkeys(endpoints))


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _refused("its parameters are name=value pairs with & between") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs) or not parameters.keys() <= _PARAMETERS:
        raise _refused(f"its parameters are {', '.join(sorted(_PARAMETERS))}, each at most once")
    return parameters


def _path(text: str | None) -> Path | None:
    if text == "":
        raise _refused("ca, cert and key are paths of PEM files")
    return None if text is None else Path(text)


def _refused(why: str) -> ValueError:
    return ValueError(f"store must be {SHAPE}; this one is not: {why}")
