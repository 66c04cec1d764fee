"""The checker of histories finds what is broken, in histories written by hand and in stores broken on purpose."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from volcano_locks_server.lease import Free, Held, LockRecord
from volcano_locks_server.store import LockPage, LockQuery, LockStore, RecordKey, Records, Step, Stepped

from .faces.service import ServiceFace
from .grammar import Quota
from .history import Event, Kind, Outcome, check, read, write

ROUNDS = 400
ACTORS = ("ann", "bob", "cid", "dan")
KEYS = ("one", "two")
HOW_OFTEN = {"acquire": 40, "renew": 20, "release": 20, "get": 20, "force_release": 1}


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


class Clients:
    """Clients who do this and that by chance, and write down what they are told."""

    def __init__(self, face: ServiceFace, seed: int) -> None:
        self.face = face
        self.chance = random.Random(seed)
        self.events: list[Event] = []
        self.owners: dict[tuple[str, str], str] = {}
        self.ticks = 0

    def act(self) -> None:
        for _ in range(ROUNDS):
            if self.chance.random() < 0.5:
                self.face.advance(self.chance.choice((1, 50, 700, 2_500, 5_000)))
            if self.chance.random() < 0.1:
                kind = self.chance.choice(("store_before", "store_after"))
                self.face.do("outage", {"kind": kind, "count": 1})
            actor, key = self.chance.choice(ACTORS), self.chance.choice(KEYS)
            verbs = ["acquire", "acquire", "renew", "release", "get"] + ["force_release"] * (
                self.chance.random() < 0.05
            )
            self.ask(self.chance.choice(verbs), actor, key)

    def ask(self, verb: str, actor: str, key: str) -> None:
        if (actor, key) not in self.owners or (verb == "acquire" and self.chance.random() < 0.5):
            self.owners[actor, key] = f"{self.chance.getrandbits(122):032x}"
        owner = self.owners[actor, key]
        token = f"{owner[:8]}-{owner[8:12]}-{owner[12:16]}-{owner[16:20]}-{owner[20:]}"
        ttl_seconds = self.chance.choice((5, 6, 10))
        sent_at = self.now()
        answer = self.face.do(verb, {"key": key, "token": token, "ttl_seconds": ttl_seconds})
        outcome = outcome_of(verb, answer.get("error"), answer.get("held"))
        answered_at = None if outcome == "unknown" else self.now()
        fencing_token = answer.get("fencing_token")
        told = fencing_token if isinstance(fencing_token, int) and verb != "get" else None
        event = Event(actor, verb, key, owner, sent_at, answered_at, outcome, ttl_seconds, told)  # type: ignore[arg-type]
        self.events.append(event)

    def now(self) -> float:
        """The clock, with ticks so small that they only tell before from after."""
        self.ticks += 1
        return self.face.now_ms() / 1_000 - 1_784_000_000 + self.ticks * 1e-6


def outcome_of(verb: str, error: object, held: object) -> Outcome:
    if error == "lock_unavailable":
        return "unknown"
    if verb == "get":
        return "held" if held else "free"
    if verb in ("release", "force_release"):
        return "refused" if error else "done"
    return {None: "granted", "lock_held": "held", "lock_ownership_lost": "lost"}[error]  # type: ignore[index,return-value]


def found(store: type[Bystander], folder: Path, seeds: int = 10) -> set[Kind]:
    kinds: set[Kind] = set()
    for seed in range(seeds):
        face = ServiceFace(Quota(), "memory://", folder, store)
        clients = Clients(face, seed)
        clients.act()
        face.close()
        kinds |= {violation.kind for violation in check(clients.events)}
    return kinds


def test_the_service_keeps_its_promises(tmp_path: Path) -> None:
    assert found(Bystander, tmp_path) == set()


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
