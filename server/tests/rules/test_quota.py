"""The fixed minute and the owners' reserve (QUOTA rules of spec/http.md)."""

from hypothesis import given
from hypothesis import strategies as st

from volcano_locks_server.rules.quota import Verdict, Window, admit, return_draw

MINUTE = 60_000
NOW = 30_000_000 * MINUTE + 12_345


def spend(window: Window, times: int, now_ms: int, limit: int, *, owner: bool = False) -> list[Verdict]:
    verdicts = []
    for _ in range(times):
        admission = admit(window, now_ms, limit=limit, may_draw_on_reserve=owner)
        verdicts.append(admission.verdict)
    return verdicts


def test_the_limit_is_exact_and_the_minute_is_fixed() -> None:
    window = Window()
    for used in range(1, 4):
        admission = admit(window, NOW, limit=3, may_draw_on_reserve=False)
        assert (admission.verdict, admission.limit, admission.remaining) == (Verdict.ADMITTED, 3, 3 - used)
    admission = admit(window, NOW, limit=3, may_draw_on_reserve=False)
    assert (admission.verdict, admission.remaining) == (Verdict.SPENT, 0)
    assert admission.reset_at_seconds == (NOW - 12_345 + MINUTE) // 1_000
    assert admission.retry_after_seconds == 48
    admission = admit(window, NOW - 12_345 + MINUTE, limit=3, may_draw_on_reserve=False)
    assert (admission.verdict, admission.remaining) == (Verdict.ADMITTED, 2)


def test_retry_after_is_at_least_a_second() -> None:
    last_ms = NOW - 12_345 + MINUTE - 1
    window = Window()
    admit(window, last_ms, limit=1, may_draw_on_reserve=False)
    assert admit(window, last_ms, limit=1, may_draw_on_reserve=False).retry_after_seconds == 1


def test_zero_is_no_quota() -> None:
    assert set(spend(Window(), 5_000, NOW, 0)) == {Verdict.ADMITTED}


def test_the_reserve_of_owners_is_as_large_as_the_quota() -> None:
    """case 7: the owner can still renew when other clients have spent the quota."""
    verdicts = spend(Window(), 9, NOW, 3, owner=True)
    assert verdicts == [Verdict.ADMITTED] * 3 + [Verdict.RESERVE] * 3 + [Verdict.SPENT] * 3


def test_a_returned_draw_can_be_used_again() -> None:
    window = Window()
    admit(window, NOW, limit=1, may_draw_on_reserve=True)
    drawn = admit(window, NOW, limit=1, may_draw_on_reserve=True)
    assert drawn.verdict is Verdict.RESERVE
    assert admit(window, NOW, limit=1, may_draw_on_reserve=True).verdict is Verdict.SPENT
    return_draw(window, drawn)
    assert admit(window, NOW, limit=1, may_draw_on_reserve=True).verdict is Verdict.RESERVE
    spend(window, 2, NOW + MINUTE, 1, owner=True)
    return_draw(window, drawn)
    assert window.reserve_used == 1, "a draw of another minute"


def test_a_clock_that_goes_back_starts_no_new_minute() -> None:
    window = Window()
    admit(window, NOW, limit=1, may_draw_on_reserve=False)
    assert admit(window, NOW - MINUTE, limit=1, may_draw_on_reserve=False).verdict is Verdict.SPENT


@given(limit=st.integers(1, 20), gaps=st.lists(st.integers(0, MINUTE), max_size=80))
def test_no_minute_serves_more_than_its_limit(limit: int, gaps: list[int]) -> None:
    window, now_ms = Window(), NOW
    served: dict[int, int] = {}
    for gap in gaps:
        now_ms += gap
        admission = admit(window, now_ms, limit=limit, may_draw_on_reserve=False)
        minute = now_ms // MINUTE
        if admission.verdict is Verdict.ADMITTED:
            served[minute] = served.get(minute, 0) + 1
        else:
            assert served[minute] == limit
        assert admission.remaining == limit - served[minute]
    assert all(count <= limit for count in served.values())
