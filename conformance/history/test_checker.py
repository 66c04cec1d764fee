"""The checker of histories finds what is broken, in histories written by hand and in stores broken on purpose."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from volcano_locks_server.ports.lock_store import LockPage, LockQuery, LockStore, RecordKey, Records, Step, Stepped
from volcano_locks_server.rules.lease import Free, Held, LockRecord

from ..scenario.parser import Quota
from ..targets.service import ServiceFace, place_of
from ..targets.target import Answer
from .checker import Event, Kind, Outcome, Slack, check, read, write

ROUNDS = 400
SEEDS = 16  # with every other one some wait
ACTORS = ("ann", "bob", "cid", "dan")
KEYS = ("one", "two")
SLACK = Slack(arrival_seconds=0, notice_seconds=1, overtaken_max=2)


# --- by hand ----------------------------------------------------------------------------------------------


def granted(owner: str, sent_at: float, token: int, *, ttl: float = 10.0, took: float = 0.1) -> Event:
    return Event(owner, "acquire", "k", owner, sent_at, sent_at + took, "granted", ttl, token)


def released(owner: str, sent_at: float) -> Event:
    return Event(owner, "release", "k", owner, sent_at, sent_at + 0.1, "done")


def kinds(*events: Event) -> set[Kind]:
    return {violation.kind for violation in check(events)}


def test_a_history_of_turns_is_in_order() -> None:
    renewal = replace(granted("bob", 9.0, 200), operation="renew")
    unanswered = Event("cid", "acquire", "k", "cid", 12.0, None, "unknown", 10.0)
    late = granted("dan", 20.1, 300)
    assert check([granted("ann", 0.0, 100), released("ann", 5.0), granted("bob", 5.05, 200), renewal]) == []
    assert check([granted("ann", 0.0, 100), unanswered, granted("bob", 11.0, 200), late, released("bob", 20.0)]) == []


def test_a_token_given_twice() -> None:
    assert "token_repeated" in kinds(granted("ann", 0.0, 100), released("ann", 1.0), granted("bob", 2.0, 100))


def test_the_same_owner_may_be_told_its_token_again() -> None:
    assert kinds(granted("ann", 0.0, 100), granted("ann", 1.0, 100)) == set()


def test_tokens_against_the_order_of_grants() -> None:
    assert "order_broken" in kinds(granted("ann", 0.0, 100), released("ann", 1.0), granted("bob", 2.0, 99))


def test_tokens_of_grants_under_way_together_may_have_either_order() -> None:
    both = [
        granted("ann", 0.0, 100, took=3.0),
        released("ann", 3.2),
        granted("bob", 1.0, 99, took=1.0),
        released("bob", 2.0),
    ]
    assert kinds(*both) == set()


def test_two_sure_holders() -> None:
    assert "two_holders" in kinds(granted("ann", 0.0, 100), granted("bob", 5.0, 200))


def test_a_takeover_in_the_grace_loses_the_lease_though_nobody_was_sure() -> None:
    assert kinds(granted("ann", 0.0, 100), granted("bob", 10.5, 200)) == {"lease_lost"}
    assert kinds(granted("ann", 0.0, 100), granted("bob", 10.95, 200)) == set()


def test_a_shorter_renewal_brings_the_end_nearer_even_unanswered() -> None:
    shorter = Event("ann", "renew", "k", "ann", 1.0, None, "unknown", 5.0)
    assert kinds(granted("ann", 0.0, 100), granted("bob", 7.0, 200)) == {"two_holders", "lease_lost"}
    assert kinds(granted("ann", 0.0, 100), shorter, granted("bob", 7.0, 200)) == set()


def test_a_force_release_ends_everyones_certainty() -> None:
    forced = Event("root", "force_release", "k", "root", 2.0, 2.1, "done")
    assert kinds(granted("ann", 0.0, 100), forced, granted("bob", 2.2, 200)) == set()


@pytest.mark.parametrize(
    "denial",
    [
        Event("ann", "renew", "k", "ann", 5.0, 5.1, "lost", 10.0),
        Event("ann", "acquire", "k", "ann", 5.0, 5.1, "held", 10.0),
        Event("ann", "release", "k", "ann", 5.0, 5.1, "refused"),
        Event("eve", "get", "k", "eve", 5.0, 5.1, "free"),
    ],
)
def test_an_acknowledged_lease_that_is_denied(denial: Event) -> None:
    assert kinds(granted("ann", 0.0, 100), denial) == {"lease_lost"}
    late = replace(denial, sent_at=11.0, answered_at=11.1)
    assert kinds(granted("ann", 0.0, 100), late) == set()


def waiting(owner: str, sent_at: float, answered_at: float | None, token: int | None = None, node: str = "") -> Event:
    """A wait, ended by a grant or by lock_held; None for one that nothing was heard of."""
    outcome: Outcome = "unknown" if answered_at is None else "held" if token is None else "granted"
    return Event(owner, "acquire", "k", owner, sent_at, answered_at, outcome, 10.0, token, 20.0, node)


def test_waiters_in_their_order() -> None:
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


def test_a_waiter_that_was_passed_over() -> None:
    first = waiting("bob", 1.0, 7.1, 300)
    passing = waiting("cid", 4.0, 5.1, 200)
    assert kinds(first, passing, released("cid", 6.0)) == {"passed_over"}
    assert kinds(first, replace(passing, wait_seconds=0.0), released("cid", 6.0)) == {"passed_over"}


def test_a_waiter_that_went_without_while_a_later_one_was_granted() -> None:
    passing = waiting("cid", 4.0, 5.1, 200)
    assert kinds(waiting("bob", 1.0, 21.1), passing) == {"passed_over"}
    assert kinds(waiting("bob", 1.0, 6.0), passing) == set()  # it may have been over
    assert kinds(waiting("bob", 1.0, None), passing) == set()  # it may have been anywhere


def test_those_who_came_together_may_have_either_order() -> None:
    assert kinds(waiting("bob", 1.0, 7.1, 300), waiting("cid", 2.9, 5.1, 200), released("cid", 6.0)) == set()


def test_a_place_is_kept_over_several_requests() -> None:
    before = waiting("cid", 0.0, 3.9)
    after = waiting("cid", 4.0, 5.1, 200), released("cid", 6.0)
    assert kinds(waiting("bob", 1.0, 7.1, 300), before, *after) == set()


def test_between_nodes_there_is_no_order_but_nobody_starves() -> None:
    first = waiting("bob", 1.0, 9.0, 1_000, "left")
    others = [waiting(f"cid {number}", 4.0 + number / 100, 5.0, 100 + number, "right") for number in range(9)]
    kinds_of = {one.kind for one in check([first, *others], Slack(overtaken_max=9))}
    assert "starved" not in kinds_of
    assert "passed_over" not in kinds_of
    assert "starved" in {one.kind for one in check([first, *others], Slack(overtaken_max=8))}


def test_a_grant_to_one_who_hung_up() -> None:
    gone = replace(waiting("bob", 1.0, 2.0), outcome="left")
    between = granted("ann", 6.0, 100), released("ann", 6.5)
    seen = Event("eve", "get", "k", "eve", 7.0, 7.1, "held", fencing_token=200)
    assert kinds(gone, *between, seen) == {"granted_to_gone"}
    assert kinds(gone, replace(seen, outcome="free", fencing_token=None, sent_at=6.0, answered_at=6.1), seen) == {
        "granted_to_gone"
    }
    assert kinds(gone, seen) == set()  # it may have been granted it, and hung up before it read the answer
    assert kinds(replace(gone, answered_at=4.0), *between, seen) == set()  # it may not be noticed yet
    assert kinds(gone, *between, replace(seen, fencing_token=100)) == set()
    assert kinds(gone, *between, waiting("cid", 3.0, None), seen) == set()  # it may be that one's
    assert kinds(gone, *between, waiting("cid", 6.4, 7.0, 200), seen) == set()


def test_histories_are_kept_line_by_line_and_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    events = [granted("ann", 0.0, 100), released("ann", 1.0)]
    write(events, tmp_path / "a")
    with (tmp_path / "a").open("a") as file:
        file.write('{"client": "an')
    assert read(tmp_path / "a") == events


# --- through the service ----------------------------------------------------------------------------------


class Bystander:
    """A store in front of another, which breaks one promise."""

    def __init__(self, inner: LockStore) -> None:
        self.inner = inner
        self.updates = 0

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        self.updates += 1
        return await self.inner.update(keys, lambda records, now_ms: self.between(records, now_ms, step))

    def between(self, records: Records, now_ms: int, step: Step) -> Stepped:
        return step(records, now_ms)

    async def list_locks(self, query: LockQuery) -> LockPage:
        return await self.inner.list_locks(query)

    async def count_held(self) -> int:
        return await self.inner.count_held()

    async def purge(self, *, limit: int) -> int:
        return await self.inner.purge(limit=limit)

    async def ready(self) -> None:
        await self.inner.ready()


class ForgetsTokens(Bystander):
    """A freed record loses its fencing token, so that the next one may be the same."""

    def between(self, records: Records, now_ms: int, step: Step) -> Stepped:
        freed = {k: replace(r, fencing_token=0) if isinstance(r, Free) else r for k, r in records.items()}
        return step(freed, now_ms)


class EndsEarly(Bystander):
    """Leases seem to end three seconds before they do."""

    def between(self, records: Records, now_ms: int, step: Step) -> Stepped:
        return step({key: self._early(record) for key, record in records.items()}, now_ms)

    def _early(self, record: LockRecord | None) -> LockRecord | None:
        return replace(record, expires_at_ms=record.expires_at_ms - 3_000) if isinstance(record, Held) else record


class LosesWrites(Bystander):
    """One write in ten is acknowledged and not kept."""

    def between(self, records: Records, now_ms: int, step: Step) -> Stepped:
        stepped = step(records, now_ms)
        return stepped if self.updates % 10 else Stepped({}, stepped.results)


class LetsPass(ServiceFace):
    """A service in which every other waiter comes to the line after the next one."""

    held_up: Mapping[str, object] | None = None
    waits = 0

    async def _wait(self, args: Mapping[str, object]) -> Answer:
        self.waits += 1
        if self.waits % 2 and self.held_up is None:
            self.held_up = args
            self._waits[place_of(args)] = asyncio.create_task(asyncio.sleep(0, {"pending": True}))
            return {}
        answer = await super()._wait(args)
        if self.held_up is not None:
            await super()._wait(self.held_up)
            self.held_up = None
        return answer


class HearsNoHangUp(ServiceFace):
    """A service that does not notice who has hung up."""

    async def _hang_up(self, _args: Mapping[str, object]) -> Answer:
        return {}


class PassesOver(ServiceFace):
    """A service that lets one of its clients wait, and never has its turn come."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ends_at_ms: dict[tuple[str, str], int] = {}

    async def _wait(self, args: Mapping[str, object]) -> Answer:
        if args["actor"] != ACTORS[0]:
            return await super()._wait(args)
        self.ends_at_ms[place_of(args)] = self.now_ms() + int(str(args["wait_seconds"])) * 1_000
        return {}

    async def _waited(self, args: Mapping[str, object]) -> Answer:
        ends_at_ms = self.ends_at_ms.get(place_of(args))
        if ends_at_ms is None:
            return await super()._waited(args)
        return {"pending": True} if self.now_ms() < ends_at_ms else {"error": "lock_held"}

    async def _hang_up(self, args: Mapping[str, object]) -> Answer:
        return {} if place_of(args) in self.ends_at_ms else await super()._hang_up(args)


class Clients:
    """Clients who do this and that by chance, and write down what they are told."""

    def __init__(self, face: ServiceFace, seed: int, *, outages: bool) -> None:
        self.outages = outages
        self.waits = seed % 2 == 1
        self.waiting: dict[tuple[str, str], Event] = {}
        self.face = face
        self.chance = random.Random(seed)
        self.events: list[Event] = []
        self.owners: dict[tuple[str, str], str] = {}
        self.ticks = 0

    def act(self) -> None:
        for _ in range(ROUNDS):
            if self.chance.random() < 0.3:
                self.face.advance(self.chance.choice((1, 50, 700, 2_500, 5_000)))
            if self.outages and self.chance.random() < 0.1:
                kind = self.chance.choice(("store_before", "store_after"))
                self.face.do("outage", {"kind": kind, "count": 1})
            self.hear()
            actor, key = self.chance.choice(ACTORS), self.chance.choice(KEYS)
            if (actor, key) in self.waiting:
                if self.chance.random() < 0.1:
                    self.hang_up(actor, key)
                continue
            if self.waits and self.chance.random() < 0.3:
                self.wait(actor, key)
                continue
            verbs = ["acquire", "acquire", "renew", "release", "get"] + ["force_release"] * (
                self.chance.random() < 0.05
            )
            self.ask(self.chance.choice(verbs), actor, key)

    def wait(self, actor: str, key: str) -> None:
        owner = self.owners[actor, key] = f"{self.chance.getrandbits(122):032x}"
        ttl_seconds, wait_seconds = self.chance.choice((5, 6, 10)), self.chance.choice((1, 10, 20))
        asked = {"actor": actor, "key": key, "token": token_of(owner), "ttl_seconds": ttl_seconds}
        self.waiting[actor, key] = Event(
            actor, "acquire", key, owner, self.now(), None, "unknown", ttl_seconds, wait_seconds=wait_seconds
        )
        self.face.do("wait", {**asked, "wait_seconds": wait_seconds})

    def hang_up(self, actor: str, key: str) -> None:
        self.face.do("hang_up", {"actor": actor, "key": key})
        self.events.append(replace(self.waiting.pop((actor, key)), answered_at=self.now(), outcome="left"))

    def hear(self) -> None:
        """What came of those who wait."""
        for (actor, key), event in list(self.waiting.items()):
            answer = self.face.do("waited", {"actor": actor, "key": key})
            if "pending" in answer:
                continue
            outcome = outcome_of("acquire", answer.get("error"), None)
            answered_at = None if outcome == "unknown" else self.now()
            told = answer.get("fencing_token")
            token = told if isinstance(told, int) else None
            del self.waiting[actor, key]
            self.events.append(replace(event, answered_at=answered_at, outcome=outcome, fencing_token=token))

    def ask(self, verb: str, actor: str, key: str) -> None:
        if (actor, key) not in self.owners or (verb == "acquire" and self.chance.random() < 0.5):
            self.owners[actor, key] = f"{self.chance.getrandbits(122):032x}"
        owner = self.owners[actor, key]
        token = token_of(owner)
        ttl_seconds = self.chance.choice((5, 6, 10))
        sent_at = self.now()
        answer = self.face.do(verb, {"key": key, "token": token, "ttl_seconds": ttl_seconds})
        outcome = outcome_of(verb, answer.get("error"), answer.get("held"))
        answered_at = None if outcome == "unknown" else self.now()
        fencing_token = answer.get("fencing_token")
        told = fencing_token if isinstance(fencing_token, int) else None
        event = Event(actor, verb, key, owner, sent_at, answered_at, outcome, ttl_seconds, told)  # type: ignore[arg-type]
        self.events.append(event)

    def now(self) -> float:
        """The clock, with ticks so small that they only tell before from after."""
        self.ticks += 1
        return self.face.now_ms() / 1_000 - 1_784_000_000 + self.ticks * 1e-6


def token_of(owner: str) -> str:
    return f"{owner[:8]}-{owner[8:12]}-{owner[12:16]}-{owner[16:20]}-{owner[20:]}"


def outcome_of(verb: str, error: object, held: object) -> Outcome:
    if error == "lock_service_unavailable":
        return "unknown"
    if verb == "get":
        return "held" if held else "free"
    if verb in ("release", "force_release"):
        return "refused" if error else "done"
    return {None: "granted", "lock_held": "held", "lock_ownership_lost": "lost"}[error]  # type: ignore[index,return-value]


def found(
    store: type[Bystander], folder: Path, service: type[ServiceFace] = ServiceFace, *, outages: bool = True
) -> set[Kind]:
    kinds: set[Kind] = set()
    for seed in range(SEEDS):
        face = service(Quota(), "memory://", folder, store)
        clients = Clients(face, seed, outages=outages)
        clients.act()
        face.close()
        kinds |= {violation.kind for violation in check(clients.events, SLACK)}
    return kinds


def test_the_service_keeps_its_promises(tmp_path: Path) -> None:
    assert found(Bystander, tmp_path) == set()
    assert found(Bystander, tmp_path, outages=False) == set()


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        (ForgetsTokens, "token_repeated"),
        (EndsEarly, "lease_lost"),
        (LosesWrites, "lease_lost"),
        (LosesWrites, "two_holders"),
    ],
)
def test_a_broken_store_is_found_out(store: type[Bystander], kind: Kind, tmp_path: Path) -> None:
    assert kind in found(store, tmp_path)


@pytest.mark.parametrize(
    ("service", "kind"), [(LetsPass, "passed_over"), (PassesOver, "starved"), (HearsNoHangUp, "granted_to_gone")]
)
def test_a_service_whose_lines_are_broken_is_found_out(service: type[ServiceFace], kind: Kind, tmp_path: Path) -> None:
    assert kind in found(Bystander, tmp_path, service, outages=False)
