"""The model engines answer like the real ones: the same random traffic, the same answers."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from simulation.clocks import Machine
from simulation.loop import ProcessLoop, bury
from simulation.profiles import Store
from simulation.stores.etcd import ModelCluster
from simulation.stores.postgres import ModelDatabase
from simulation.stores.signals import SignalChannel
from simulation.stores.sqlite import ModelFile
from simulation.stores.wire import StoreWire
from simulation.world import World
from testsupport.engines import etcd, postgres

from volcano_locks_server.ports.clock import Clock
from volcano_locks_server.ports.lock_store import LockQuery, RecordKey, Records, StepResult
from volcano_locks_server.queue.handoff import PendingCommand, evaluate
from volcano_locks_server.rules.errors import StoreUnavailableError
from volcano_locks_server.rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Free,
    Held,
    LockRecord,
    Read,
    Release,
    Renew,
)
from volcano_locks_server.rules.values import LockKey
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock

PROJECT: Final = "00000000-0000-4000-8000-000000000001"
STEPS: Final = 150


def url_of(kind: Store, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder / 'locks.db'}"
    if kind == "postgres":
        return postgres.shared().url(postgres.shared().new_database())
    return etcd.shared().url()


async def traffic(store: OpenStore, clock: ManualClock, seed: int) -> list[object]:
    """Random batches, lists and draws on the quota; their answers."""
    draw = random.Random(seed)
    answers: list[object] = []
    keys = [RecordKey(PROJECT, LockKey(name)) for name in ("a", "b", "c", "d")]
    for _ in range(STEPS):
        clock.advance(draw.choice((0, 1, 40, 900, 3_000)))
        kind = draw.random()
        if kind < 0.8:
            batch = [(draw.choice(keys), command_of(draw)) for _ in range(draw.randint(1, 6))]
            answers.append(await answer(lambda batch=batch: run_batch(store, batch)))  # type: ignore[misc]
        elif kind < 0.9:
            query = LockQuery(PROJECT, draw.randint(1, 4), held=draw.choice((None, True, False)))
            answers.append(await answer(lambda query=query: listed(store, query)))  # type: ignore[misc]
        elif store.quotas is not None:
            take, window = store.quotas.take, clock.now_ms() // 60_000 * 60_000
            wanted = draw.randint(1, 9)
            answers.append(await answer(lambda: take(PROJECT, window, limit=30, wanted=wanted)))  # noqa: B023
        else:
            draw.randint(1, 9)
    return answers


async def answer(work: Callable[[], Coroutine[Any, Any, object]]) -> object:
    try:
        return await work()
    except StoreUnavailableError as error:
        return error.cause_code


async def listed(store: OpenStore, query: LockQuery) -> object:
    page = await store.locks.list_locks(query)
    return list(page.records), page.now_ms, page.next_after


async def run_batch(store: OpenStore, batch: Sequence[tuple[RecordKey, Command]]) -> object:
    def step(records: Records, now_ms: int) -> StepResult:
        kept, changed, outcomes = dict(records), {}, []
        for key, command in batch:
            before = kept[key]
            kept[key], outcome = evaluate(before, PendingCommand(command), now_ms)
            outcomes.append(outcome)
            after = kept[key]
            if after is not before and isinstance(after, Held | Free):
                changed[key] = after
        final: dict[RecordKey, LockRecord] = changed
        return StepResult(final, outcomes)

    return list(await store.locks.update(list(dict.fromkeys(key for key, _ in batch)), step))


def command_of(draw: random.Random) -> Command:
    owner = bytes([draw.randint(1, 4)]) * 32
    commands: list[Command] = [Acquire(owner, 5, "me"), Acquire(owner, 30), Renew(owner, 6), Release(owner)]
    return draw.choice([*commands, ForceRelease(), Read()])


def on_model(kind: Store, work: Callable[[OpenStore, ManualClock], Coroutine[Any, Any, list[object]]]) -> list[object]:
    """Run on the model engine, in a simulated process."""
    world = World("traffic")
    machine = Machine(world, "machine")
    failures: list[dict[str, Any]] = []
    loop = ProcessLoop(world, machine, world.random_for("turns"), failures.append)
    wire = StoreWire(world, world.random_for("wire"))
    channel = SignalChannel(world, wire, world.random_for("messages"), is_pooled=False)
    clock = ManualClock()
    answers: list[object] = []
    model: ModelFile | ModelDatabase | ModelCluster
    if kind == "sqlite":
        model = ModelFile(world, world.random_for("disk"), lambda _update: None)
    elif kind == "postgres":
        model = ModelDatabase(world, wire, channel, machine, lambda _update: None)
        model.clock_ms = clock.now_ms  # type: ignore[method-assign]
    else:
        model = ModelCluster(world, wire, channel, lambda _update: None)

    async def main() -> None:
        clock_port: Clock = clock
        answers.extend(await work(await model.open("node", clock_port, loop), clock))

    loop.call_soon(lambda: tasks.append(loop.create_task(main())))
    tasks: list[asyncio.Task[None]] = []
    while not tasks or not tasks[0].done():
        world.step()
    tasks[0].result()
    assert not failures
    loop.kill()
    bury([loop])
    return answers


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "etcd"])
def test_the_model_answers_as_the_engine_does(kind: Store, seed: int, tmp_path: Path) -> None:
    async def on_engine() -> list[object]:
        clock = ManualClock()
        store = await open_store(url_of(kind, tmp_path), clock)
        try:
            return await traffic(store, clock, seed)
        finally:
            await store.close()

    modelled = on_model(kind, lambda store, clock: traffic(store, clock, seed))
    assert modelled == asyncio.run(on_engine())
    assert len(modelled) > STEPS * 0.8
