"""What `fencing sql` prints: statements that are run once, and patterns for the application's own statements.

The statements put a fence beside the table: a second table with the highest token seen for each id, and triggers
that compare every inserted or updated row with it. The fence is a table of its own because a row that is deleted
takes its column along, and a late holder could put it back under its old token. The triggers run after the row
was written, so they see what is really stored, and an upsert whose own condition is false stays a quiet "no row".

In patterns, `:id` and `:fencing_token` stand for values that the application binds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent, wrap
from typing import Final

REFUSAL: Final = "fencing token too low"
WIDTH: Final = 80


@dataclass(frozen=True, slots=True)
class Fenced:
    """The names of one fenced table, all quoted: `table` and `fence` with their schema where one is given."""

    table: str
    fence: str
    id: str
    token: str

    @property
    def write(self) -> str:
        """The pattern of a write, which alone is also how a new holder claims a row."""
        return (
            f"UPDATE {self.table}\nSET {self.token} = :fencing_token\n"
            f"WHERE {self.id} = :id AND {self.token} <= :fencing_token"
        )

    @property
    def delete(self) -> str:
        """The pattern of a deletion."""
        return f"DELETE FROM {self.table}\nWHERE {self.id} = :id AND {self.token} <= :fencing_token"


@dataclass(frozen=True, slots=True)
class Step:
    """A statement, and why it is there. A `compound` one has statements inside."""

    why: str
    sql: str
    compound: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """Everything about one table in one dialect. `database` is the dialect's name for people, `caution` what its
    applications have to know beside the patterns."""

    database: str
    fenced: Fenced
    steps: Sequence[Step]
    removal: Sequence[str]
    delimiter: str | None = None
    caution: str = ""

    def text(self) -> str:
        """SQL that the database's command line client runs as it is; the patterns are comments in it."""
        blocks = [
            _comment(
                f"Fencing for {self.fenced.table} in {self.database}: a row is not written under a lower fencing "
                f"token than the highest seen for its {self.fenced.id}. Run this once, as the table's owner."
            ),
            *(_block(step, self.delimiter) for step in self.steps),
            "\n".join(
                (
                    _comment(
                        "The application binds :id and :fencing_token, and adds to SET what else it writes. If no row "
                        "changes, it was overtaken (or the row is not there), and stops. A new holder does this first. "
                        + self.caution
                    ),
                    _quoted(self.fenced.write),
                    _comment("And where it deletes:"),
                    _quoted(self.fenced.delete),
                )
            ),
            "\n".join((_comment("To take the fence away:"), *(_quoted(sql) for sql in self.removal))),
        ]
        return "\n\n".join(blocks)

    def as_json(self, dialect: str) -> dict[str, object]:
        """The same for a program that sends each statement by itself."""
        return {
            "dialect": dialect,
            "install": [step.sql for step in self.steps],
            "write": self.fenced.write,
            "delete": self.fenced.delete,
            "remove": list(self.removal),
        }


def _block(step: Step, delimiter: str | None) -> str:
    if step.compound and delimiter is not None:
        return f"{_comment(step.why)}\nDELIMITER {delimiter}\n{step.sql}{delimiter}\nDELIMITER ;"
    return f"{_comment(step.why)}\n{step.sql};"


def _comment(text: str) -> str:
    return "\n".join(f"-- {line}" for line in wrap(text, WIDTH - 3, break_long_words=False, break_on_hyphens=False))


def _quoted(sql: str) -> str:
    return indent(f"{sql};", "--   ")
