"""The clock that tests move (SDK-10)."""

import asyncio
from math import inf

import pytest

from volcano_locks.asyncio.waiting import sleep
from volcano_locks.testing import ManualClock


@pytest.mark.real_time
async def test_a_jump_wakes_exactly_the_tasks_that_are_due() -> None:
    clock = ManualClock()
    woken: list[str] = []

    async def sleeper(name: str, until: float) -> None:
        await sleep(clock, until)
        woken.append(name)

    tasks = [asyncio.create_task(sleeper(name, until)) for name, until in (("late", 20), ("soon", 10))]
    await asyncio.sleep(0)
    assert clock.next_due() == 10
    clock.jump(9.9)
    await asyncio.sleep(0.001)
    assert woken == []
    clock.jump(0.1)
    await asyncio.sleep(0.001)
    assert woken == ["soon"]
    clock.jump(100)
    await asyncio.gather(*tasks)
    assert woken == ["soon", "late"]
    assert clock.next_due() == inf


async def test_advance_stops_at_every_instant_for_which_a_task_waits() -> None:
    """SDK-10: a watched task runs at each of its instants and sleeps again before the clock moves on."""
    moved: list[float] = []
    clock = ManualClock(on_move=moved.append)
    seen: list[float] = []

    async def every_ten_seconds() -> None:
        due = 10.0
        while True:
            await sleep(clock, due)
            await asyncio.sleep(0)
            seen.append(clock.now())
            due += 10

    task = asyncio.create_task(every_ten_seconds())
    clock.watch(task, task.done)
    await clock.advance_async(35)
    assert seen == [10.0, 20.0, 30.0]
    assert moved == [10.0, 10.0, 10.0, 5.0]
    assert (clock.utc_now().minute, clock.utc_now().second) == (0, 35)
    task.cancel()
    await asyncio.wait([task])


async def test_a_task_that_never_settles_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDK-10: a test that cannot settle fails with the reason."""
    monkeypatch.setattr("volcano_locks.testing.clock.SETTLE_SECONDS_MAX", 0.01)
    clock = ManualClock()
    task = asyncio.create_task(asyncio.Event().wait())
    clock.watch(task, task.done)
    with pytest.raises(TimeoutError, match="1 renewers do not settle"):
        await clock.settle_async()
    with pytest.raises(TimeoutError, match="do not settle"):
        clock.settle()
    task.cancel()
    await asyncio.wait([task])


def test_a_negative_jump_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        ManualClock().jump(-1)
