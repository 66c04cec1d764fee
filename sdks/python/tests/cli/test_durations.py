"""CLI-3: durations are parsed, formatted and limited."""

from collections.abc import Callable

import pytest
from click.testing import Result

from volcano_locks.cli.durations import duration_text, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("30s", 30), ("5m", 300), ("2h", 7200), ("90d", 7_776_000), ("0", 0), ("007s", 7)],
)
def test_a_number_with_a_unit_is_parsed(text: str, seconds: int) -> None:
    """CLI-3."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "1.5m", "-5", "+5", "5 m", "1h30m", "5M", "5w", "1e3", "٣", "5\n", "9" * 13])
def test_anything_else_is_refused_with_the_value(text: str) -> None:
    """CLI-3: the message has the value and the accepted form."""
    with pytest.raises(ValueError, match="like 30, 30s, 5m, 2h or 90d") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["5s", "90s", "5m", "2h", "90d", "0s"])
def test_a_formatted_duration_parses_to_the_same(text: str) -> None:
    assert duration_text(parse_duration(text)) == text


@pytest.mark.parametrize("ttl", ["4s", "91d", "soon"])
def test_ttl_outside_its_limits_is_a_usage_error(invoke: Callable[..., Result], ttl: str) -> None:
    """CLI-3, CLI-4."""
    result = invoke("acquire", "k", "--ttl", ttl)
    assert result.exit_code == 64
    assert repr(ttl) in result.stderr
    assert result.stdout == ""
