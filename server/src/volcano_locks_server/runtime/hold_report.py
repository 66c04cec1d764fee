"""Logs when takeovers are held because of a jump of the store's clock, and when that ends (LEASE-17)."""

from typing import Final

from ..http.health_routes import hold_reason
from ..ports.lock_store import LockStore
from ..stores.errors import format_instant
from ..telemetry import Log

CHECK_EVERY_SECONDS: Final = 1.0


class HoldReport:
    """Call `check` at the start and then every CHECK_EVERY_SECONDS."""

    def __init__(self, store: LockStore, log: Log) -> None:
        self._store: Final = store
        self._log: Final = log
        self._until_ms: int | None = None

    async def check(self) -> None:
        """Log a hold that began or was extended, and one that ended."""
        hold = self._store.takeover_hold()
        until_ms = None if hold is None else hold.until_ms
        if until_ms == self._until_ms:
            return
        self._until_ms = until_ms
        if hold is None:
            self._log.info("takeovers_allowed")
        else:
            until, seconds = format_instant(hold.until_ms), hold.left_ms // 1_000
            self._log.warning("takeovers_held", until=until, seconds_left=seconds, why=hold_reason(hold))
