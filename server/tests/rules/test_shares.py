"""Shares of a budget (HTTP-32)."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcano_locks_server.rules.shares import Budget, Budgets, equal_share, share_of

PROJECTS = ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("limit", "used", "share"),
    [(100, 0, 50), (100, 50, 50), (100, 51, 25), (100, 100, 25), (1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 3, 1), (7, 3, 3)],
)
def test_a_share_is_half_or_a_quarter_and_at_least_one(limit: int, used: int, share: int) -> None:
    """HTTP-32."""
    assert share_of(limit, used) == share


@given(st.integers(1, 40), st.lists(st.tuples(st.sampled_from(PROJECTS), st.booleans()), max_size=200))
def test_no_order_of_requests_exceeds_a_share(limit: int, requests: list[tuple[str, bool]]) -> None:
    """HTTP-32: a project never has more than half; one with less than a quarter gets a place while any is left."""
    budget = Budget("some", limit)
    held: Counter[str] = Counter()
    for project_id, takes in requests:
        if not takes:
            if held[project_id]:
                budget.give_back(project_id)
                held[project_id] -= 1
            continue
        excess = budget.take(project_id)
        if excess is None:
            held[project_id] += 1
            assert held[project_id] <= max(1, limit // 2)
        elif excess == "share":
            assert held[project_id] >= max(1, limit // 4)
            assert held.total() < limit
        else:
            assert held.total() == limit
        assert (budget.used, budget.used_by(project_id)) == (held.total(), held[project_id])


@given(st.integers(4, 40), st.lists(st.sampled_from(PROJECTS), max_size=200))
def test_what_is_displaced_belongs_to_a_project_with_its_share(limit: int, arrivals: list[str]) -> None:
    """EVENT-9: entries of a project with less than its share are dropped only if no project has more."""
    budget = Budget("some", limit)
    for project_id in arrivals:
        while (displaced := budget.displaced(project_id)) is not None:
            assert budget.used_by(displaced) >= max(budget.used_by(one) for one in PROJECTS) or displaced == project_id
            assert budget.used_by(displaced) >= max(1, limit // 5)
            budget.give_back(displaced)
        budget.add(project_id)
        assert budget.used <= limit
        assert budget.used_by(project_id) <= limit // 2


def test_what_no_project_uses_has_no_share() -> None:
    """HTTP-33: the admin API uses its own budget up to the limit."""
    budget = Budget("admin_requests", 4)
    assert [budget.take(None) for _ in range(5)] == [None, None, None, None, "budget"]
    budget.give_back(None)
    assert budget.take(None) is None
    assert budget.refused == {"share": 0, "budget": 1}


def test_every_budget_has_its_name() -> None:
    """OPS-13: under which the metrics and the limits that tests set know it."""
    budgets = Budgets()
    assert [one.name for one in budgets] == list(vars(budgets))
    assert Budgets({"waiters": 3}).waiters.limit == 3


@given(st.lists(st.integers(1, 200), max_size=20), st.integers(20, 300))
def test_equal_shares_fill_the_places_and_take_only_from_those_who_have_more(counts: list[int], places: int) -> None:
    """AUDIT-5."""
    share = equal_share(counts, places)
    kept = [min(count, share) for count in counts]
    assert sum(kept) <= places
    if sum(counts) <= places:
        assert kept == counts
    else:
        assert sum(kept) > places - len(counts), "less than one place for each project is left"
