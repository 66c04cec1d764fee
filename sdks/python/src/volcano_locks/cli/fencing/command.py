"""`fencing sql`: prints the SQL with which a database itself refuses a late write (CLI-20, CLI-21). Contacts no
server.

The triggers compare fencing tokens even if the application once forgets to. They cannot judge a statement that has no
token: docs/guide/fencing.md lists those and what to do about them.
"""

from collections.abc import Callable
from typing import Final

import click

from .. import output
from ..group import Group
from . import identifiers, mysql, postgresql, sqlite
from .identifiers import IdentifierSyntax
from .script import FencingScript

COLUMN_DEFAULT: Final = "fencing_token"
DIALECTS: Final[dict[str, tuple[IdentifierSyntax, Callable[[tuple[str, ...], str, str], FencingScript]]]] = {
    "postgresql": (identifiers.POSTGRESQL, postgresql.script),
    "mysql": (identifiers.MYSQL, mysql.script),
    "sqlite": (identifiers.SQLITE, sqlite.script),
}


@click.group(cls=Group, short_help="Make your database refuse late writes.")
def fencing() -> None:
    """Make your database refuse the write of a holder that is too late.

    A paused worker can continue after its lease has expired, and write. Only
    the database can refuse that write, by its fencing token.
    """


@fencing.command(name="sql")
@click.option("--dialect", type=click.Choice(list(DIALECTS)), required=True, help="mysql is for MariaDB too.")
@click.option("--table", required=True, metavar="[SCHEMA.]TABLE", help="The table that the holder writes.")
@click.option("--id", "id_column", required=True, metavar="COLUMN", help="Rows with the same value share a lock.")
@click.option(
    "--column", "token_column", default=COLUMN_DEFAULT, metavar="COLUMN", show_default=True, help="The column to add."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, each statement separately.")
def sql(*, dialect: str, table: str, id_column: str, token_column: str, as_json: bool) -> None:
    """Print SQL that adds a fencing column and triggers that compare it.

    Run the printed SQL once. From then on the database refuses to insert or
    update a row under a lower fencing token than the highest seen for its id,
    even if the statement does not compare tokens or the row was deleted. The
    printed comments have the UPDATE for your application.

    Names are taken literally, including letter case. If a name contains a dot or
    a quote, quote it as in SQL. A PostgreSQL table without a schema is in public.

    \b
    Examples:
      volcano-locks fencing sql --dialect sqlite --table report --id day
      volcano-locks fencing sql --dialect mysql --table report --id day
      volcano-locks fencing sql --dialect postgresql --table app.report \\
        --id day | psql -v ON_ERROR_STOP=1 --single-transaction
    """
    syntax, script_of = DIALECTS[dialect]
    parts = _parsed(syntax, "--table", table, parts_max=2)
    (id_name,) = _parsed(syntax, "--id", id_column)
    (token_name,) = _parsed(syntax, "--column", token_column)
    if id_name.casefold() == token_name.casefold():
        raise click.BadParameter("must not be the column of --id", param_hint="'--column'")
    try:
        script = script_of(parts, id_name, token_name)
    except ValueError as error:
        raise click.BadParameter(f"the fence is named after the table, and {error}", param_hint="'--table'") from None
    if as_json:
        output.print_json(script.as_json(dialect))
    else:
        output.print_text(script.text())


def _parsed(syntax: IdentifierSyntax, option: str, text: str, parts_max: int = 1) -> tuple[str, ...]:
    try:
        return syntax.parse(text, parts_max)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=f"'{option}'") from None
