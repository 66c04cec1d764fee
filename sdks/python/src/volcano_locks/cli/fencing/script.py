"""What `fencing sql` prints: statements to run once, and patterns for the application's statements.

The statements create a fence: a second table with the highest token seen for each id, and triggers that compare every
inserted or updated row with it. It is a separate table because deleting a row also deletes its token, and a late
holder could insert the row again under its old token. The triggers run after the row was written, so they see the
stored values, and an upsert whose own condition is false writes no row, without an error.

In patterns, `:id` and `:fencing_token` are values that the application binds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent, wrap
from typing import Final, Self

from .identifiers import IdentifierSyntax

REFUSAL: Final = "fencing token too low"
EVENTS: Final = ("insert", "update")
WIDTH: Final = 80


@dataclass(frozen=True, slots=True)
class FencedTable:
    """The quoted names of one fenced table; `table` and `fence` include the schema if one is given."""

    table: str
    fence: str
    id: str
    token: str

    @classmethod
    def of(cls, syntax: IdentifierSyntax, table: Sequence[str], id_column: str, token_column: str) -> Self:
        """The names of a table, given with or without its schema. ValueError if the fence's name is too long."""
        *schema, name = table
        fence = f"{name}_fence"
        syntax.check(fence)
        return cls(
            syntax.quoted(*table), syntax.quoted(*schema, fence), syntax.quoted(id_column), syntax.quoted(token_column)
        )

    @property
    def write(self) -> str:
        """The pattern of a write. Alone, it is also how a new holder claims a row."""
        return (
            f"UPDATE {self.table}\nSET {self.token} = :fencing_token\n"
            f"WHERE {self.id} = :id AND {self.token} <= :fencing_token"
        )

    @property
    def delete(self) -> str:
        """The pattern of a deletion."""
        return f"DELETE FROM {self.table}\nWHERE {self.id} = :id AND {self.token} <= :fencing_token"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and its purpose. A `compound` one contains statements."""

    why: str
    sql: str
    compound: bool = False


@dataclass(frozen=True, slots=True)
class FencingScript:
    """Everything about one table in one dialect. `database` is the dialect's name for people; `caution` is what its
    applications must know besides the patterns."""

    database: str
    fenced: FencedTable
    statements: Sequence[Statement]
    removal: Sequence[str]
    delimiter: str | None = None
    caution: str = ""

    def text(self) -> str:
        """SQL that the database's command-line client runs unchanged, with the patterns as comments."""
        blocks = [
            _comment(
                f"Fencing for {self.fenced.table} in {self.database}: a write under a lower fencing token than the "
                f"highest seen for its {self.fenced.id} is refused. Run this once, as the table's owner."
            ),
            *(_block(statement, self.delimiter) for statement in self.statements),
            "\n".join(
                (
                    _comment(
                        "The application binds :id and :fencing_token, and adds its own columns to SET. If no row "
                        "changes, a newer holder has written (or the row is missing): stop. A new holder runs this "
                        "first. " + self.caution
                    ),
                    _quoted(self.fenced.write),
                    _comment("To delete a row:"),
                    _quoted(self.fenced.delete),
                )
            ),
            "\n".join((_comment("To remove the fence:"), *(_quoted(sql) for sql in self.removal))),
        ]
        return "\n\n".join(blocks)

    def as_json(self, dialect: str) -> dict[str, object]:
        """The same for a program that runs each statement separately."""
        return {
            "dialect": dialect,
            "install": [statement.sql for statement in self.statements],
            "write": self.fenced.write,
            "delete": self.fenced.delete,
            "remove": list(self.removal),
        }


def _block(statement: Statement, delimiter: str | None) -> str:
    if statement.compound and delimiter is not None:
        return f"{_comment(statement.why)}\nDELIMITER {delimiter}\n{statement.sql}{delimiter}\nDELIMITER ;"
    return f"{_comment(statement.why)}\n{statement.sql};"


def _comment(text: str) -> str:
    return "\n".join(f"-- {line}" for line in wrap(text, WIDTH - 3, break_long_words=False, break_on_hyphens=False))


def _quoted(sql: str) -> str:
    return indent(f"{sql};", "--   ")
