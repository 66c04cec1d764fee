"""What a service's batches and lines did, told to the hub; and what the hub hears, told to the lines.

While nobody listens the batches write no deeds down, so that watching costs nothing where nobody watches (EVENT-6).
"""

from collections.abc import Iterable

from ..events import Happening, Hub, happened
from ..ports.clock import Clock
from ..ports.lock_store import LockStore, RecordKey
from ..ports.signals import Signals
from ..queue.handoff import Deed
from ..queue.wait_queue import Lines, Why
from ..queue.waiter import Place
from ..rules.lease import GiveBack


def hub_of(store: LockStore, clock: Clock, lines: Lines, signals: Signals | None) -> Hub:
    """The hub of a service with these lines, joined with them."""
    hub = Hub(store, clock, lines, signals=signals)

    def tell_deeds(deeds: Iterable[Deed]) -> None:
        hub.tell(told for deed in deeds for told in happenings(deed))

    def listen(live: bool) -> None:
        lines.on_deeds = tell_deeds if live else None

    def joined(lock: RecordKey, holder: str | None) -> None:
        hub.line_changed(lock)
        if hub.live:
            hub.tell((Happening("waiting", lock, None, holder, clock.now_ms(), "held"),))

    def left(lock: RecordKey, holder: str | None, why: Why) -> None:
        hub.line_changed(lock)
        if hub.live and why != "granted":
            told = "refused" if why == "refused" else "left"
            hub.tell((Happening("gave_up", lock, None, holder, clock.now_ms(), told),))

    hub.on_live = listen
    lines.on_joined, lines.on_left, lines.sharing.others_wait = joined, left, hub.others_wait
    return hub


def happenings(deed: Deed) -> tuple[Happening, ...]:
    """The events of one command of a batch."""
    if deed.outcome is None:
        return ()
    waited = isinstance(deed.place, Place) and deed.place.shown
    why = "waited" if waited else "given_back" if isinstance(deed.command, GiveBack) else None
    return happened(deed.key, deed.command, deed.before, deed.after, deed.outcome, now_ms=deed.at_ms, why=why)
