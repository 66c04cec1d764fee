"""Group commit: while one batch commits, the next one gathers. No timer.

Alone, a command waits for one commit. Under load, all that arrive during a commit share the next one, so one
fsync serves them all and the load batches itself. Commands are folded in the order of their arrival, under the
one `now_ms` that the store reads, so each sees what those before it did.

A store over a network is served best by more than one batch in flight. Then a key is in one of them only: commands on
a key that is being committed are parked, in their order, until that batch is answered. So commands on one key are
served in the order of their arrival however many batches there are, and no batch of ours waits for another's rows.
A further batch begins once as many commands wait as the largest on its way holds, or WORTH_A_BATCH: a batch costs
nearly the same whatever is in it, so few large ones serve a load better; a lone command beside a lone one waits not.

Promises: a batch that fails answers `StoreUnavailableError` to its own callers only, and is never repeated in
silence. A caller that gave up before its batch began is left out of it. A commit that hangs longer than
COMMIT_SECONDS_MAX is answered `StoreUnavailableError` (what became of it is unknown; the store stays the truth).
At most PENDING_MAX commands wait; one more is refused at once.

A batch may serve more than its commands: those who wait in line for its keys. Who they are is not known here. When a
batch is built it is given a `Turn`, which judges in place of the plain rule, and is told what became of the batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ..ports.lock_store import BATCH_MAX, LockStore, RecordKey, Records, Stepped
from ..rules.errors import StoreUnavailableError
from ..rules.lease import LockRecord

WORTH_A_BATCH: Final = 64  # so many commands wait for no other batch to end, if one more may be on its way
PENDING_MAX: Final = 20_000
COMMIT_SECONDS_MAX: Final = 10.0
STOPPING: Final = "the service is stopping: try again in a moment"

A = TypeVar("A")
B = TypeVar("B")


A_contra = TypeVar("A_contra", contravariant=True)
B_co = TypeVar("B_co", covariant=True)


class Judge(Protocol[A_contra, B_co]):
    """One run of a batch's step. Pure but for what it gathers about itself."""

    def judge(
        self, key: RecordKey, record: LockRecord | None, asked: A_contra, now_ms: int
    ) -> tuple[LockRecord | None, B_co]:
        """The record to keep and the answer to one command, others served before and after it."""
        ...

    def report(self) -> object:
        """What this run did besides answering its commands."""
        ...


class Turn(Protocol[A_contra, B_co]):
    """What one batch does besides answering its commands. Just one of `committed` and `failed` is called, at last."""

    def judge(self) -> Judge[A_contra, B_co]:
        """For one run of the step; a store that was disturbed runs it again."""
        ...

    def committed(self, report: object) -> None:
        """The batch is durable; `report` is that of the run that counts. Called before its commands are answered."""
        ...

    def failed(self) -> None:
        """What became of the batch is not known."""
        ...

    def late(self) -> None:
        """The batch takes so long that its callers were answered; it may yet commit."""
        ...


class _Batch(Generic[A, B]):
    __slots__ = ("began", "commands", "late", "turn")

    def __init__(self, commands: "list[_Waiting[A, B]]", turn: Turn[A, B] | None, began: float) -> None:
        self.commands: Final = commands
        self.turn: Final = turn
        self.began: Final = began
        self.late = False


class _Waiting(NamedTuple, Generic[A, B]):
    key: RecordKey
    asked: A
    answer: asyncio.Future[B]
    since: float


class GroupCommit(Generic[A, B]):
    """Folds commands of type A into batches of one store's `update`, and answers each with a B.

    `decide(record, asked, now_ms)` is the pure rule for one command: the record to keep and the answer.
    `turns(keys)` gives a batch of those keys its turn, or None where there is nothing but its commands.
    `on_batch(size, seconds)` is told of each batch that committed. `batches_in_flight` is how many may be on their way
    at once, `batch_max` how many commands are in one at the most.
    """

    def __init__(
        self,
        store: LockStore,
        decide: Callable[[LockRecord | None, A, int], tuple[LockRecord | None, B]],
        *,
        turns: Callable[[list[RecordKey]], Turn[A, B] | None] = lambda _keys: None,
        on_batch: Callable[[int, float], None] = lambda _size, _seconds: None,
        batches_in_flight: int = 1,
        batch_max: int = BATCH_MAX,
        commit_seconds_max: float = COMMIT_SECONDS_MAX,
    ) -> None:
        self._batches_in_flight: Final = batches_in_flight
        self._batch_max: Final = batch_max
        self._commit_seconds_max: Final = commit_seconds_max
        self._watch_seconds: Final = min(1.0, commit_seconds_max / 4)
        self._store: Final = store
        self._decide: Final = decide
        self._turns: Final = turns
        self._on_batch: Final = on_batch
        self._pending: Final[deque[_Waiting[A, B]]] = deque()
        self._parked: Final[dict[RecordKey, deque[_Waiting[A, B]]]] = {}
        self._parked_count = 0
        self._unparked: Final[deque[RecordKey]] = deque()
        self._committing: Final[dict[asyncio.Task[None], _Batch[A, B] | None]] = {}
        self._busy: Final[set[RecordKey]] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def at_rest(self) -> bool:
        """Whether nothing is being committed, nor waits for it."""
        return not self._committing

    def ask(self, key: RecordKey, asked: A) -> "asyncio.Future[B]":
        """The command's answer, once it is durable. Whoever cancels the future in time takes the command back.

        Raises StoreUnavailableError, at once or through the future.
        """
        if self._closed:
            raise StoreUnavailableError("stopping", STOPPING)
        if len(self._pending) + self._parked_count >= PENDING_MAX:
            raise StoreUnavailableError("overloaded", f"{PENDING_MAX} requests wait already: try again in a moment")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[B] = loop.create_future()
        self._pending.append(_Waiting(key, asked, answer, loop.time()))
        if len(self._committing) < self._batches_in_flight and key not in self._busy and self._is_worth_a_batch():
            self._committing[loop.create_task(self._work(), name="group-commit")] = None
        return answer

    async def close(self) -> None:
        """Commit what waits, refuse what comes later. Returns when the last batch is answered."""
        self._closed = True
        if self._committing:
            await asyncio.wait(self._committing, timeout=self._commit_seconds_max + 1)
        for worker in self._committing:
            worker.cancel()
        if self._watch is not None:
            self._watch.cancel()
        _refuse(self._waiting(), "stopping", STOPPING)

    async def _work(self) -> None:
        """Commit batch after batch, until nothing waits that is not on a key of another batch."""
        loop = asyncio.get_running_loop()
        worker = asyncio.current_task()
        assert worker is not None
        if self._watch is None:
            self._watch = loop.call_later(self._watch_seconds, self._refuse_overdue)
        try:
            while self._is_worth_a_batch(worker) and (commands := self._take()):
                keys = list({waiting.key: None for waiting in commands})
                self._busy.update(keys)
                self._committing[worker] = batch = _Batch(commands, self._turns(keys), loop.time())
                try:
                    await self._commit(keys, batch, loop)
                finally:
                    self._busy.difference_update(keys)
                    self._unparked.extend(key for key in keys if key in self._parked)
        finally:
            del self._committing[worker]

    def _is_worth_a_batch(self, worker: asyncio.Task[None] | None = None) -> bool:
        """Whether enough waits for one more batch beside those of other workers. The last of them takes any rest."""
        others = (len(batch.commands) for one, batch in self._committing.items() if batch and one is not worker)
        return len(self._pending) + len(self._unparked) >= min(WORTH_A_BATCH, max(others, default=0))

    def _take(self) -> list[_Waiting[A, B]]:
        """The next batch: first what was parked and may go, then what came since; parks what is to wait."""
        batch: list[_Waiting[A, B]] = []
        while self._unparked and len(batch) < self._batch_max:
            key = self._unparked.popleft()
            parked = self._parked[key]
            while parked and len(batch) < self._batch_max:
                self._parked_count -= 1
                _add(batch, parked.popleft())
            if not parked:
                del self._parked[key]  # else the batch is full, and ends with this key
        while self._pending and len(batch) < self._batch_max:
            waiting = self._pending.popleft()
            if waiting.key in self._busy:
                self._parked.setdefault(waiting.key, deque()).append(waiting)
                self._parked_count += 1
            else:
                _add(batch, waiting)
        return batch

    def _waiting(self) -> Iterator[_Waiting[A, B]]:
        """All that is in no batch yet."""
        return chain(self._pending, chain.from_iterable(self._parked.values()))

    async def _commit(self, keys: list[RecordKey], batch: _Batch[A, B], loop: asyncio.AbstractEventLoop) -> None:
        commands, turn = batch.commands, batch.turn
        try:
            answers = await self._store.update(keys, self._step_of(batch))
            if turn is not None:
                *answers, report = answers
            answered = list(zip(commands, answers, strict=True))
            if turn is not None:
                turn.committed(report)
        except StoreUnavailableError as error:
            _fail(batch, error.cause_code, error.message)
        except Exception as error:  # noqa: BLE001 - a store's bug must answer its callers, not hang them
            _fail(batch, "store_error", "the store failed", error)
        except asyncio.CancelledError:
            _fail(batch, "stopping", STOPPING)
            raise
        else:
            for waiting, answer in answered:
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)  # type: ignore[arg-type]
            self._on_batch(len(commands), loop.time() - batch.began)

    def _step_of(self, batch: _Batch[A, B]) -> Callable[[Records, int], Stepped]:
        """The batch as one pure step: commands fold over the records in order of arrival."""
        decide, turn = self._decide, batch.turn

        def step(records: Records, now_ms: int) -> Stepped:
            judge = None if turn is None else turn.judge()
            kept = dict(records)
            changed: dict[RecordKey, LockRecord] = {}
            answers: list[object] = []
            for key, asked, _answer, _since in batch.commands:
                before = kept[key]
                if judge is None:
                    after, answer = decide(before, asked, now_ms)
                else:
                    after, answer = judge.judge(key, before, asked, now_ms)
                answers.append(answer)
                if after is not before and after is not None:
                    kept[key] = changed[key] = after
            if judge is not None:
                answers.append(judge.report())
            return Stepped(changed, answers)

        return step

    def _refuse_overdue(self) -> None:
        """Once a second while there is work: a hanging commit must not hang its callers."""
        self._watch = None
        if not self._committing:
            return
        loop = asyncio.get_running_loop()
        overdue = loop.time() - self._commit_seconds_max
        batches = [batch for batch in self._committing.values() if batch is not None]
        committing = chain.from_iterable(batch.commands for batch in batches)
        late = [one for one in (*committing, *self._waiting()) if one.since < overdue]
        _refuse(late, "commit_late", f"the store did not answer within {self._commit_seconds_max:g} s")
        for batch in batches:
            if batch.turn is not None and not batch.late and batch.began < overdue:
                batch.late = True
                batch.turn.late()
        self._watch = loop.call_later(self._watch_seconds, self._refuse_overdue)


def _add(batch: list[_Waiting[A, B]], waiting: _Waiting[A, B]) -> None:
    """Whoever gave up is left out."""
    if not waiting.answer.done():
        batch.append(waiting)


def _fail(batch: _Batch[A, B], cause_code: str, message: str, cause: Exception | None = None) -> None:
    if batch.turn is not None:
        batch.turn.failed()
    _refuse(batch.commands, cause_code, message, cause)


def _refuse(commands: Iterable[_Waiting[A, B]], cause_code: str, message: str, cause: Exception | None = None) -> None:
    for waiting in commands:
        if not waiting.answer.done():
            error = StoreUnavailableError(cause_code, message)
            error.__cause__ = cause
            waiting.answer.set_exception(error)
