"""The fence in SQLite, which has one writer at a time, so nothing comes between the comparison and the write.

An `OR REPLACE` or `OR IGNORE` of the statement that fires a trigger also governs the statements inside it. So these
are written such that they never conflict. The comparison has NEW's id on its left, whose collation then decides
which ids are the same, as it does in the table.
"""

from typing import Final

from .identifiers import SQLITE
from .script import REFUSAL, Fenced, Script, Step

_EVENTS: Final = ("insert", "update")


def script(table: tuple[str, ...], id_column: str, token_column: str) -> Script:
    """The script for a table named with or without its schema; ValueError when a name grows too long."""
    *schema, name = table
    triggers = {event: f"{name}_fence_{event}" for event in _EVENTS}
    for derived in triggers.values():
        SQLITE.check(derived)
    names = Fenced(
        SQLITE.quoted(*table),
        SQLITE.quoted(*schema, f"{name}_fence"),
        SQLITE.quoted(id_column),
        SQLITE.quoted(token_column),
    )
    quoted = {event: SQLITE.quoted(*schema, trigger) for event, trigger in triggers.items()}
    # Inside a trigger a table has no schema: it is looked for in the trigger's.
    inside = Fenced(SQLITE.quoted(name), SQLITE.quoted(f"{name}_fence"), names.id, names.token)
    steps = (
        Step(
            "The token of the last write. Every token is higher than 0. (Leave this out if the column is there.)",
            f"ALTER TABLE {names.table}\n  ADD COLUMN {names.token} INTEGER NOT NULL DEFAULT 0",
        ),
        Step(
            "The highest token seen for each id. It outlives the row.",
            f"CREATE TABLE {names.fence} (\n  id PRIMARY KEY NOT NULL,\n  fencing_token INTEGER NOT NULL\n)",
        ),
        *(
            Step(f"Every row that an {event.upper()} writes is judged.", _trigger(inside, trigger, event.upper()))
            for event, trigger in quoted.items()
        ),
        Step(
            "The tokens that the table has already, if the column is an old one.",
            # Qualified, because SQLite takes an unknown name in double quotes for a text.
            f"INSERT INTO {names.fence} (id, fencing_token)\n"
            f"  SELECT old.{names.id}, max(old.{names.token})\n"
            f"  FROM {names.table} AS old WHERE old.{names.token} > 0 GROUP BY old.{names.id}\n"
            f"  ON CONFLICT (id) DO UPDATE SET\n    fencing_token = max(fencing_token, excluded.fencing_token)",
        ),
    )
    removal = (*(f"DROP TRIGGER {trigger}" for trigger in quoted.values()), f"DROP TABLE {names.fence}")
    return Script("SQLite", names, steps, removal)


def _trigger(inside: Fenced, trigger: str, event: str) -> str:
    fence, new_id, new_token = inside.fence, f"NEW.{inside.id}", f"NEW.{inside.token}"
    return f"""\
CREATE TRIGGER {trigger} AFTER {event} ON {inside.table}
BEGIN
  SELECT RAISE(ABORT, 'fencing token is no integer')
  WHERE typeof({new_token}) <> 'integer';
  SELECT RAISE(ABORT, '{REFUSAL}')
  FROM {fence} AS seen
  WHERE {new_id} = seen.id AND seen.fencing_token > {new_token};
  UPDATE {fence} SET fencing_token = {new_token}
  WHERE {new_id} = id;
  INSERT INTO {fence} (id, fencing_token)
  SELECT {new_id}, {new_token}
  WHERE NOT EXISTS (
    SELECT 1 FROM {fence} AS seen WHERE {new_id} = seen.id
  );
END"""
