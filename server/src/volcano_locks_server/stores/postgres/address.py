"""One URL, several hosts: which servers to ask, one after the other, for the one that can be written."""

from typing import Final

HOSTS_MAX: Final = 16


def hosts_of(url: str) -> list[str]:
    """The URL once for each host that it names, in its order.

    `postgresql://user:password@a:5432,b/locks?sslmode=require` names two. Raises ValueError, without what the URL
    holds, for more than HOSTS_MAX hosts.
    """
    rest = url.partition("://")[2]
    end = min((place for place in (rest.find("/"), rest.find("?")) if place >= 0), default=len(rest))
    user, at, hosts = rest[:end].rpartition("@")
    named = hosts.split(",")
    if len(named) > HOSTS_MAX:
        raise ValueError(f"store postgresql:// may name up to {HOSTS_MAX} hosts; got {len(named)}")
    return [f"postgresql://{user}{at}{host}{rest[end:]}" for host in named]
