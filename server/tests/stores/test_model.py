"""Any story told to every store and to a naive model ends the same way in all of them, restarts included."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from testsupport.engines import etcd, postgres

from volcano_locks_server.ports.lock_store import LockQuery
from volcano_locks_server.rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Granted,
    Outcome,
    Read,
    Refused,
    Release,
    Released,
    Renew,
    State,
)
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock

from .deeds import PROJECT, act, digest, key
from .oracle import Answer, Oracle

T = TypeVar("T")
Deed = tuple[str, str, str, int]

names = st.sampled_from(["a", "b", "c"])
owners = st.sampled_from(["x", "y", "z"])
ttls = st.sampled_from([5, 6, 30, 7_776_000])
verbs = st.sampled_from(["acquire", "acquire", "renew", "release", "force_release", "read"])
deeds = st.tuples(verbs, names, owners, ttls)
spans_ms = st.sampled_from([0, 1, 999, 1_000, 1_001, 3_999, 4_000, 5_000, 6_000, 29_000, 86_400_000, 90 * 86_400_000])


def command_of(deed: Deed) -> Command:
    verb, _name, owner, ttl = deed
    commands: dict[str, Command] = {
        "acquire": Acquire(digest(owner), ttl),
        "renew": Renew(digest(owner), ttl),
        "release": Release(digest(owner)),
        "force_release": ForceRelease(),
        "read": Read(),
    }
    return commands[verb]


def answer_of(outcome: Outcome) -> Answer:
    match outcome:
        case Granted(expires_at_ms=expires_at_ms, fencing_token=fencing_token):
            return ("granted", expires_at_ms, fencing_token)
        case Released():
            return ("released",)
        case State(lease=None):
            return ("free",)
        case State(lease=lease):
            return ("held", lease.expires_at_ms, lease.fencing_token)
        case Refused(code=code):
            return (code,)


@cache
def database() -> str:
    """One for all stories: to empty it is quicker than to make it."""
    return postgres.shared().new_database()


def emptied() -> str:
    """The URL of the database, as if nothing had happened in it."""
    postgres.shared().execute("DROP SCHEMA IF EXISTS volcano_locks CASCADE", database())
    return postgres.shared().url(database())


class Stores(RuleBasedStateMachine):
    """All stores and the model, told the same story. LEASE-1, LEASE-3, LEASE-13, LEASE-14."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="stores-model-"))
        self.stores: list[OpenStore] = []
        self.last_grant: dict[str, tuple[str, int]] = {}

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.oracle = Oracle(self.clock.now_ms())
        self.lasting = [f"sqlite:///{self.directory}/locks.db", emptied(), etcd.shared().url()]
        self.stores = [self.opened(url) for url in ("memory://", *self.lasting)]

    @rule(batch=st.lists(deeds, min_size=1, max_size=8))
    def serve(self, batch: Sequence[Deed]) -> None:
        expected = [self.told(deed) for deed in batch]
        commands = [(key(deed[1]), command_of(deed)) for deed in batch]
        for outcomes in self.each(lambda store: act(store.locks, *commands)):
            assert [answer_of(outcome) for outcome in outcomes] == expected

    @rule(span_ms=spans_ms)
    def wait(self, span_ms: int) -> None:
        self.oracle.now = self.clock.advance(span_ms)

    @rule()
    def count(self) -> None:
        assert self.each(lambda store: store.locks.count_held()) == [self.oracle.count_held()] * len(self.stores)

    @rule(held=st.sampled_from([None, True, False]), limit=st.integers(1, 4))
    def list_locks(self, held: bool | None, limit: int) -> None:
        """LIST-1 to LIST-4: the same page everywhere; what was forgotten, or never written, is in none."""
        query = LockQuery(PROJECT, limit, held=held)
        pages = self.each(lambda store: store.locks.list_locks(query))
        expected = self.oracle.listed(held)
        for page in pages:
            assert [(one, record.fencing_token) for one, record in page.records] == expected[:limit]
            assert page.now_ms == self.clock.now_ms()
            assert (page.next_after is None) is (len(expected) <= limit)

    @rule()
    def purge(self) -> None:
        assert self.each(lambda store: store.locks.purge(limit=100)) == [self.oracle.purge()] * len(self.stores)

    @rule()
    def restart(self) -> None:
        """What was acknowledged is there again, and its tokens do not fall."""
        for place, url in enumerate(self.lasting, 1):
            self.runner.run(self.stores[place].close())
            self.stores[place] = self.opened(url)

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def told(self, deed: Deed) -> Answer:
        """The model's answer; it is held to the fencing rule itself (LEASE-3)."""
        verb, name, owner, ttl = deed
        answer: Answer
        match verb:
            case "acquire" | "renew":
                answer = getattr(self.oracle, verb)(name, owner, ttl)
            case "release":
                answer = self.oracle.release(name, owner)
            case _:
                answer = getattr(self.oracle, verb)(name)
        if answer[0] == "granted":
            token = answer[2]
            assert isinstance(token, int)
            last_owner, last_token = self.last_grant.get(name, ("", 0))
            assert token > last_token or (token == last_token and owner == last_owner)
            self.last_grant[name] = owner, token
        return answer

    def opened(self, url: str) -> OpenStore:
        return self.runner.run(open_store(url, self.clock))

    def each(self, ask: Callable[[OpenStore], Awaitable[T]]) -> list[T]:
        async def asked() -> list[T]:
            return [await ask(store) for store in self.stores]

        return self.runner.run(asked())


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
