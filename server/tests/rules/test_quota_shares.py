"""A minute that nodes share: never more than its limit, refused at 95 % at the earliest with three nodes (QUOTA-7)."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volcano_locks_server.rules.quota import (
    SHARE_PARTS,
    Admission,
    Draw,
    Share,
    Verdict,
    admit_from,
    with_drawn,
    with_returned,
)

MINUTE = 60_000
NOW = 30_000_000 * MINUTE + 12_345
BEGAN = NOW - 12_345


class Nodes:
    """Nodes that draw on one count, each with its own idea of what is left."""

    def __init__(self, count: int) -> None:
        self.shares: list[Share | None] = [None] * count
        self.gone: Counter[int] = Counter()
        self.draws = 0

    def ask(self, node: int, limit: int, *, now_ms: int = NOW, owner: bool = False) -> Admission:
        while True:
            share, judged = admit_from(self.shares[node], now_ms, limit=limit, may_draw_on_reserve=owner)
            if isinstance(judged, Draw):
                self.draws += 1
                count = max(0, min(judged.wanted, judged.limit - self.gone[judged.started_at_ms]))
                self.gone[judged.started_at_ms] += count
                share = with_drawn(share, judged, count)
            self.shares[node] = share
            if isinstance(judged, Admission):
                return judged

    def give_back(self, node: int, admission: Admission) -> None:
        share = self.shares[node]
        assert share is not None
        self.shares[node] = with_returned(share, admission)


@settings(deadline=None)
@given(limit=st.integers(1, 2_000), seed=st.integers(0, 2**32), weights=st.tuples(*[st.integers(0, 100)] * 3))
def test_three_nodes_serve_at_most_the_limit_and_refuse_none_before_95_percent(
    limit: int, seed: int, weights: tuple[int, int, int]
) -> None:
    nodes, arrivals, served = Nodes(3), random.Random(seed), 0
    first_refused_at: int | None = None
    for node in arrivals.choices(range(3), [weight + 1 for weight in weights], k=limit + limit // 4 + 10):
        if nodes.ask(node, limit).verdict is Verdict.ADMITTED:
            served += 1
        elif first_refused_at is None:
            first_refused_at = served
    assert served <= limit
    assert first_refused_at is not None
    assert first_refused_at >= 0.95 * limit


@pytest.mark.parametrize("limit", [40, 600, 60_000])
def test_the_worst_load_costs_5_percent_and_not_more(limit: int) -> None:
    """Two nodes draw for one request each and then see no more; the third gets all the rest."""
    nodes = Nodes(3)
    served = sum(nodes.ask(node, limit).verdict is Verdict.ADMITTED for node in (0, 1, *[2] * limit))
    assert served == limit - 2 * (limit // SHARE_PARTS - 1) >= 0.95 * limit


@pytest.mark.parametrize(("limit", "draws"), [(600, SHARE_PARTS), (60_000, SHARE_PARTS), (3, 3)])
def test_draws_are_few_and_stop_once_the_limit_is_reached(limit: int, draws: int) -> None:
    nodes = Nodes(1)
    for _ in range(2 * limit):
        nodes.ask(0, limit)
    assert nodes.draws <= draws + 1


def test_an_idle_node_draws_nothing() -> None:
    nodes = Nodes(2)
    assert [nodes.ask(0, 600).verdict for _ in range(600)] == [Verdict.ADMITTED] * 600


def test_remaining_is_at_most_what_is_left_and_never_rises() -> None:
    nodes, remaining = Nodes(2), []
    for count in range(1, 101):
        remaining.append(nodes.ask(0, 100).remaining)
        assert remaining[-1] == 100 - count
    assert nodes.ask(1, 100)[:3] == (Verdict.SPENT, 100, 0)
    mixed = Nodes(3)
    for node in random.Random(7).choices(range(2), k=200):
        answer = mixed.ask(node, 100)
        left = 100 - mixed.gone[BEGAN] + sum(share.left for share in mixed.shares if share)
        assert answer.remaining >= left or answer.verdict is Verdict.SPENT


def test_unused_draws_are_lost_at_the_minutes_end() -> None:
    nodes = Nodes(1)
    nodes.ask(0, 600)
    later = nodes.ask(0, 600, now_ms=BEGAN + MINUTE)
    assert (later.verdict, later.remaining) == (Verdict.ADMITTED, 599)
    assert dict(nodes.gone) == {BEGAN: 15, BEGAN + MINUTE: 15}


def test_a_draw_that_arrives_after_its_minute_is_ignored() -> None:
    share, draw = admit_from(None, NOW, limit=600, may_draw_on_reserve=False)
    assert isinstance(draw, Draw)
    later, _ = admit_from(share, NOW + MINUTE, limit=600, may_draw_on_reserve=False)
    assert with_drawn(later, draw, 15) is later


def test_no_quota_draws_nothing() -> None:
    nodes = Nodes(1)
    assert {nodes.ask(0, 0).verdict for _ in range(100)} == {Verdict.ADMITTED}
    assert nodes.draws == 0


@settings(deadline=None)
@given(limit=st.integers(1, 500), seed=st.integers(0, 2**32))
def test_the_reserve_of_all_nodes_together_is_as_large_as_the_limit(limit: int, seed: int) -> None:
    """case 7, QUOTA-5: nodes share the reserve, too."""
    nodes, arrivals = Nodes(3), random.Random(seed)
    verdicts = Counter(nodes.ask(arrivals.randrange(3), limit, owner=True).verdict for _ in range(3 * limit))
    assert verdicts[Verdict.ADMITTED] <= limit
    assert 0.9 * limit - 2 <= verdicts[Verdict.RESERVE] <= limit
    assert nodes.gone[BEGAN] <= 2 * limit


def test_a_returned_draw_on_the_reserve_serves_the_next_owner() -> None:
    nodes = Nodes(2)
    nodes.ask(0, 1)
    drawn = nodes.ask(1, 1, owner=True)
    assert drawn.verdict is Verdict.RESERVE
    assert nodes.ask(1, 1, owner=True).verdict is Verdict.SPENT
    nodes.give_back(1, drawn)
    assert nodes.ask(1, 1, owner=True).verdict is Verdict.RESERVE
    nodes.ask(1, 1, now_ms=NOW + MINUTE)
    before = nodes.shares[1]
    nodes.give_back(1, drawn)
    assert nodes.shares[1] is before


def test_a_raised_or_lowered_limit_applies_from_the_next_request() -> None:
    """QUOTA-6."""
    nodes = Nodes(1)
    assert [nodes.ask(0, 2).verdict for _ in range(3)] == [Verdict.ADMITTED] * 2 + [Verdict.SPENT]
    assert [nodes.ask(0, 4).verdict for _ in range(3)] == [Verdict.ADMITTED] * 2 + [Verdict.SPENT]
    assert nodes.ask(0, 3)[:3] == (Verdict.SPENT, 3, 0)
    lowered = Nodes(1)
    for _ in range(5):
        lowered.ask(0, 600)
    assert lowered.ask(0, 5).verdict is Verdict.SPENT
