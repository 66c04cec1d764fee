"""The checker of histories finds broken ones, and lets pass what a correct service can have told.

Broken by hand, and by three stores that break their promise on purpose under the real service. `case 20`, `case 30`.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256

import pytest

from volcano_locks_server.lease import Acquire, Command, Free, Granted, Read, Refused, Release, Renew, State
from volcano_locks_server.limits import LockKey
from volcano_locks_server.service import LockService
from volcano_locks_server.store import RecordKey, Step
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .history import Call, Fault, History, Told, Verb, faults

TTL_SECONDS = 10


def told(
    verb: Verb,
    owner: str,
    span: tuple[float, float | None],
    what: Told = "nothing",
    token: int | None = None,
    *,
    ttl: int = 10,
) -> Call:
    """A call asked and answered at these instants, in seconds; no answer where the second is None."""
    asked, answered = span
    return Call(verb, "k", owner, ttl, asked * 1_000, None if answered is None else answered * 1_000, what, token)


def acquired(owner: str, asked: float, answered: float, token: int, ttl: int = 10) -> Call:
    return told("acquire", owner, (asked, answered), "granted", token, ttl=ttl)


def renewed(owner: str, asked: float, answered: float, token: int, ttl: int = 10) -> Call:
    return told("renew", owner, (asked, answered), "granted", token, ttl=ttl)


ANN = acquired("ann", 0, 1, 100)

BROKEN = {
    "two owners, one token": (
        "token_repeated",
        [ANN, told("release", "ann", (2, 3), "freed"), acquired("bob", 4, 5, 100)],
    ),
    "a later grant, a lower token": (
        "token_order",
        [ANN, told("release", "ann", (2, 3), "freed"), acquired("bob", 4, 5, 99)],
    ),
    "granted while another holds": ("early_takeover", [ANN, acquired("bob", 8, 9, 101)]),
    "granted in the grace": ("early_takeover", [ANN, acquired("bob", 10.5, 10.9, 101)]),
    "granted although renewed": ("early_takeover", [ANN, renewed("ann", 5, 6, 100), acquired("bob", 12, 13, 101)]),
    "renewed after another was granted": (
        "early_takeover",
        [ANN, acquired("bob", 11, 12, 101), renewed("ann", 13, 14, 100)],
    ),
    "the same owner with a new token": ("early_takeover", [ANN, acquired("ann", 5, 6, 101)]),
    "released only after another was granted": (
        "early_takeover",
        [ANN, acquired("bob", 4, 5, 101), told("release", "ann", (6, 7), "freed")],
    ),
    "forced out before it began": (
        "early_takeover",
        [told("force_release", "", (-2, -1), "freed"), ANN, acquired("bob", 4, 5, 101)],
    ),
    "another is seen to hold": ("early_takeover", [ANN, told("get", "", (4, 5), "held", 101)]),
    "a renewal is refused": ("lease_lost", [ANN, told("renew", "ann", (4, 5), "lock_ownership_lost")]),
    "a release is refused": ("lease_lost", [ANN, told("release", "ann", (10, 10.9), "lock_ownership_lost")]),
    "a repeated acquire is refused": ("lease_lost", [ANN, told("acquire", "ann", (4, 5), "lock_held")]),
    "seen free": ("lease_lost", [ANN, told("get", "", (10, 10.9), "free")]),
    "seen with the token before": (
        "lease_lost",
        [ANN, acquired("bob", 20, 21, 101), told("get", "", (22, 23), "held", 100)],
    ),
}

SOUND = {
    "taken over after the grace": [ANN, acquired("bob", 10.5, 11, 101)],
    "released, then granted": [ANN, told("release", "ann", (2, 3), "freed"), acquired("bob", 2.5, 4, 101)],
    "perhaps released, then granted": [ANN, told("release", "ann", (2, None)), acquired("bob", 4, 5, 101)],
    "forced out": [ANN, told("force_release", "", (2, None)), told("renew", "ann", (3, 4), "lock_ownership_lost")],
    "renewed to a shorter term": [ANN, renewed("ann", 1, 2, 100, ttl=5), acquired("bob", 6, 7, 101)],
    "perhaps renewed to a shorter term": [
        ANN,
        told("renew", "ann", (1, None), ttl=5),
        told("renew", "ann", (5, 6), "lock_ownership_lost"),
        acquired("bob", 6, 7, 101),
    ],
    "of two renewals at once the shorter was the last": [
        ANN,
        renewed("ann", 2, 4, 100, ttl=5),
        renewed("ann", 3, 5, 100, ttl=30),
        acquired("bob", 8.5, 9, 101),
    ],
    "refused in the margin": [ANN, told("renew", "ann", (8, 9.1), "lock_ownership_lost")],
    "told late": [acquired("ann", 0, 11, 100), acquired("bob", 10.5, 11, 101)],
    "two at once, the second told first": [
        acquired("ann", 0, 5, 100),
        told("release", "cid", (0, 1), "freed"),
        told("release", "ann", (1, None)),
        acquired("bob", 1, 3, 101),
    ],
    "seen free before the grant was told": [ANN, told("get", "", (0.5, 2), "free")],
    "a grant nobody heard of": [told("acquire", "ann", (0, None)), told("get", "", (4, 5), "held", 100)],
    "retried until it was told": [
        told("acquire", "ann", (0, None)),
        told("get", "", (1, 2), "held", 100),
        acquired("ann", 3, 4, 100),
        renewed("ann", 5, 6, 100),
    ],
    "other locks": [ANN, Call("acquire", "other", "bob", 10, 0, 1, "granted", 100)],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_is_found(name: str) -> None:
    kind, calls = BROKEN[name]
    found = faults(random.Random(name).sample(calls, len(calls)))
    assert kind in kinds(found), found


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_passes(name: str) -> None:
    calls = SOUND[name]
    assert faults(random.Random(name).sample(calls, len(calls))) == []


def kinds(found: Sequence[Fault]) -> set[str]:
    return {fault.kind for fault in found}


# --- stores that break their promise, under the real service ---


class ForgetfulStore(MemoryStore):
    """Forgets a lock at once when it is freed, and its last fencing token with it."""

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        results = await super().update(keys, step)
        for key in keys:
            if isinstance(self.records.get(key), Free):
                del self.records[key]
        return results


class HastyStore(MemoryStore):
    """Judges by a clock that runs twice as fast: leases end when half their time is over."""

    def _now_ms(self) -> int:
        return super()._now_ms() * 2


class CarelessStore(MemoryStore):
    """Answers now and then what it never wrote."""

    updates = 0

    async def update(self, keys: Sequence[RecordKey], step: Step) -> Sequence[object]:
        self.updates += 1
        kept = dict(self.records)
        results = await super().update(keys, step)
        if self.updates % 7 == 0:
            self.records.clear()
            self.records.update(kept)
        return results


BROKEN_STORES = [(ForgetfulStore, "token_repeated"), (HastyStore, "early_takeover"), (CarelessStore, "lease_lost")]


@pytest.mark.parametrize(("store", "kind"), BROKEN_STORES, ids=[kind for _, kind in BROKEN_STORES])
async def test_a_store_that_breaks_its_promise_is_found(store: Callable[[ManualClock], MemoryStore], kind: str) -> None:
    history = await played(store)
    assert kind in kinds(faults(history.calls))


async def test_a_store_that_keeps_its_promise_passes() -> None:
    history = await played(MemoryStore)
    assert faults(history.calls) == []
    counted = Counter((call.verb, call.told) for call in history.calls)
    assert counted["acquire", "granted"] > 100
    assert counted["renew", "lock_ownership_lost"] > 10
    assert counted["get", "held"] > 10


async def played(store_of: Callable[[ManualClock], MemoryStore], rounds: int = 2_000) -> History:
    """What a few actors were told who take, extend, free and abandon two locks at random, while time goes by."""
    dice = random.Random(20)
    clock = ManualClock()
    service = LockService(store_of(clock), clock)
    history = History(clock.now_ms)
    owners: dict[str, list[str]] = {key: ["nobody"] for key in ("a", "b")}
    verbs: list[Verb] = ["acquire", "renew", "release", "get"]
    for number in range(rounds):
        key = dice.choice(list(owners))
        (verb,) = dice.choices(verbs, (6, 3, 3, 2))
        if verb == "acquire" and dice.random() < 0.8:
            owners[key].append(f"owner {number}")
        owner = dice.choice(owners[key][-3:])
        await called(service, history, verb, key, "" if verb == "get" else owner)
        if dice.random() < 0.2:
            clock.advance(dice.choice((1, 500, 1_000, 2_500)))
    await service.close()
    return history


async def called(service: LockService, history: History, verb: Verb, key: str, owner: str) -> None:
    digest = sha256(owner.encode()).digest()
    commands: dict[Verb, Command] = {
        "acquire": Acquire(digest, TTL_SECONDS),
        "renew": Renew(digest, TTL_SECONDS),
        "release": Release(digest),
        "get": Read(),
    }
    call = history.ask(verb, key, owner, TTL_SECONDS)
    reply = await service.perform("project", 0, LockKey.parse(key), commands[verb])
    match reply.outcome:
        case Granted() as granted:
            history.tell(call, "granted", granted.fencing_token)
        case Refused() as refused:
            history.tell(call, refused.code)
        case State(lease=None):
            history.tell(call, "free")
        case State() as state:
            assert state.lease is not None
            history.tell(call, "held", state.lease.fencing_token)
        case _:
            history.tell(call, "freed")
