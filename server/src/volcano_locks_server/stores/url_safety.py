"""What a store's URL exposes: a password to other users of the machine, the traffic to the network (CLI-37).

Pure: nothing is resolved and nothing is connected to.
"""

import ipaddress
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote

_SHARED: Final = frozenset({"postgresql", "postgres", "etcd"})
_PASSWORD_PARAMETERS: Final = frozenset({"password", "sslpassword"})
_ENCRYPTED: Final = frozenset({"require", "verify-ca", "verify-full"})


def has_password(url: str) -> bool:
    """Whether the URL of a shared store contains a password."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SHARED:
        return False
    location, _, query = rest.partition("?")
    if any(name.lower() in _PASSWORD_PARAMETERS and value for name, value in parse_qsl(query)):
        return True
    credentials, at, _ = location.rpartition("@")
    if at:
        return bool(credentials.partition(":")[2])
    port = location.partition("/")[0].rpartition(":")[2]  # or the begin of a password with a / or a ?
    return "@" in query and ":" in location and not port.isdigit()


def plaintext_hosts(url: str, environ: Mapping[str, str]) -> list[str]:
    """The hosts beyond this machine to which the URL of a shared store connects without TLS, or may do so.

    `environ` has the variables that the driver of PostgreSQL reads.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in _SHARED:
        return []
    location, _, query = rest.partition("?")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    hosts = _hosts(location)
    if scheme == "etcd":
        encrypted = parameters.get("tls") == "1" or not {"ca", "cert"}.isdisjoint(parameters)
    else:
        hosts = hosts or _split(parameters.get("host", "")) or _from_environment(parameters, environ)
        encrypted = parameters.get("sslmode", environ.get("PGSSLMODE", "")) in _ENCRYPTED
    return [] if encrypted else [host for host in hosts if not is_local(host)]


def is_local(host: str) -> bool:
    """Whether only this machine can see the traffic to the host: loopback, or the folder of a Unix socket."""
    if host.startswith("/") or host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _from_environment(parameters: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    if parameters.get("service") or environ.get("PGSERVICE"):
        return ["the host of the service file"]
    return _split(environ.get("PGHOST", ""))


def _hosts(location: str) -> list[str]:
    return _split(unquote(location.partition("/")[0].rpartition("@")[2]))


def _split(listed: str) -> list[str]:
    """The hosts of a list, without their ports."""
    hosts = []
    for entry in filter(None, listed.split(",")):
        if entry.startswith("["):
            hosts.append(entry[1:].partition("]")[0])
        else:
            hosts.append(entry if entry.count(":") > 1 or entry.startswith("/") else entry.partition(":")[0])
    return hosts
