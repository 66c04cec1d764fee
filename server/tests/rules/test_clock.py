"""The system's clock: close to the wall at the start, then steady (LEASE-1)."""

import time

from volcano_locks_server.clock import SystemClock


def test_it_starts_at_the_wall() -> None:
    """LEASE-1."""
    assert abs(SystemClock().now_ms() - time.time_ns() // 1_000_000) < 2_000


def test_a_stepped_wall_moves_nothing() -> None:
    """LEASE-1, case 30: only the steady clock moves it, by as much as that one moves."""
    wall, steady = [1_800_000_000_000_000_000], [5_000_000_000]
    clock = SystemClock(wall_ns=lambda: wall[0], steady_ns=lambda: steady[0])
    assert clock.now_ms() == 1_800_000_000_000
    wall[0] -= 3_600_000_000_000
    assert clock.now_ms() == 1_800_000_000_000
    steady[0] += 1_234_567_890
    assert clock.now_ms() == 1_800_000_001_234


def test_it_never_goes_back() -> None:
    """LEASE-1."""
    clock = SystemClock()
    seen = [clock.now_ms() for _ in range(10_000)]
    assert seen == sorted(seen)
