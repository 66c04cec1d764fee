"""Group commit: while one batch commits, commands for the next one accumulate, without a timer.

Alone, a command waits for one commit. Under load, all commands that arrive during a commit share the next one, so one
fsync serves them all. Commands are evaluated in order of arrival, at the one `now_ms` that the store reads, and each
sees the effects of those before it.

A networked store works best with several batches in flight. A key is then in only one of them: commands on a key that
is being committed are parked in order until its batch is answered. So commands on one key are evaluated in order of
arrival however many batches there are, and no batch of this process waits for another's rows. Another batch starts when
the backlog is as large as the largest batch in flight, or SIZE_OF_ANOTHER_BATCH: a batch costs nearly the same whatever
its size, so a few large ones are cheaper. Beside a batch of one command, the next command starts at once.

Each batch has room for every project: the room is shared out equally, and what one project leaves goes to the others.
So a command waits for at most one batch of other projects' commands, however many they have pending.

Promises: a batch that fails returns `StoreUnavailableError` to its own callers only, and is never repeated. A command
whose caller gave up before its batch began is left out. The callers of a commit that takes longer than
COMMIT_SECONDS_MAX get `StoreUnavailableError`; its outcome is unknown, and the store stays the truth. The commands that
wait are bounded by a budget and each project's share of it; the next one is refused at once.

A batch may also act on the waiters of its keys: its `BatchHandler` evaluates in place of the plain rule, and is
notified of the batch's outcome.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ..ports.audit_entry import AuditEntry
from ..ports.lock_store import BATCH_MAX, EndedHold, LockStore, RecordKey, Records, StepResult
from ..rules.errors import STOPPING, StoreUnavailableError
from ..rules.hold import HoldEntry
from ..rules.lease import Damaged, LockRecord, StoredRecord
from ..rules.shares import COMMANDS_PENDING_MAX, Budget, past_share

SIZE_OF_ANOTHER_BATCH: Final = 64  # backlog size that starts another batch beside a larger one
COMMIT_SECONDS_MAX: Final = 2.0  # and a quarter for the watchdog: within STORE_SECONDS_MAX (OPS-12)

C = TypeVar("C")
R = TypeVar("R")


C_contra = TypeVar("C_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class BatchRun(Protocol[C_contra, R_co]):
    """One run of a batch's step. Pure, except for its own report."""

    def evaluate(
        self, key: RecordKey, record: StoredRecord | None, command: C_contra, now_ms: int
    ) -> tuple[StoredRecord | None, R_co]:
        """The record to keep and the result of one command."""
        ...

    def report(self) -> object:
        """What this run did besides the results of its commands."""
        ...


class BatchHandler(Protocol[C_contra, R_co]):
    """What one batch does besides its commands. In the end, either `committed` or `failed` is called, once."""

    def begin_run(self) -> BatchRun[C_contra, R_co]:
        """For one run of the step; a store repeats the step if another writer disturbed it."""
        ...

    def committed(self, report: Any) -> None:
        """The batch is durable; `report` is that of the committed run. Called before its commands get their results."""
        ...

    def failed(self) -> None:
        """The outcome of the batch is unknown."""
        ...

    def overdue(self) -> None:
        """The batch exceeded COMMIT_SECONDS_MAX; it may yet commit."""
        ...


class Receiver(Protocol[R_contra]):
    """Gets the result of a command: a future, or an object that acts on the result at once.

    A command whose receiver is `done` before its batch begins is left out. The other methods are called at most once
    each, and must not raise.
    """

    def done(self) -> bool: ...
    def set_result(self, result: R_contra, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class _Pending(NamedTuple, Generic[C, R]):
    key: RecordKey
    command: C
    receiver: Receiver[R]
    since: float


@dataclass(slots=True, eq=False)
class _Batch(Generic[C, R]):
    commands: list[_Pending[C, R]]
    handler: BatchHandler[C, R] | None
    began: float
    is_overdue: bool = False


class GroupCommit(Generic[C, R]):
    """Commits commands of type C in batches of one store's `update`, and returns a result of type R for each.

    `evaluate(record, command, now_ms)` is the pure rule for one command: the record to keep and the result.
    `recorded(before, after, command, now_ms)`, if given, returns the record to store with its last hold, and the entry
    that this displaces.
    `begin_batch(keys)` returns the handler of a batch of those keys, or None if it has only its commands to evaluate.
    `audit_entry(key, command, result, now_ms)` is the entry of the audit to store with the command, if there is one.
    `on_batch(size, seconds)` is called for each batch that committed. `batches_in_flight` limits concurrent batches,
    `batch_max` the commands of one, `budget` those that wait.
    """

    def __init__(
        self,
        store: LockStore,
        evaluate: Callable[[StoredRecord | None, C, int], tuple[StoredRecord | None, R]],
        *,
        recorded: Callable[[StoredRecord | None, LockRecord, C, int], tuple[LockRecord, HoldEntry | None]]
        | None = None,
        audit_entry: Callable[[RecordKey, C, R, int], AuditEntry | None] = lambda _key, _command, _result, _now: None,
        begin_batch: Callable[[list[RecordKey]], BatchHandler[C, R] | None] = lambda _keys: None,
        on_batch: Callable[[int, float], None] = lambda _size, _seconds: None,
        batches_in_flight: int = 1,
        batch_max: int = BATCH_MAX,
        commit_seconds_max: float = COMMIT_SECONDS_MAX,
        budget: Budget | None = None,
    ) -> None:
        self._budget: Final = budget or Budget("commands_pending", COMMANDS_PENDING_MAX)
        self._batches_in_flight: Final = batches_in_flight
        self._batch_max: Final = batch_max
        self._commit_seconds_max: Final = commit_seconds_max
        self._watchdog_seconds: Final = min(1.0, commit_seconds_max / 4)
        self._store: Final = store
        self._evaluate: Final = evaluate
        self._recorded: Final = recorded
        self._audit_entry: Final = audit_entry
        self._begin_batch: Final = begin_batch
        self._on_batch: Final = on_batch
        self._pending: Final[dict[str, deque[_Pending[C, R]]]] = {}  # by project
        self._pending_count = 0
        self._parked: Final[dict[RecordKey, deque[_Pending[C, R]]]] = {}
        self._unparked: Final[deque[RecordKey]] = deque()
        self._workers: Final[dict[asyncio.Task[None], _Batch[C, R] | None]] = {}
        self._busy_keys: Final[set[RecordKey]] = set()
        self._watchdog: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no command is pending or being committed."""
        return not self._workers

    def submit(self, key: RecordKey, command: C) -> "asyncio.Future[R]":
        """The command's result, once it is durable. Cancelling the future before its batch begins withdraws it.

        Raises as `submit_for`, at once or through the future.
        """
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.submit_for(result, key, command)
        return result

    def submit_for(self, receiver: Receiver[R], key: RecordKey, command: C) -> None:
        """Submit a command whose result goes to `receiver`.

        Raises StoreUnavailableError, at once or through it, and LockError `too_many_requests`, at once (HTTP-32).
        """
        if self._closed:
            raise StoreUnavailableError(*STOPPING)
        excess = self._budget.take(key.project_id)
        if excess == "share":
            raise past_share("too_many_requests", "pending requests")
        if excess is not None:
            pending_max = self._budget.limit
            raise StoreUnavailableError("overloaded", f"{pending_max} requests are pending: retry in a moment")
        loop = asyncio.get_running_loop()
        pending = self._pending.get(key.project_id)
        if pending is None:
            self._pending[key.project_id] = pending = deque()
        pending.append(_Pending(key, command, receiver, loop.time()))
        self._pending_count += 1
        if len(self._workers) < self._batches_in_flight and key not in self._busy_keys and self._starts_a_batch():
            self._workers[loop.create_task(self._work(), name="group-commit")] = None

    async def close(self) -> None:
        """Commit what is pending, and refuse later commands. Returns when the last batch is done."""
        self._closed = True
        if self._workers:
            await asyncio.wait(self._workers, timeout=self._commit_seconds_max + 1)
        for worker in self._workers:
            worker.cancel()
        if self._watchdog is not None:
            self._watchdog.cancel()
        _refuse(self._not_in_a_batch(), *STOPPING)

    async def _work(self) -> None:
        """Commit batch after batch, until all that is pending is on keys of other batches."""
        loop = asyncio.get_running_loop()
        worker = asyncio.current_task()
        assert worker is not None
        if self._watchdog is None:
            self._watchdog = loop.call_later(self._watchdog_seconds, self._refuse_overdue)
        try:
            while self._starts_a_batch(worker) and (commands := self._take()):
                keys = list({pending.key: None for pending in commands})
                self._busy_keys.update(keys)
                self._workers[worker] = batch = _Batch(commands, self._begin_batch(keys), loop.time())
                try:
                    await self._commit(keys, batch, loop)
                finally:
                    self._busy_keys.difference_update(keys)
                    self._unparked.extend(key for key in keys if key in self._parked)
        finally:
            del self._workers[worker]

    def _starts_a_batch(self, worker: asyncio.Task[None] | None = None) -> bool:
        """Whether the backlog is worth one more batch beside those of other workers. The last worker takes the rest."""
        backlog, largest = self._pending_count + len(self._unparked), 0
        for other, batch in self._workers.items():
            if batch is not None and other is not worker:
                largest = max(largest, len(batch.commands))
        return backlog >= min(SIZE_OF_ANOTHER_BATCH, largest)

    def _take(self) -> list[_Pending[C, R]]:
        """The commands of the next batch: first unparked ones, then pending ones; parks those on busy keys."""
        batch: list[_Pending[C, R]] = []
        while self._unparked and len(batch) < self._batch_max:
            key = self._unparked.popleft()
            parked = self._parked[key]
            while parked and len(batch) < self._batch_max:
                self._budget.give_back(key.project_id)
                _append_if_awaited(batch, parked.popleft())
            if not parked:
                del self._parked[key]  # else the batch is full, and ends with this key
        while self._pending and len(batch) < self._batch_max:
            share = max(1, (self._batch_max - len(batch)) // len(self._pending))
            for project_id in list(self._pending)[: self._batch_max - len(batch)]:
                self._take_share(project_id, share, batch)
        return batch

    def _take_share(self, project_id: str, share: int, batch: list[_Pending[C, R]]) -> None:
        """Move `share` commands of a project to the batch, or park them. The project is then the last in turn."""
        queue = self._pending.pop(project_id)
        count = min(share, len(queue))
        self._pending_count -= count
        parked_count = 0
        for _ in range(count):
            pending = queue.popleft()
            if pending.key in self._busy_keys:
                self._parked.setdefault(pending.key, deque()).append(pending)
                parked_count += 1
            else:
                _append_if_awaited(batch, pending)
        self._budget.give_back(project_id, count - parked_count)
        if queue:
            self._pending[project_id] = queue

    def _not_in_a_batch(self) -> Iterator[_Pending[C, R]]:
        return chain.from_iterable((*self._pending.values(), *self._parked.values()))

    async def _commit(self, keys: list[RecordKey], batch: _Batch[C, R], loop: asyncio.AbstractEventLoop) -> None:
        commands, handler = batch.commands, batch.handler
        try:
            results = await self._store.update(keys, self._step_of(batch))
            if handler is not None:
                *results, report = results
            resolved = list(zip(commands, results, strict=True))
            if handler is not None:
                batch.handler = None  # whatever `committed` raises, the grants that it delivered are not revoked
                handler.committed(report)
        except StoreUnavailableError as error:
            _fail(batch, error.cause_code, error.message)
        except Exception as error:  # noqa: BLE001 - a store's bug must answer its callers, not hang them
            _fail(batch, "store_error", "the store failed", error)
        except asyncio.CancelledError:
            _fail(batch, *STOPPING)
            raise
        else:
            for pending, result in resolved:
                if not pending.receiver.done():
                    pending.receiver.set_result(result)  # type: ignore[arg-type]
            self._on_batch(len(commands), loop.time() - batch.began)

    def _step_of(self, batch: _Batch[C, R]) -> Callable[[Records, int], StepResult]:
        """The batch as one pure step: it folds the commands over the records in order of arrival."""
        plain_rule, handler = self._evaluate, batch.handler
        recorded, audit_entry = self._recorded, self._audit_entry

        def step(records: Records, now_ms: int) -> StepResult:
            run = None if handler is None else handler.begin_run()
            kept = dict(records)
            changed: dict[RecordKey, LockRecord] = {}
            results: list[object] = []
            displaced: list[EndedHold] = []
            audit: list[AuditEntry] = []
            for key, command, _receiver, _since in batch.commands:
                before = kept[key]
                if run is None:
                    after, result = plain_rule(before, command, now_ms)
                else:
                    after, result = run.evaluate(key, before, command, now_ms)
                results.append(result)
                entry = audit_entry(key, command, result, now_ms)
                if entry is not None:
                    audit.append(entry)
                if after is not before and after is not None and not isinstance(after, Damaged):
                    if recorded is not None:
                        after, hold = recorded(before, after, command, now_ms)
                        if hold is not None:
                            displaced.append((key, hold))
                    kept[key] = changed[key] = after
            if run is not None:
                results.append(run.report())
            return StepResult(changed, results, displaced, audit)

        return step

    def _refuse_overdue(self) -> None:
        """A commit that hangs must not hang its callers; runs every second while there is work."""
        self._watchdog = None
        if not self._workers:
            return
        loop = asyncio.get_running_loop()
        due_since = loop.time() - self._commit_seconds_max
        batches = [batch for batch in self._workers.values() if batch is not None]
        committing = chain.from_iterable(batch.commands for batch in batches)
        overdue = [pending for pending in (*committing, *self._not_in_a_batch()) if pending.since < due_since]
        _refuse(overdue, "commit_late", f"the store did not commit within {self._commit_seconds_max:g} s")
        for batch in batches:
            if batch.handler is not None and not batch.is_overdue and batch.began < due_since:
                batch.is_overdue = True
                batch.handler.overdue()
        self._watchdog = loop.call_later(self._watchdog_seconds, self._refuse_overdue)


def _append_if_awaited(batch: list[_Pending[C, R]], pending: _Pending[C, R]) -> None:
    if not pending.receiver.done():
        batch.append(pending)


def _fail(batch: _Batch[C, R], cause_code: str, message: str, cause: Exception | None = None) -> None:
    if batch.handler is not None:
        batch.handler.failed()
    _refuse(batch.commands, cause_code, message, cause)


def _refuse(commands: Iterable[_Pending[C, R]], cause_code: str, message: str, cause: Exception | None = None) -> None:
    for pending in commands:
        if not pending.receiver.done():
            error = StoreUnavailableError(cause_code, message)
            error.__cause__ = cause
            pending.receiver.set_exception(error)
