"""Splits a URL with several hosts, so that each host can be tried in turn, and names a host for messages."""

from typing import Final
from urllib.parse import parse_qs

HOSTS_MAX: Final = 16


def split_hosts(url: str) -> list[str]:
    """One URL for each host in `url`, in order.

    `postgresql://user:password@a:5432,b/locks?sslmode=require` names two hosts. Raises ValueError, without the URL's
    text, for more than HOSTS_MAX hosts.
    """
    rest = url.partition("://")[2]
    end = min((index for index in (rest.find("/"), rest.find("?")) if index >= 0), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    named = hosts.split(",")
    if len(named) > HOSTS_MAX:
        raise ValueError(f"store postgresql:// may name up to {HOSTS_MAX} hosts; got {len(named)}")
    return [f"postgresql://{user}{at}{host}{rest[end:]}" for host in named]


def shown_host(url: str) -> str:
    """The host and port in the URL of one host, for messages: without user, password and parameters."""
    rest = url.partition("://")[2]
    location, _, query = rest.partition("?")
    named = location.partition("/")[0].rpartition("@")[2] or parse_qs(query).get("host", [""])[0]
    return named or "the default host"


def shown_user(url: str) -> str:
    """The user in the URL of one host, for messages; empty if it names none."""
    user, at, _ = url.partition("://")[2].partition("?")[0].rpartition("@")
    return user.partition(":")[0] if at else ""
