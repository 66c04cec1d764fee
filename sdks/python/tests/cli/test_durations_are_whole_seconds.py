"""CLI-3: durations as people write them, and within their limits."""

from collections.abc import Callable

import pytest
from click.testing import Result

from volcano_locks.cli.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7200), ("90d", 7_776_000), ("0", 0), ("007s", 7)],
)
def test_number_and_unit(text: str, seconds: int) -> None:
    """CLI-3."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1.5m", "-5", "+5", "5 m", "1h30m", "5M", "5w", "1e3", "٣", "5\n", "9" * 13])
def test_anything_else_is_refused_with_what_came(text: str) -> None:
    """CLI-3: the sentence shows what came and what would do."""
    with pytest.raises(ValueError, match="like 30, 30s, 5m, 2h or 90d") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["5s", "90s", "5m", "2h", "90d", "0s"])
def test_text_of_a_duration_is_read_back(text: str) -> None:
    assert duration_text(parse_duration(text)) == text


@pytest.mark.parametrize("ttl", ["4s", "91d", "soon"])
def test_ttl_outside_its_limits_is_a_usage_error(invoke: Callable[..., Result], ttl: str) -> None:
    """CLI-3, CLI-4."""
    result = invoke("acquire", "k", "--ttl", ttl)
    assert result.exit_code == 64
    assert repr(ttl) in result.stderr
    assert result.stdout == ""
