"""`fencing sql`: the SQL with which a database itself refuses a late write (CLI-20, CLI-21). Asks no server.

Where the application forgets its own comparison once, the triggers still make it. What they cannot judge is a
statement that gives no token: docs/guide/fencing.md says which those are, and what to do about them.
"""

from collections.abc import Callable
from typing import Final

import click

from .. import output
from . import identifiers, mysql, postgresql, sqlite
from .identifiers import Naming
from .script import Script

COLUMN_DEFAULT: Final = "fencing_token"
DIALECTS: Final[dict[str, tuple[Naming, Callable[[tuple[str, ...], str, str], Script]]]] = {
    "postgresql": (identifiers.POSTGRESQL, postgresql.script),
    "mysql": (identifiers.MYSQL, mysql.script),
    "sqlite": (identifiers.SQLITE, sqlite.script),
}


@click.group(short_help="Let your database refuse late writes.")
def fencing() -> None:
    """Let your database refuse the write of a holder that is too late.

    A paused worker can go on after its lease, and write. Only the place that
    it writes to can refuse that, by the fencing token.
    """


@fencing.command(name="sql")
@click.option("--dialect", type=click.Choice(list(DIALECTS)), required=True, help="mysql serves MariaDB too.")
@click.option("--table", required=True, metavar="[SCHEMA.]TABLE", help="The table that the lock's holder writes.")
@click.option("--id", "id_column", required=True, metavar="COLUMN", help="Rows of the same value are under one lock.")
@click.option("--column", "token_column", default=COLUMN_DEFAULT, metavar="COLUMN", show_default=True, help="To add.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: each statement by itself.")
def sql(*, dialect: str, table: str, id_column: str, token_column: str, as_json: bool) -> None:
    """Print SQL that fences a table: a column, and triggers that compare.

    Run what it prints once. From then on a row is not inserted or updated
    under a lower fencing token than the highest seen for its id, whether or
    not the statement compares, and also after the row was deleted. The printed
    comments have the UPDATE that the application should use.

    Names are taken as the database has them, letter case included; one with a
    dot or a quote inside is written as in SQL, quoted. PostgreSQL tables
    without a schema are those of public.

    \b
    Examples:
      volcano-locks fencing sql --dialect sqlite --table report --id day
      volcano-locks fencing sql --dialect mysql --table report --id day
      volcano-locks fencing sql --dialect postgresql --table app.report \\
        --id day | psql -v ON_ERROR_STOP=1 --single-transaction
    """
    naming, script_of = DIALECTS[dialect]
    parts = _parsed(naming, "--table", table, parts_max=2)
    (id_name,) = _parsed(naming, "--id", id_column)
    (token_name,) = _parsed(naming, "--column", token_column)
    if id_name.casefold() == token_name.casefold():
        raise click.BadParameter("must not be the column of --id", param_hint="'--column'")
    try:
        script = script_of(parts, id_name, token_name)
    except ValueError as error:
        raise click.BadParameter(f"its fence is named after it, and {error}", param_hint="'--table'") from None
    if as_json:
        output.json_line(script.as_json(dialect))
    else:
        output.line(script.text())


def _parsed(naming: Naming, option: str, text: str, parts_max: int = 1) -> tuple[str, ...]:
    try:
        return naming.parse(text, parts_max)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None
