"""Who sent a request, for the history (HISTORY-2): the service key, the address and the client."""

from functools import lru_cache
from typing import Final

from ..rules.hold import CLIENT_LENGTH_MAX, Requester
from .codec import SENT_REPEATEDLY

REQUESTERS_KEPT: Final = 4_096  # a worker sends the same ones with each acquire


@lru_cache(maxsize=REQUESTERS_KEPT)
def requester_of(key_id: str, key_name: str, address: str | None, user_agent: bytes | None) -> Requester:
    """The requester. Characters of the User-Agent outside printable ASCII become `?`, and it is cut short."""
    return Requester(key_id, key_name, address, _client(user_agent))


def _client(user_agent: bytes | None) -> str | None:
    if not user_agent or user_agent == SENT_REPEATEDLY:
        return None
    text = user_agent[:CLIENT_LENGTH_MAX].decode("latin-1")
    return "".join(one if " " <= one <= "~" else "?" for one in text)
