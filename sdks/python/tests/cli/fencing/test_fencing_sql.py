"""CLI-20, CLI-21: what `fencing sql` prints, and which names it accepts. e2e/fencing tests what the SQL does."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from volcano_locks.cli.app import app
from volcano_locks.cli.fencing.identifiers import MYSQL, POSTGRESQL, SQLITE, IdentifierSyntax

DIALECTS = ("postgresql", "mysql", "sqlite")
HOSTILE = ['a"; DROP TABLE x; --', "a`; DROP TABLE x; --", "a'b", "$fence$", "select", "Größe", "a b", "a\\"]

Sql = Callable[..., Result]


@pytest.fixture
def sql() -> Sql:
    """`fencing sql` in an environment without a server and a key."""

    def run(*arguments: str) -> Result:
        return CliRunner(env={"VOLCANO_API_URL": None, "VOLCANO_SERVICE_KEY": None}).invoke(
            app, ["fencing", "sql", *arguments]
        )

    return run


@pytest.mark.parametrize("dialect", DIALECTS)
def test_output_is_sql_within_80_columns(sql: Sql, dialect: str) -> None:
    """CLI-1, CLI-20: text for people is in comments, and stderr is empty."""
    printed = sql("--dialect", dialect, "--table", "report", "--id", "day")
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert max(map(len, printed.stdout.splitlines())) <= 80
    assert all(line.startswith("-- ") for line in printed.stdout.splitlines() if line.startswith("--"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_json_has_the_same_statements(sql: Sql, dialect: str) -> None:
    """CLI-21."""
    arguments = ("--dialect", dialect, "--table", "app.report", "--id", "day", "--column", "token")
    text = sql(*arguments).stdout
    script = json.loads(sql(*arguments, "--json").stdout)
    assert script["dialect"] == dialect
    assert script["install"]
    for statement in script["install"]:
        assert statement in text
    for pattern in (script["write"], script["delete"], *script["remove"]):
        assert "\n".join(f"--   {line}" for line in f"{pattern};".splitlines()) in text


@pytest.mark.parametrize(
    ("syntax", "text", "parts"),
    [
        (POSTGRESQL, "report", ("report",)),
        (POSTGRESQL, "app.Report", ("app", "Report")),
        (POSTGRESQL, '"a.b"."c ""d"""', ("a.b", 'c "d"')),
        (POSTGRESQL, "a`b", ("a`b",)),
        (MYSQL, "`a.b`.`c``d`", ("a.b", "c`d")),
        (MYSQL, 'a"b', ('a"b',)),
        (SQLITE, 'aux."order"', ("aux", "order")),
    ],
)
def test_names_are_parsed_as_in_sql(syntax: IdentifierSyntax, text: str, parts: tuple[str, ...]) -> None:
    """CLI-21."""
    assert syntax.parse(text, parts_max=2) == parts
    assert syntax.parse(syntax.quoted(*parts), parts_max=2) == parts


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("option", "name"),
    [
        *[("--table", name) for name in ("", ".", "a.", ".a", "a..b", "a.b.c", "a\nb", "a\x00b", "a\u2028b", "\udc80")],
        *[("--id", name) for name in ("", "a.b", "a\n-- b", "\t")],
        *[("--column", name) for name in ("", "a.b", "a\rb", "DAY")],
    ],
)
def test_an_invalid_name_is_refused_and_names_the_option(sql: Sql, dialect: str, option: str, name: str) -> None:
    """CLI-21: nothing is printed that could be run."""
    names = {"--table": "report", "--id": "day", option: name}
    refused = sql("--dialect", dialect, *(word for pair in names.items() for word in pair))
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert f"'{option}'" in refused.stderr


@pytest.mark.parametrize(
    ("dialect", "name"), [("postgresql", '"a'), ("postgresql", 'a"b'), ("sqlite", '""'), ("mysql", "`a`b")]
)
def test_half_quoted_names_are_refused(sql: Sql, dialect: str, name: str) -> None:
    """CLI-21."""
    refused = sql("--dialect", dialect, "--table", name, "--id", "day")
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert "is not a name" in refused.stderr


@pytest.mark.parametrize(("dialect", "longest"), [("postgresql", 57), ("mysql", 51), ("sqlite", 242)])
def test_a_table_whose_fence_name_would_be_truncated_is_refused(sql: Sql, dialect: str, longest: int) -> None:
    """CLI-21: PostgreSQL would truncate it silently, and two tables could share a fence."""
    assert sql("--dialect", dialect, "--table", "t" * longest, "--id", "day").exit_code == 0
    refused = sql("--dialect", dialect, "--table", "t" * (longest + 1), "--id", "day")
    assert (refused.exit_code, refused.stdout) == (64, "")
    assert "'--table'" in refused.stderr
    assert "fence" in refused.stderr


def test_postgresql_counts_bytes(sql: Sql) -> None:
    """CLI-21."""
    assert sql("--dialect", "postgresql", "--table", "t", "--id", "ü" * 31).exit_code == 0
    refused = sql("--dialect", "postgresql", "--table", "t", "--id", "ü" * 32)
    assert (refused.exit_code, "63 bytes" in refused.stderr, "64" in refused.stderr) == (64, True, True)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_is_executed_as_sql(sql: Sql, name: str) -> None:
    """CLI-21: a table and columns with that name are fenced, and nothing else happens."""
    quoted = SQLITE.quoted(name)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute("CREATE TABLE x (y)")
        database.execute(f"CREATE TABLE {quoted} ({quoted} TEXT PRIMARY KEY, total INTEGER)")
        database.executescript(sql("--dialect", "sqlite", "--table", quoted, "--id", quoted).stdout)
        database.execute(f"INSERT INTO {quoted} VALUES ('one', 1, 200)")
        with pytest.raises(sqlite3.IntegrityError, match="fencing token too low"):
            database.execute(f"UPDATE {quoted} SET total = 2, fencing_token = 100")
        assert database.execute("SELECT count(*) FROM x").fetchone() == (0,)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_cannot_end_the_function_body(sql: Sql, name: str) -> None:
    """CLI-21: the dollar-quote tag does not occur in the body."""
    script = json.loads(
        sql("--dialect", "postgresql", "--table", POSTGRESQL.quoted(name), "--id", "day", "--json").stdout
    )
    (function,) = (statement for statement in script["install"] if statement.startswith("CREATE FUNCTION"))
    tag = function[function.rindex("$", 0, -1) :]
    assert function.count(tag) == 2


def test_help_fits_80_columns_and_has_an_example(sql: Sql) -> None:
    """80 columns, and an example."""
    text = sql("--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "\n    volcano-locks fencing sql " in text


def test_an_unknown_dialect_is_refused_with_the_known_ones(sql: Sql) -> None:
    """CLI-4."""
    refused = sql("--dialect", "oracle", "--table", "t", "--id", "day")
    assert refused.exit_code == 64
    assert all(dialect in refused.stderr for dialect in ("oracle", *DIALECTS))


def test_the_commands_of_the_guide_run(sql: Sql) -> None:
    """docs/guide/fencing.md: one per dialect, piped to the database's client."""
    guide = (Path(__file__).parents[5] / "docs/guide/fencing.md").read_text()
    commands = re.findall(r"^volcano-locks fencing sql ([^|\n]+) \| (?:psql|mariadb|sqlite3) ", guide, re.MULTILINE)
    assert [command.split()[1] for command in commands] == list(DIALECTS)
    assert [sql(*command.split()).exit_code for command in commands] == [0, 0, 0]
