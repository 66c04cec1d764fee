"""A node recognises a jump of the store's clock by its own clock, whatever its requests take (LEASE-17)."""

from hypothesis import given
from hypothesis import strategies as st

from volcano_locks_server.rules.clock_history import JUMP_MS_MIN, NO_HISTORY
from volcano_locks_server.stores.clock_comparison import DRIFT_SHARE, ClockComparison
from volcano_locks_server.testing import START_MS, ManualClock

latencies_ms = st.integers(0, 4_000)
pauses_ms = st.sampled_from([0, 10, 1_000, 60_000, 86_400_000])
steps_ms = st.sampled_from([0, 0, 0, JUMP_MS_MIN - 1, 5_000, 60_000, 3_600_000])


class Reading:
    """A store's clock that is read with latency; `error_ms` is how far it is ahead of real time."""

    def __init__(self) -> None:
        self.node = ManualClock()
        self.comparison = ClockComparison(self.node)
        self.history = NO_HISTORY
        self.error_ms = 0

    @property
    def store_ms(self) -> int:
        return self.node.now_ms() + self.error_ms

    def read(self, there_ms: int, back_ms: int) -> int:
        asked_ms = self.comparison.asked_ms()
        self.node.advance(there_ms)
        store_ms = self.store_ms
        self.node.advance(back_ms)
        jump_ms = self.comparison.jump_ms(store_ms, self.history, asked_ms)
        self.history = self.history.after_jump(store_ms, jump_ms)
        return jump_ms


@given(st.lists(st.tuples(pauses_ms, latencies_ms, latencies_ms), min_size=1))
def test_a_clock_without_jumps_is_never_blamed(readings: list[tuple[int, int, int]]) -> None:
    """LEASE-17: neither for slow requests nor for long pauses."""
    world = Reading()
    for pause_ms, there_ms, back_ms in readings:
        world.node.advance(pause_ms)
        assert world.read(there_ms, back_ms) == 0


@given(st.lists(st.tuples(st.sampled_from([0, 10, 1_000]), steps_ms, latencies_ms, latencies_ms), min_size=1))
def test_no_more_than_the_grace_passes_unnoticed(readings: list[tuple[int, int, int, int]]) -> None:
    """LEASE-17: when a decision is made, its instant is ahead of real time by a short jump and the drift at most."""
    world = Reading()
    began_ms = world.node.now_ms()
    assert world.read(0, 0) == 0
    for pause_ms, step_ms, there_ms, back_ms in readings:
        world.node.advance(pause_ms)
        world.error_ms += step_ms
        world.read(there_ms, back_ms)
        drift_ms = (world.node.now_ms() - began_ms) / DRIFT_SHARE
        assert world.error_ms - world.history.jumps_ms - back_ms < JUMP_MS_MIN + drift_ms


def test_a_jump_that_another_node_recorded_is_not_counted_twice() -> None:
    """LEASE-17: two nodes see the same step."""
    one, other = Reading(), Reading()
    for world in (one, other):
        world.read(0, 5)
        world.error_ms += 60_000
    assert 60_000 - 10 <= one.read(0, 5) <= 60_000
    other.history = one.history
    assert other.read(0, 5) == 0


def test_a_jump_is_found_again_until_it_is_recorded() -> None:
    """LEASE-17: the store may fail when the jump is written."""
    world = Reading()
    world.read(0, 0)
    world.node.jump(60_000)
    for _ in range(2):
        asked_ms = world.comparison.asked_ms()
        assert world.comparison.jump_ms(world.store_ms, NO_HISTORY, asked_ms) == 60_000


def test_a_clock_that_drifts_is_tolerated() -> None:
    """LEASE-17: a two-thousandth, for a month, read every ten seconds."""
    comparison, node = ClockComparison(clock := ManualClock()), clock
    store_ms = float(START_MS)
    for _ in range(30 * 8_640):
        node.advance(10_000)
        store_ms += 10_000 * (1 + 1 / 2_000)
        assert comparison.jump_ms(int(store_ms), NO_HISTORY, comparison.asked_ms()) == 0
