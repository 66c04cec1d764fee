"""The lock service: quota, then the command, then the commit, then the outcome.

A request comes in two calls, so that it is counted before its input is parsed (HTTP-13):

    admission = service.admit_now(project, limit, …) or await service.admit(project, limit, …)
    outcome = await service.perform(lock, command, admission)

`perform` adds the command to the next batch; an acquire with a `WaitRequest` goes through the wait queues. A request
without a valid command ends with `abandon`. A counted request raises nothing, so that its response can carry the quota.
The HTTP layer decides who may call; `rules.lease` decides what a lease means.
"""

from collections.abc import Callable
from typing import Final

from ..ports.audit_entry import Act
from ..ports.clock import Clock
from ..ports.lock_store import BATCH_MAX, LockStore, RecordKey
from ..ports.quota_store import QuotaStore
from ..ports.signals import Signals
from ..queue.handoff import PendingCommand, audit_entry, evaluate, recorded
from ..queue.node_queues import WaitQueues
from ..queue.recheck import RECHECK_EVERY_SECONDS
from ..queue.wait_request import WaitRequest, wait_for_grant
from ..rules.errors import LockError
from ..rules.lease import Acquire, Command, Outcome, Release
from ..rules.quota import Admission, Verdict
from ..rules.shares import Budgets
from .activity import Activity
from .event_source import connected_hub
from .group_commit import GroupCommit, Receiver
from .rate_limiter import LocalRateLimiter, RateLimiter, SharedRateLimiter


class LockService:
    """Leases over one store, one object per process; `close` ends what it started.

    `quotas` is the count that nodes share, None if this process is the only one. `batches_in_flight` and `batch_max`
    are the store's preferences for group commit. With `several_nodes` over the store, wait queues are rechecked on a
    timer. `signals` connects the hub to its peers, once `hub.start` is called. `budgets` are those of the node.
    """

    def __init__(
        self,
        store: LockStore,
        clock: Clock,
        *,
        quotas: QuotaStore | None = None,
        owner_reserve: bool = True,
        keeps_history: bool = True,
        batches_in_flight: int = 1,
        batch_max: int = BATCH_MAX,
        several_nodes: bool = False,
        signals: Signals | None = None,
        budgets: Budgets | None = None,
        on_batch: Callable[[int, float], None] = lambda _size, _seconds: None,
    ) -> None:
        self.budgets: Final = budgets or Budgets()
        self.activity: Final = Activity()
        self.keeps_history: Final = keeps_history
        self._limiter: Final[RateLimiter] = (
            LocalRateLimiter(clock, owner_reserve=owner_reserve)
            if quotas is None
            else SharedRateLimiter(quotas, clock, owner_reserve=owner_reserve)
        )
        self.admit_now: Final = self._limiter.admit_now
        self.admit: Final = self._limiter.admit
        self.has_quota: Final = self._limiter.has_quota
        self.admit_within_quota: Final = self._limiter.admit_within_quota
        self._commit: Final = GroupCommit[PendingCommand, Outcome | None](
            store,
            evaluate,
            recorded=recorded if keeps_history else None,
            audit_entry=audit_entry,
            begin_batch=lambda keys: self.queues.begin_batch(keys),  # noqa: PLW0108 - the queues are made from it
            on_batch=self._note_batch,
            batches_in_flight=batches_in_flight,
            batch_max=batch_max,
            budget=self.budgets.commands_pending,
        )
        recheck_every_ms = RECHECK_EVERY_SECONDS * 1_000 if several_nodes else None
        self.queues: Final = WaitQueues(
            clock, self._commit.submit, self.budgets.waiters, recheck_every_ms=recheck_every_ms
        )
        self.hub: Final = connected_hub(store, clock, self.queues, signals, self.budgets, activity=self.activity)
        self._clock: Final = clock
        self._on_batch: Final = on_batch

    @property
    def is_idle(self) -> bool:
        """Whether everything in progress waits in a queue or for the clock. For tests that move the clock."""
        return self._commit.is_idle

    async def perform(
        self,
        lock: RecordKey,
        command: Command,
        admission: Admission,
        *,
        wait: WaitRequest | None = None,
        act: Act | None = None,
    ) -> Outcome | LockError | None:
        """Perform a command of an admitted request; an acquire with `wait` may wait for its lock (WAIT-1 to WAIT-9).
        With `act`, the audit names the command once it is carried out.

        Cancelling a wait is a disconnect. Returns None only if `wait.disconnected` ended it; then nothing stays
        granted. Raises nothing: an error, also one that `wait.authorize` raises, is returned.
        """
        if admission.verdict is Verdict.SPENT:
            return _quota_spent(admission)
        owner_only = admission.verdict is Verdict.RESERVE
        try:
            if wait is not None and isinstance(command, Acquire):
                return await wait_for_grant(self.queues, lock, command, wait)
            if isinstance(command, Release) and not owner_only:
                self.queues.withdraw(lock, command.owner_digest)
            outcome = await self._commit.submit(lock, PendingCommand(command, owner_only, act=act))
        except LockError as error:
            if owner_only:
                self._limiter.refund(lock.project_id, admission)
            return error
        if outcome is None:
            self._limiter.refund(lock.project_id, admission)
            return _quota_spent(admission)
        return outcome

    def submit(self, lock: RecordKey, command: Command, receiver: Receiver[Outcome | None]) -> None:
        """`perform` for a request that `admit_within_quota` admitted and that does not wait; its outcome goes to
        `receiver`. Raises as `GroupCommit.submit_for`.
        """
        if isinstance(command, Release):
            self.queues.withdraw(lock, command.owner_digest)
        self._commit.submit_for(receiver, lock, PendingCommand(command))

    def abandon(self, project_id: str, admission: Admission) -> LockError | None:
        """End the admission of a request without a command. Returns the refusal if the quota is spent, else None.

        The request stays counted, but what it drew from the owners' reserve is refunded: it proved no ownership.
        """
        if admission.verdict is Verdict.ADMITTED:
            return None
        if admission.verdict is Verdict.RESERVE:
            self._limiter.refund(project_id, admission)
        return _quota_spent(admission)

    def _note_batch(self, size: int, seconds: float) -> None:
        self._on_batch(size, seconds)
        self.activity.committed(seconds, self._clock.now_ms())

    async def close(self) -> None:
        """Commit what is pending, and refuse later commands."""
        self.queues.stop()
        await self._commit.close()
        self.queues.close()
        await self.hub.close()
        await self._limiter.close()


def _quota_spent(admission: Admission) -> LockError:
    spent = f"this project's quota of {admission.limit} requests a minute is spent"
    seconds = admission.retry_after_seconds
    return LockError("lock_rate_limited", f"{spent}: retry in {seconds} s", retry_after_seconds=seconds)
