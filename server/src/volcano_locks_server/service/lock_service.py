"""The service: quota, then the command, then the commit, then the outcome.

`LockService.perform` is the whole of it. It counts the request against its project's quota, folds the command
into the next batch, and gives back a `Reply`: what came of it, and what the quota's headers say. It raises nothing
for a request that was counted, so that its answer carries the quota; only where a shared quota cannot be counted it
raises StoreUnavailableError. Who may call is decided before (by the door); what a lease means is decided after (by
`lease`). An acquire that waits goes through `lines` instead, and hears of its grant from there.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..ports.clock import Clock
from ..ports.lock_store import BATCH_MAX, LockStore, RecordKey
from ..ports.quota_store import QuotaStore
from ..ports.signals import Signals
from ..queue.handoff import Asked, decide
from ..queue.recheck import LOOK_SECONDS_MAX
from ..queue.wait_queue import Lines
from ..queue.wait_request import wait_in_line
from ..queue.waiter import Waited
from ..rules.errors import Code, LockError, StoreUnavailableError
from ..rules.lease import Acquire, Command, Outcome, Release, Renew
from ..rules.quota import Admission, Verdict
from ..rules.values import LockKey
from .event_source import hub_of
from .group_commit import GroupCommit
from .rate_limiter import Counting, OwnCounting, SharedCounting


@dataclass(frozen=True, slots=True)
class Denied:
    """The command was not judged: the quota is spent, or the store cannot answer.

    `cause_code` and `cause` are for logs and metrics, never for the caller.
    """

    code: Code
    message: str
    retry_after_seconds: int | None
    cause_code: str = ""
    cause: BaseException | None = None


class Reply(NamedTuple):
    """What came of a command, and what the quota says with it."""

    outcome: Outcome | Denied
    admission: Admission


class LockService:
    """Leases over one store. One object a process; `close` ends what it started.

    `quotas` is the count that nodes share, None where this process is the only one. `batches_in_flight` is how many
    updates at once the store likes best, `batch_max` how many commands it likes in one at the most. `lines` are those
    who wait here; with `several_nodes` over the store, they are looked at again and again. `hub` tells who watches what
    happens; once started, by `signals`, also what happens on other nodes.
    """

    def __init__(
        self,
        store: LockStore,
        clock: Clock,
        *,
        quotas: QuotaStore | None = None,
        owner_reserve: bool = True,
        batches_in_flight: int = 1,
        batch_max: int = BATCH_MAX,
        several_nodes: bool = False,
        signals: Signals | None = None,
        on_batch: Callable[[int, float], None] = lambda _size, _seconds: None,
    ) -> None:
        self._counting: Final[Counting] = (
            OwnCounting(clock, owner_reserve=owner_reserve)
            if quotas is None
            else SharedCounting(quotas, clock, owner_reserve=owner_reserve)
        )
        self.admit: Final = self._counting.admit
        self.admit_drawing: Final = self._counting.admit_drawing
        self.lines: Final = Lines(clock, look_ms=LOOK_SECONDS_MAX * 1_000 if several_nodes else None)
        self._commit: Final = GroupCommit[Asked, Outcome | None](
            store,
            decide,
            turns=self.lines.turn,
            on_batch=on_batch,
            batches_in_flight=batches_in_flight,
            batch_max=batch_max,
        )
        self.lines.begin(self._commit.ask)
        self.hub: Final = hub_of(store, clock, self.lines, signals)

    @property
    def at_rest(self) -> bool:
        """Whether all that goes on is waiting, in lines or for the clock: for whoever moves the clock."""
        return self._commit.at_rest

    async def perform(
        self, project_id: str, requests_per_minute: int, key: LockKey, command: Command, wait_ms: int = 0
    ) -> Reply:
        """Serve one command of a project whose quota is `requests_per_minute` (0: none). An acquire may wait, for
        `wait_ms` at the most: cancelling it is hanging up.

        `admit` and `admit_drawing` are its first half: they count a request before anything but its bearer is looked
        at. Whoever takes that half alone hands the admission to `perform_admitted`, or to `abandon` where the request
        turns out to hold no command.
        """
        may_draw_on_reserve = isinstance(command, Renew | Release)
        admission = self.admit(project_id, requests_per_minute, may_draw_on_reserve=may_draw_on_reserve)
        if admission is None:
            admission = await self.admit_drawing(
                project_id, requests_per_minute, may_draw_on_reserve=may_draw_on_reserve
            )
        if wait_ms and isinstance(command, Acquire):
            waited = await self.wait_admitted(RecordKey(project_id, key), command, wait_ms, admission)
            assert waited is not None, "only a hang-up gets no answer"
            return Reply(waited.outcome if isinstance(waited, Waited) else waited, admission)
        return Reply(await self.perform_admitted(project_id, key, command, admission), admission)

    async def perform_admitted(
        self, project_id: str, key: LockKey, command: Command, admission: Admission
    ) -> Outcome | Denied:
        """The second half of `perform`: serve a command that `admit` counted."""
        if admission.verdict is Verdict.SPENT:
            return _spent(admission)
        record_key = RecordKey(project_id, key)
        asked = Asked(command, owner_only=admission.verdict is Verdict.RESERVE)
        if isinstance(command, Release) and not asked.owner_only:
            self.lines.withdraw(record_key, command.owner_digest)
        try:
            outcome = await self._commit.ask(record_key, asked)
        except StoreUnavailableError as error:
            if asked.owner_only:
                self._counting.give_back(project_id, admission)  # it proved no ownership
            return _unavailable(error)
        if outcome is None:
            self._counting.give_back(project_id, admission)
            return _spent(admission)
        return outcome

    async def wait_admitted(
        self,
        key: RecordKey,
        command: Acquire,
        wait_ms: int,
        admission: Admission,
        *,
        gone: "asyncio.Future[None] | None" = None,
        still_may: Callable[[], Awaitable[object]] | None = None,
    ) -> Waited | Denied | None:
        """`perform_admitted` for an acquire that waits (WAIT-1 to WAIT-9). Once `gone` is done, nobody waits for the
        answer: then it is None, and nothing was granted. Cancelling does the same.

        Before a grant is told, `still_may` is asked whether its bearer may have it: it raises LockError if not.
        """
        if admission.verdict is Verdict.SPENT:
            return _spent(admission)
        try:
            return await wait_in_line(self.lines, key, command, wait_ms, gone=gone, still_may=still_may)
        except StoreUnavailableError as error:
            return _unavailable(error)
        except LockError as error:
            return Denied(error.code, error.message, error.retry_after_seconds)

    def stop_waiting(self) -> None:
        """Answer all who wait, so that they go on elsewhere, and let nobody wait any more (WAIT-8)."""
        self.lines.stop()

    def abandon(self, project_id: str, admission: Admission) -> Denied | None:
        """End the admission of a request that holds no command: what the quota answers it, None if it was admitted.

        It stays counted, but what it drew from the owners' reserve goes back: it proved no ownership.
        """
        if admission.verdict is Verdict.ADMITTED:
            return None
        if admission.verdict is Verdict.RESERVE:
            self._counting.give_back(project_id, admission)
        return _spent(admission)

    async def close(self) -> None:
        """Answer what waits, refuse what comes later."""
        self.lines.stop()
        await self._commit.close()
        self.lines.close()
        await self.hub.close()
        await self._counting.close()


def _unavailable(error: StoreUnavailableError) -> Denied:
    return Denied("lock_service_unavailable", error.message, 1, error.cause_code, error.__cause__)


def _spent(admission: Admission) -> Denied:
    return Denied(
        "lock_rate_limited",
        f"this project's quota of {admission.limit} requests a minute is spent: "
        f"try again in {admission.retry_after_seconds} s",
        admission.retry_after_seconds,
    )
