"""Random commands have the same outcome in every store and in a simple model, restarts included."""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from testsupport.engines import etcd, postgres

from volcano_locks_server.ports.lock_store import HistoryQuery, LockQuery
from volcano_locks_server.rules.history import Period
from volcano_locks_server.rules.hold import HoldEntry, Requester
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
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.stores.memory import MemoryStore
from volcano_locks_server.testing import ManualClock

from .lease_model import LeaseModel, ModelOutcome
from .store_actions import PROJECT, digest, key, run_commands

T = TypeVar("T")
ModelCommand = tuple[str, str, str, int]

names = st.sampled_from(["a", "b", "c"])
owners = st.sampled_from(["x", "y", "z"])
ttls = st.sampled_from([5, 6, 30, 7_776_000])
FORCE_ONE = "force_release_of_one_lease"
verbs = st.sampled_from(["acquire", "acquire", "renew", "release", "force_release", FORCE_ONE, "read"])
model_commands = st.tuples(verbs, names, owners, ttls)
spans_ms = st.sampled_from([0, 1, 999, 1_000, 1_001, 3_999, 4_000, 5_000, 6_000, 29_000, 86_400_000, 90 * 86_400_000])


def command_of(command: ModelCommand, fencing_tokens: Mapping[str, int]) -> Command:
    """The command; `fencing_tokens` are those of the locks that were granted before its batch."""
    verb, name, owner, ttl = command
    commands: dict[str, Command] = {
        "acquire": Acquire(digest(owner), ttl, owner, Requester("key", owner)),
        "renew": Renew(digest(owner), ttl),
        "release": Release(digest(owner)),
        "force_release": ForceRelease(),
        FORCE_ONE: ForceRelease(fencing_tokens.get(name, 1)),
        "read": Read(),
    }
    return commands[verb]


def model_outcome(outcome: Outcome) -> ModelOutcome:
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
    """One database for all examples: emptying it is faster than creating it."""
    return postgres.shared().new_database()


def empty_database_url() -> str:
    """The URL of the database, emptied."""
    postgres.shared().execute("DROP SCHEMA IF EXISTS volcano_locks CASCADE", database())
    return postgres.shared().url(database())


async def walked_history(store: OpenStore, query: HistoryQuery) -> list[tuple[str, HoldEntry]]:
    """The entries on all pages."""
    entries: list[tuple[str, HoldEntry]] = []
    while True:
        page = await store.locks.history_page(query)
        entries += page.entries
        if page.next_after is None:
            return entries
        query = query._replace(after=page.next_after)


class Stores(RuleBasedStateMachine):
    """Runs the same commands on all stores and the model. LEASE-1, LEASE-3, LEASE-13, LEASE-14, LEASE-17."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp(prefix="stores-model-"))
        self.stores: list[OpenStore] = []
        self.last_grant: dict[str, tuple[str, int]] = {}
        self.jumps_again_ms = 0

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.model = LeaseModel(self.clock.now_ms())
        self.durable_urls = [f"sqlite:///{self.directory}/locks.db", empty_database_url(), etcd.shared().url()]
        self.stores = [self.open(url) for url in ("memory://", *self.durable_urls)]

    @rule(batch=st.lists(model_commands, min_size=1, max_size=8))
    def serve(self, batch: Sequence[ModelCommand]) -> None:
        fencing_tokens = {name: token for name, (_owner, token) in self.last_grant.items()}
        expected = [self.expected(command, fencing_tokens) for command in batch]
        commands = [(key(command[1]), command_of(command, fencing_tokens)) for command in batch]
        for outcomes in self.each(lambda store: run_commands(store.locks, *commands)):
            assert [model_outcome(outcome) for outcome in outcomes] == expected

    @rule(span_ms=spans_ms)
    def wait(self, span_ms: int) -> None:
        self.model.now = self.clock.advance(span_ms)

    @rule(limit=st.integers(1, 4), at_ago_ms=st.none() | st.integers(0, 40_000))
    def read_history(self, limit: int, at_ago_ms: int | None) -> None:
        """HISTORY-2, HISTORY-5: the same pages everywhere, and the same holds by lock."""
        period = Period(at_ms=None if at_ago_ms is None else self.clock.now_ms() - at_ago_ms)
        walks = self.each(lambda store: walked_history(store, HistoryQuery(PROJECT, limit, period=period)))
        assert walks == [walks[0]] * len(walks)
        for name in ("a", "b", "c"):
            query = HistoryQuery(PROJECT, 500, key=LockKey(name), period=period)
            holds = self.each(lambda store, query=query: walked_history(store, query))  # type: ignore[misc]
            assert holds == [[one for one in walks[0] if one[0] == name]] * len(holds)

    @rule()
    def count(self) -> None:
        assert self.each(lambda store: store.locks.count_held()) == [self.model.count_held()] * len(self.stores)

    @rule(held=st.sampled_from([None, True, False]), limit=st.integers(1, 4))
    def list_locks(self, held: bool | None, limit: int) -> None:
        """LIST-1 to LIST-4: the same page everywhere; purged or unwritten records are on none."""
        query = LockQuery(PROJECT, limit, held=held)
        pages = self.each(lambda store: store.locks.list_locks(query))
        expected = self.model.listed(held)
        for page in pages:
            assert [(one, record.fencing_token) for one, record in page.records] == expected[:limit]
            assert page.now_ms == self.clock.now_ms()
            assert (page.next_after is None) is (len(expected) <= limit)

    @rule()
    def purge(self) -> None:
        assert self.each(lambda store: store.locks.purge(limit=100)) == [self.model.purge()] * len(self.stores)

    @rule()
    def restart(self) -> None:
        """Acknowledged records are there again, and tokens do not fall."""
        for index, url in enumerate(self.durable_urls, 1):
            self.runner.run(self.stores[index].close())
            self.stores[index] = self.open(url)

    @precondition(lambda self: self.model.now >= self.jumps_again_ms)
    @rule(span_ms=st.sampled_from([5_000, 60_000, 3_600_000, 100 * 86_400_000]))
    def reboot_with_another_date(self, span_ms: int) -> None:
        """Every view of every store holds what was alive. A jump within ten minutes would be held for longer."""
        self.wait(1_000)
        self.serve([("release", "d", "x", 5)])  # so that the newest instant of each store is this one
        for index in range(1, len(self.stores)):
            self.runner.run(self.stores[index].close())
        memory = self.stores[0].locks
        assert isinstance(memory, MemoryStore)
        self.clock.is_synchronised = False
        self.clock.reboot()
        self.model.jump(self.clock.jump(span_ms))
        memory.history = memory.history.after_jump(self.model.now, span_ms)
        self.stores[1:] = [self.open(url) for url in self.durable_urls]
        self.serve([("read", "d", "x", 5)])  # from its first update on, a file continues this boot
        self.jumps_again_ms = self.model.now + 600_000

    def teardown(self) -> None:
        for store in self.stores:
            self.runner.run(store.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def expected(self, command: ModelCommand, fencing_tokens: Mapping[str, int]) -> ModelOutcome:
        """The model's outcome, checked against the fencing rule itself (LEASE-3)."""
        verb, name, owner, ttl = command
        outcome: ModelOutcome
        match verb:
            case "acquire" | "renew":
                outcome = getattr(self.model, verb)(name, owner, ttl)
            case "release":
                outcome = self.model.release(name, owner)
            case _ if verb == FORCE_ONE:
                outcome = self.model.force_release(name, fencing_token=fencing_tokens.get(name, 1))
            case _:
                outcome = getattr(self.model, verb)(name)
        if outcome[0] == "granted":
            token = outcome[2]
            assert isinstance(token, int)
            last_owner, last_token = self.last_grant.get(name, ("", 0))
            assert token > last_token or (token == last_token and owner == last_owner)
            self.last_grant[name] = owner, token
        return outcome

    def open(self, url: str) -> OpenStore:
        return self.runner.run(open_store(url, self.clock))

    def each(self, call: Callable[[OpenStore], Awaitable[T]]) -> list[T]:
        async def results() -> list[T]:
            return [await call(store) for store in self.stores]

        return self.runner.run(results())


TestStores = pytest.mark.engines(Stores.TestCase)
TestStores.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
