"""A `with_lock` block of a simulated client, over the product's `Block` and `Hold`."""

from collections.abc import Callable
from typing import Any, Final

from volcano_locks.errors import VolcanoError
from volcano_locks.holding.block import Block
from volcano_locks.holding.hold import BlockLeft, Hold
from volcano_locks.protocol.renewal_plan import Lost, Wait

from .client import Client, rest_seconds


class HeldBlock:
    """Enters, renews while its body runs, and leaves after `body_seconds`."""

    def __init__(
        self,
        client: Client,
        key: str,
        ttl: int,
        *,
        wait: float | None,
        body_seconds: float,
        on_left: Callable[[], None],
    ) -> None:
        self._client: Final = client
        self._key: Final = key
        self._body_seconds: Final = body_seconds
        self._on_left: Final = on_left
        acquire = client.operations.acquire(key, ttl, None, None, wait, for_block=True)
        clock: Any = client.clock
        self._block: Final = Block(key, client.operations, clock, acquire, client.blocks)
        client.perform(self._block.enter(object()), self._entered)

    def _entered(self, hold: Hold | None, error: VolcanoError | None) -> None:
        client = self._client
        if hold is None:
            assert error is not None
            client.after(rest_seconds(error), self._on_left)
            return
        client.checker.believes(
            client.name, self._key, hold.lease.fencing_token, lambda: not client.is_gone and not hold.not_held_error()
        )
        client.after(self._body_seconds, self._leave)
        self._renew(hold)

    def _renew(self, hold: Hold) -> None:
        """What `_run_renewals` of the asyncio client does."""
        action, client = hold.next_action(), self._client
        if isinstance(action, BlockLeft):
            return
        if isinstance(action, Lost):
            client.world.note(client.name, "notices that its lease is lost", self._key)
        elif isinstance(action, Wait):
            client.after(action.until - client.clock.now(), self._renew, hold)
        else:
            client.perform(self._block.renew(action.timeout_seconds), lambda _result, _error: self._renew(hold))

    def _leave(self) -> None:
        self._block.stop()
        self._client.perform(self._block.leave(), lambda _loss, _error: self._on_left())
