"""Parses the URL of an etcd store.

    etcd://user:password@a:2379,b:2379,c:2379/prefix?ca=/etc/ca.pem&cert=/etc/me.pem&key=/etc/me.key&tls=1

User, password, prefix and parameters are optional. User and password are percent-encoded if they contain reserved
characters. `ca` is the authority that signed the members' certificates; `cert` and `key` are this client's, for a
cluster that requires one. Each of the three switches TLS on; `tls=1` alone trusts the system's authorities. Messages
never repeat the URL, because it may hold a password.
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
class EtcdAddress:
    """A cluster: its members as `host:port`, the prefix of the store's keys, and the credentials."""

    endpoints: tuple[str, ...]
    prefix: str = PREFIX_DEFAULT
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    authority: Path | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None

    @classmethod
    def parse(cls, url: str) -> "EtcdAddress":
        """The address in `url`. Raises ValueError with a message for users, without the URL's text."""
        scheme, separator, rest = url.partition("://")
        if scheme != "etcd" or not separator:
            raise _invalid_address("it does not begin with etcd://")
        location, _, query = rest.partition("?")
        credentials, at, rest = location.rpartition("@")
        hosts, slash, prefix = rest.partition("/")
        if slash and _PREFIX.fullmatch(prefix) is None:
            raise _invalid_address("its prefix may contain letters, digits, . _ - and single slashes between them")
        user, password = _user_and_password(credentials) if at else (None, None)
        parameters = _parameters(query)
        authority, certificate, key = (_path(parameters.get(name)) for name in ("ca", "cert", "key"))
        if (certificate is None) != (key is None):
            raise _invalid_address("cert and key go together")
        tls = parameters.get("tls", "1" if authority or certificate else "0")
        if tls not in ("0", "1") or (tls == "0" and (authority or certificate)):
            raise _invalid_address("tls is 0 or 1, and not 0 beside ca, cert and key")
        return cls(_endpoints(hosts), prefix or PREFIX_DEFAULT, user, password, tls == "1", authority, certificate, key)


def _user_and_password(text: str) -> tuple[str, str]:
    user, colon, password = text.partition(":")
    if not user or not colon or not password:
        raise _invalid_address("before the @ it needs a user and a password, separated by a colon")
    return unquote(user), unquote(password)


def _endpoints(hosts: str) -> tuple[str, ...]:
    endpoints = []
    for host in hosts.split(","):
        found = _ENDPOINT.fullmatch(host)
        if found is None or not 0 < int(found[2] or PORT_DEFAULT) < 65_536:
            raise _invalid_address("its members must be host:port pairs, separated by commas")
        endpoints.append(f"{found[1]}:{found[2] or PORT_DEFAULT}")
    if len(endpoints) > ENDPOINTS_MAX:
        raise _invalid_address(f"it names more than {ENDPOINTS_MAX} members")
    return tuple(dict.fromkeys(endpoints))


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _invalid_address("its parameters must be name=value pairs, separated by &") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs) or not parameters.keys() <= _PARAMETERS:
        raise _invalid_address(f"its parameters are {', '.join(sorted(_PARAMETERS))}, each at most once")
    return parameters


def _path(text: str | None) -> Path | None:
    if text == "":
        raise _invalid_address("ca, cert and key are paths of PEM files")
    return None if text is None else Path(text)


def _invalid_address(reason: str) -> ValueError:
    return ValueError(f"store must be {SHAPE}; got one that is not: {reason}")
