"""The service: quota, then the command, then the commit, then the outcome.

`LockService.perform` is the whole of it. It counts the request against its project's quota, folds the command
into the next batch, and gives back a `Reply`: what came of it, and what the quota's headers say. It raises nothing
for a request that was counted, so that its answer carries the quota; only where a shared quota cannot be counted it
raises StoreUnavailableError. Who may call is decided before (by the door); what a lease means is decided after (by
`lease`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from .clock import Clock
from .commit import BATCH_MAX, GroupCommit
from .counting import Counting, OwnCounting, SharedCounting
from .errors import Code, StoreUnavailableError
from .lease import Command, LockRecord, Outcome, Release, Renew, decide, owns
from .limits import LockKey
from .quota import Admission, Verdict
from .store import LockStore, QuotaStore, RecordKey


@dataclass(frozen=True, slots=True)
class Denied:
    """The command was not judged: the quota is spent, or the store cannot answer.

    `cause_code` and `cause` are for logs and metrics, never for the caller.
    """

    code: Code
    message: str
    retry_after_seconds: int
    cause_code: str = ""
    cause: BaseException | None = None


class Reply(NamedTuple):
    """What came of a command, and what the quota says with it."""

    outcome: Outcome | Denied
    admission: Admission


class _Asked(NamedTuple):
    command: Command
    owner_only: bool


class LockService:
    """Leases over one store. One object a process; `close` ends what it started.

    `quotas` is the count that nodes share, None where this process is the only one. `batches_in_flight` is how many
    updates at once the store likes best, `batch_max` how many commands it likes in one at the most.
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
        on_batch: Callable[[int, float], None] = lambda _size, _seconds: None,
    ) -> None:
        self._counting: Final[Counting] = (
            OwnCounting(clock, owner_reserve=owner_reserve)
            if quotas is None
            else SharedCounting(quotas, clock, owner_reserve=owner_reserve)
        )
        self.admit: Final = self._counting.admit
        self.admit_drawing: Final = self._counting.admit_drawing
        self._commit: Final = GroupCommit[_Asked, Outcome | None](
            store, _decide, on_batch=on_batch, batches_in_flight=batches_in_flight, batch_max=batch_max
        )

    async def perform(self, project_id: str, requests_per_minute: int, key: LockKey, command: Command) -> Reply:
        """Serve one command of a project whose quota is `requests_per_minute` (0: none).

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
        return Reply(await self.perform_admitted(project_id, key, command, admission), admission)

    async def perform_admitted(
        self, project_id: str, key: LockKey, command: Command, admission: Admission
    ) -> Outcome | Denied:
        """The second half of `perform`: serve a command that `admit` counted."""
        if admission.verdict is Verdict.SPENT:
            return _spent(admission)
        asked = _Asked(command, owner_only=admission.verdict is Verdict.RESERVE)
        try:
            outcome = await self._commit.submit(RecordKey(project_id, key), asked)
        except StoreUnavailableError as error:
            if asked.owner_only:
                self._counting.give_back(project_id, admission)  # it proved no ownership
            return Denied("lock_unavailable", error.message, 1, error.cause_code, error.__cause__)
        if outcome is None:
            self._counting.give_back(project_id, admission)
            return _spent(admission)
        return outcome

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
        await self._commit.close()
        await self._counting.close()


def _decide(record: LockRecord | None, asked: _Asked, now_ms: int) -> tuple[LockRecord | None, Outcome | None]:
    """The lease's rule; None where only an owner may pass and this is none."""
    if asked.owner_only and not (
        isinstance(asked.command, Renew | Release) and owns(record, asked.command.owner_digest, now_ms)
    ):
        return record, None
    return decide(record, asked.command, now_ms)


def _spent(admission: Admission) -> Denied:
    return Denied(
        "lock_rate_limited",
        f"this project's quota of {admission.limit} requests a minute is spent: "
        f"try again in {admission.retry_after_seconds} s",
        admission.retry_after_seconds,
    )
