"""The checker finds violations in handwritten histories and in histories of deliberately broken stores and services."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from volcano_locks_server.ports.lock_store import (
    HistoryPage,
    HistoryQuery,
    LockPage,
    LockQuery,
    LockStore,
    RecordKey,
    Records,
    Step,
    StepResult,
    TakeoverHold,
)
from volcano_locks_server.rules.lease import Free, Held, StoredRecord

from ..scenario.parser import Quota
from ..targets.arguments import actor_and_key
from ..targets.lock_service import LockServiceTarget
from ..targets.target import Result
from .checker import OutcomeName, RequestRecord, Tolerances, ViolationKind, check, read, write

ROUNDS = 200
SEEDS = 12  # every other seed has waits
ACTORS = ("ann", "bob", "cid", "dan")
KEYS = ("one", "two")
SLACK = Tolerances(arrival_seconds=0, disconnect_seconds=1, overtaken_max=2)


# --- handwritten histories -------------------------------------------------------------------------------------------


def granted(owner: str, sent_at: float, token: int, *, ttl: float = 10.0, took: float = 0.1) -> RequestRecord:
    return RequestRecord(owner, "acquire", "k", owner, sent_at, sent_at + took, "granted", ttl, token)


def released(owner: str, sent_at: float) -> RequestRecord:
    return RequestRecord(owner, "release", "k", owner, sent_at, sent_at + 0.1, "done")


def kinds(*records: RequestRecord) -> set[ViolationKind]:
    return {violation.kind for violation in check(records)}


def test_a_history_of_consecutive_holders_is_valid() -> None:
    renewal = replace(granted("bob", 9.0, 200), operation="renew")
    unanswered = RequestRecord("cid", "acquire", "k", "cid", 12.0, None, "unknown", 10.0)
    late = granted("dan", 20.1, 300)
    assert check([granted("ann", 0.0, 100), released("ann", 5.0), granted("bob", 5.05, 200), renewal]) == []
    assert check([granted("ann", 0.0, 100), unanswered, granted("bob", 11.0, 200), late, released("bob", 20.0)]) == []


def test_a_repeated_token() -> None:
    assert "token_repeated" in kinds(granted("ann", 0.0, 100), released("ann", 1.0), granted("bob", 2.0, 100))


def test_the_same_owner_may_get_its_token_again() -> None:
    assert kinds(granted("ann", 0.0, 100), granted("ann", 1.0, 100)) == set()


def test_tokens_against_the_order_of_grants() -> None:
    assert "order_broken" in kinds(granted("ann", 0.0, 100), released("ann", 1.0), granted("bob", 2.0, 99))


def test_tokens_of_concurrent_grants_may_have_either_order() -> None:
    both = [
        granted("ann", 0.0, 100, took=3.0),
        released("ann", 3.2),
        granted("bob", 1.0, 99, took=1.0),
        released("bob", 2.0),
    ]
    assert kinds(*both) == set()


def test_two_sure_holders() -> None:
    assert "two_holders" in kinds(granted("ann", 0.0, 100), granted("bob", 5.0, 200))


def test_a_takeover_in_the_grace_is_a_lost_lease_without_two_sure_holders() -> None:
    assert kinds(granted("ann", 0.0, 100), granted("bob", 10.5, 200)) == {"lease_lost"}
    assert kinds(granted("ann", 0.0, 100), granted("bob", 10.95, 200)) == set()


def test_a_shorter_renewal_shortens_the_lease_even_without_a_response() -> None:
    shorter = RequestRecord("ann", "renew", "k", "ann", 1.0, None, "unknown", 5.0)
    assert kinds(granted("ann", 0.0, 100), granted("bob", 7.0, 200)) == {"two_holders", "lease_lost"}
    assert kinds(granted("ann", 0.0, 100), shorter, granted("bob", 7.0, 200)) == set()


def test_a_force_release_ends_every_clients_certainty() -> None:
    forced = RequestRecord("root", "force_release", "k", "root", 2.0, 2.1, "done")
    assert kinds(granted("ann", 0.0, 100), forced, granted("bob", 2.2, 200)) == set()


@pytest.mark.parametrize(
    "denial",
    [
        RequestRecord("ann", "renew", "k", "ann", 5.0, 5.1, "lost", 10.0),
        RequestRecord("ann", "acquire", "k", "ann", 5.0, 5.1, "held", 10.0),
        RequestRecord("ann", "release", "k", "ann", 5.0, 5.1, "refused"),
        RequestRecord("eve", "get", "k", "eve", 5.0, 5.1, "free"),
    ],
)
def test_a_denied_lease(denial: RequestRecord) -> None:
    assert kinds(granted("ann", 0.0, 100), denial) == {"lease_lost"}
    late = replace(denial, sent_at=11.0, responded_at=11.1)
    assert kinds(granted("ann", 0.0, 100), late) == set()


def waiting(
    owner: str, sent_at: float, responded_at: float | None, token: int | None = None, node: str = ""
) -> RequestRecord:
    """A wait that ended with a grant or lock_held; without `responded_at` its outcome is unknown."""
    outcome: OutcomeName = "unknown" if responded_at is None else "held" if token is None else "granted"
    return RequestRecord(owner, "acquire", "k", owner, sent_at, responded_at, outcome, 10.0, token, 20.0, node)


def test_waiters_in_order() -> None:
    turns = [
        granted("ann", 0.0, 100),
        waiting("bob", 1.0, 5.1, 200),
        waiting("cid", 4.0, 7.1, 300),
        waiting("dan", 4.1, 24.1),
        released("ann", 5.0),
        released("bob", 7.0),
        released("cid", 15.0),
    ]
    assert check(turns) == []


def test_an_overtaken_waiter() -> None:
    first = waiting("bob", 1.0, 7.1, 300)
    later = waiting("cid", 4.0, 5.1, 200)
    assert kinds(first, later, released("cid", 6.0)) == {"overtaken"}
    assert kinds(first, replace(later, wait_seconds=0.0), released("cid", 6.0)) == {"overtaken"}


def test_a_waiter_that_timed_out_while_a_later_one_was_granted() -> None:
    later = waiting("cid", 4.0, 5.1, 200)
    assert kinds(waiting("bob", 1.0, 21.1), later) == {"overtaken"}
    assert kinds(waiting("bob", 1.0, 6.0), later) == set()  # its wait may have been over
    assert kinds(waiting("bob", 1.0, None), later) == set()  # its outcome is unknown


def test_waiters_that_arrived_together_may_have_either_order() -> None:
    assert kinds(waiting("bob", 1.0, 7.1, 300), waiting("cid", 2.9, 5.1, 200), released("cid", 6.0)) == set()


def test_a_queue_position_is_kept_over_several_requests() -> None:
    before = waiting("cid", 0.0, 3.9)
    after = waiting("cid", 4.0, 5.1, 200), released("cid", 6.0)
    assert kinds(waiting("bob", 1.0, 7.1, 300), before, *after) == set()


def test_waiters_on_different_nodes_have_no_order_but_must_not_starve() -> None:
    first = waiting("bob", 1.0, 9.0, 1_000, "disconnected")
    others = [waiting(f"cid {number}", 4.0 + number / 100, 5.0, 100 + number, "right") for number in range(9)]
    kinds_of = {one.kind for one in check([first, *others], Tolerances(overtaken_max=9))}
    assert "starved" not in kinds_of
    assert "overtaken" not in kinds_of
    assert "starved" in {one.kind for one in check([first, *others], Tolerances(overtaken_max=8))}


def test_a_grant_after_a_disconnect() -> None:
    gone = replace(waiting("bob", 1.0, 2.0), outcome="disconnected")
    between = granted("ann", 6.0, 100), released("ann", 6.5)
    seen = RequestRecord("eve", "get", "k", "eve", 7.0, 7.1, "held", fencing_token=200)
    assert kinds(gone, *between, seen) == {"granted_after_disconnect"}
    assert kinds(gone, replace(seen, outcome="free", fencing_token=None, sent_at=6.0, responded_at=6.1), seen) == {
        "granted_after_disconnect"
    }
    assert kinds(gone, seen) == set()  # it may have been granted the lock and disconnected before it read the response
    assert kinds(replace(gone, responded_at=4.0), *between, seen) == set()  # the server may not have noticed yet
    assert kinds(gone, *between, replace(seen, fencing_token=100)) == set()
    assert kinds(gone, *between, waiting("cid", 3.0, None), seen) == set()  # the grant may be cid's
    assert kinds(gone, *between, waiting("cid", 6.4, 7.0, 200), seen) == set()


def test_histories_are_read_back_without_a_torn_last_line(tmp_path: Path) -> None:
    records = [granted("ann", 0.0, 100), released("ann", 1.0)]
    write(records, tmp_path / "a")
    with (tmp_path / "a").open("a") as file:
        file.write('{"client": "an')
    assert read(tmp_path / "a") == records


# --- through the service ----------------------------------------------------------------------------------


class StoreWrapper:
    """Wraps a store; subclasses break one guarantee."""

    def __init__(self, inner: LockStore) -> None:
        self.inner = inner
        self.updates = 0

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        self.updates += 1
        return await self.inner.update(keys, lambda records, now_ms: self.between(records, now_ms, step))

    def between(self, records: Records, now_ms: int, step: Step) -> StepResult:
        return step(records, now_ms)

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self.inner.list_locks(query)

    async def count_held(self) -> int:
        return await self.inner.count_held()

    async def purge(self, *, limit: int, keeps_history: bool = False) -> int:
        return await self.inner.purge(limit=limit, keeps_history=keeps_history)

    async def history_page(self, query: HistoryQuery) -> HistoryPage:
        return await self.inner.history_page(query)

    async def purge_history(self, *, kept_days: int, limit: int, entries_max: int | None = None) -> int:
        return await self.inner.purge_history(kept_days=kept_days, limit=limit, entries_max=entries_max)

    async def ready(self) -> None:
        await self.inner.ready()

    def takeover_hold(self) -> TakeoverHold | None:
        return self.inner.takeover_hold()


class ForgettingTokensStore(StoreWrapper):
    """A freed record loses its fencing token, so that the next token can repeat it."""

    def between(self, records: Records, now_ms: int, step: Step) -> StepResult:
        freed = {k: replace(r, fencing_token=0) if isinstance(r, Free) else r for k, r in records.items()}
        return step(freed, now_ms)


class EarlyExpiryStore(StoreWrapper):
    """Leases seem to expire three seconds early."""

    def between(self, records: Records, now_ms: int, step: Step) -> StepResult:
        return step({key: self._early(record) for key, record in records.items()}, now_ms)

    def _early(self, record: StoredRecord | None) -> StoredRecord | None:
        if not isinstance(record, Held):
            return record
        return replace(record, expires_at_ms=record.expires_at_ms - 3_000)


class LosingWritesStore(StoreWrapper):
    """One write in ten is acknowledged but lost."""

    def between(self, records: Records, now_ms: int, step: Step) -> StepResult:
        stepped = step(records, now_ms)
        return stepped if self.updates % 10 else StepResult({}, stepped.results)


class OvertakingService(LockServiceTarget):
    """A service that queues every other waiter behind the next one."""

    delayed: Mapping[str, object] | None = None
    waits = 0

    async def _wait(self, args: Mapping[str, object]) -> Result:
        self.waits += 1
        if self.waits % 2 and self.delayed is None:
            self.delayed = args
            self._waits[actor_and_key(args)] = asyncio.create_task(asyncio.sleep(0, {"pending": True}))
            return {}
        result = await super()._wait(args)
        if self.delayed is not None:
            await super()._wait(self.delayed)
            self.delayed = None
        return result


class IgnoringDisconnectsService(LockServiceTarget):
    """A service that does not notice disconnects."""

    async def _hang_up(self, _args: Mapping[str, object]) -> Result:
        return {}


class StarvingService(LockServiceTarget):
    """A service that never grants the lock to one of its waiters."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ends_at_ms: dict[tuple[str, str], int] = {}

    async def _wait(self, args: Mapping[str, object]) -> Result:
        if args["actor"] != ACTORS[0]:
            return await super()._wait(args)
        self.ends_at_ms[actor_and_key(args)] = self.now_ms() + int(str(args["wait_seconds"])) * 1_000
        return {}

    async def _waited(self, args: Mapping[str, object]) -> Result:
        ends_at_ms = self.ends_at_ms.get(actor_and_key(args))
        if ends_at_ms is None:
            return await super()._waited(args)
        return {"pending": True} if self.now_ms() < ends_at_ms else {"error": "lock_held"}

    async def _hang_up(self, args: Mapping[str, object]) -> Result:
        return {} if actor_and_key(args) in self.ends_at_ms else await super()._hang_up(args)


class RandomClients:
    """Clients that send random requests and record the results."""

    def __init__(self, target: LockServiceTarget, seed: int, *, faults: bool) -> None:
        self.faults = faults
        self.waits = seed % 2 == 1
        self.waiting: dict[tuple[str, str], RequestRecord] = {}
        self.target = target
        self.random = random.Random(seed)
        self.records: list[RequestRecord] = []
        self.owners: dict[tuple[str, str], str] = {}
        self.ticks = 0

    def run(self) -> None:
        for _ in range(ROUNDS):
            if self.random.random() < 0.3:
                self.target.advance(self.random.choice((1, 50, 700, 2_500, 5_000)))
            if self.faults and self.random.random() < 0.1:
                kind = self.random.choice(("store_before", "store_after"))
                self.target.do("outage", {"kind": kind, "count": 1})
            self.collect()
            actor, key = self.random.choice(ACTORS), self.random.choice(KEYS)
            if (actor, key) in self.waiting:
                if self.random.random() < 0.1:
                    self.hang_up(actor, key)
                continue
            if self.waits and self.random.random() < 0.3:
                self.wait(actor, key)
                continue
            verbs = ["acquire", "acquire", "renew", "release", "get"] + ["force_release"] * (
                self.random.random() < 0.05
            )
            self.send(self.random.choice(verbs), actor, key)

    def wait(self, actor: str, key: str) -> None:
        owner = self.owners[actor, key] = f"{self.random.getrandbits(122):032x}"
        ttl_seconds, wait_seconds = self.random.choice((5, 6, 10)), self.random.choice((1, 10, 20))
        request = {"actor": actor, "key": key, "token": token_of(owner), "ttl_seconds": ttl_seconds}
        self.waiting[actor, key] = RequestRecord(
            actor, "acquire", key, owner, self.now(), None, "unknown", ttl_seconds, wait_seconds=wait_seconds
        )
        self.target.do("wait", {**request, "wait_seconds": wait_seconds})

    def hang_up(self, actor: str, key: str) -> None:
        self.target.do("hang_up", {"actor": actor, "key": key})
        self.records.append(replace(self.waiting.pop((actor, key)), responded_at=self.now(), outcome="disconnected"))

    def collect(self) -> None:
        """Record the waits that are over."""
        for (actor, key), record in list(self.waiting.items()):
            result = self.target.do("waited", {"actor": actor, "key": key})
            if "pending" in result:
                continue
            outcome = outcome_of("acquire", result.get("error"), None)
            responded_at = None if outcome == "unknown" else self.now()
            returned = result.get("fencing_token")
            token = returned if isinstance(returned, int) else None
            del self.waiting[actor, key]
            self.records.append(replace(record, responded_at=responded_at, outcome=outcome, fencing_token=token))

    def send(self, verb: str, actor: str, key: str) -> None:
        if (actor, key) not in self.owners or (verb == "acquire" and self.random.random() < 0.5):
            self.owners[actor, key] = f"{self.random.getrandbits(122):032x}"
        owner = self.owners[actor, key]
        ttl_seconds = self.random.choice((5, 6, 10))
        sent_at = self.now()
        result = self.target.do(verb, {"key": key, "token": token_of(owner), "ttl_seconds": ttl_seconds})
        outcome = outcome_of(verb, result.get("error"), result.get("held"))
        responded_at = None if outcome == "unknown" else self.now()
        fencing_token = result.get("fencing_token")
        token = fencing_token if isinstance(fencing_token, int) else None
        record = RequestRecord(actor, verb, key, owner, sent_at, responded_at, outcome, ttl_seconds, token)  # type: ignore[arg-type]
        self.records.append(record)

    def now(self) -> float:
        """The clock plus ticks so small that they only give records an order."""
        self.ticks += 1
        return self.target.now_ms() / 1_000 - 1_784_000_000 + self.ticks * 1e-6


def token_of(owner: str) -> str:
    return f"{owner[:8]}-{owner[8:12]}-{owner[12:16]}-{owner[16:20]}-{owner[20:]}"


def outcome_of(verb: str, error: object, held: object) -> OutcomeName:
    if error == "lock_service_unavailable":
        return "unknown"
    if verb == "get":
        return "held" if held else "free"
    if verb in ("release", "force_release"):
        return "refused" if error else "done"
    return {None: "granted", "lock_held": "held", "lock_ownership_lost": "lost"}[error]  # type: ignore[index,return-value]


def violations_of(
    store: type[StoreWrapper],
    folder: Path,
    service: type[LockServiceTarget] = LockServiceTarget,
    *,
    faults: bool = True,
) -> set[ViolationKind]:
    kinds: set[ViolationKind] = set()
    for seed in range(SEEDS):
        target = service(Quota(), "memory://", folder, store)
        clients = RandomClients(target, seed, faults=faults)
        clients.run()
        target.close()
        kinds |= {violation.kind for violation in check(clients.records, SLACK)}
    return kinds


def test_the_service_has_no_violations(tmp_path: Path) -> None:
    assert violations_of(StoreWrapper, tmp_path) == set()
    assert violations_of(StoreWrapper, tmp_path, faults=False) == set()


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        (ForgettingTokensStore, "token_repeated"),
        (EarlyExpiryStore, "lease_lost"),
        (LosingWritesStore, "lease_lost"),
        (LosingWritesStore, "two_holders"),
    ],
)
def test_a_broken_store_is_detected(store: type[StoreWrapper], kind: ViolationKind, tmp_path: Path) -> None:
    assert kind in violations_of(store, tmp_path)


@pytest.mark.parametrize(
    ("service", "kind"),
    [
        (OvertakingService, "overtaken"),
        (StarvingService, "starved"),
        (IgnoringDisconnectsService, "granted_after_disconnect"),
    ],
)
def test_a_broken_wait_queue_is_detected(service: type[LockServiceTarget], kind: ViolationKind, tmp_path: Path) -> None:
    assert kind in violations_of(StoreWrapper, tmp_path, service, faults=False)
