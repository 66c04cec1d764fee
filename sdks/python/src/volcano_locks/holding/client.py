"""What both clients share: their settings, and how they make blocks."""

import os
from typing import TYPE_CHECKING

from volcano_locks.clock import Clock, SystemClock
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.holding.block import Block, BlocksOfClient
from volcano_locks.protocol.arguments import Uuid, checked_hold, checked_renew_every, checked_ttl
from volcano_locks.protocol.checked_operations import CheckedOperations

if TYPE_CHECKING:
    from volcano_locks.http.transport import Transport


class BaseClient:
    """The settings of a client."""

    def __init__(
        self,
        api_url: str | None = None,
        service_key: str | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        holder: str | None = None,
        clock: Clock | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        transport: "Transport | None" = None,
    ) -> None:
        """`api_url` and `service_key` default to `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`.

        `timeout_seconds` limits one request; a call sends at most two. `holder` is the label for people and defaults to
        `host/pid`. `ca_file` is a PEM file with the certificates to trust instead of the system's. `transport` is a
        fake from `volcano_locks.testing`.
        """
        config = Config.resolve(api_url, service_key, timeout_seconds, holder, ca_file)
        self._repr = f"{type(self).__name__}({config.api_url!r})"
        self._set_up(config, clock or SystemClock(), transport)

    def _set_up(self, config: Config, clock: Clock, transport: "Transport | None") -> None:
        """Create `locks`."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._repr


class BaseLocks:
    """The operations of a client, and what its blocks share."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._clock = clock
        self._operations = CheckedOperations(clock.now, config.timeout_seconds)
        self._blocks = BlocksOfClient()

    def _new_block(  # noqa: PLR0917 - every argument of `with_lock`
        self,
        key: str,
        ttl: int,
        wait: float | None,
        hold_at_least: float | None,
        renew_every: float | None,
        token: Uuid | None = None,
        request_id: Uuid | None = None,
    ) -> Block:
        every = checked_block(ttl, hold_at_least, renew_every)
        acquire = self._operations.acquire(key, ttl, token, request_id, wait, for_block=True)
        return Block(
            key,
            self._operations,
            self._clock,
            acquire,
            self._blocks,
            hold_at_least=hold_at_least,
            renew_every=every,
        )


def checked_block(ttl: int, hold_at_least: float | None, renew_every: float | None) -> float | None:
    """Return `renew_every` if all three are valid; raise `TypeError` or `ValueError` otherwise."""
    every = checked_renew_every(renew_every, checked_ttl(ttl))
    checked_hold(hold_at_least)
    return every
