"""Splits a URL with several hosts, so that each host can be tried in turn."""

from typing import Final

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
