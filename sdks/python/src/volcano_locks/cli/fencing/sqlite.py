"""The fence in SQLite, whose single writer lets nothing happen between the comparison and the write.

An `OR REPLACE` or `OR IGNORE` of the statement that fires a trigger also applies to the statements in the trigger, so
those are written never to conflict. In a comparison NEW's id is on the left: its collation then decides which ids are
equal, as in the table.
"""

from .identifiers import SQLITE
from .script import EVENTS, REFUSAL, FencedTable, FencingScript, Statement


def script(table: tuple[str, ...], id_column: str, token_column: str) -> FencingScript:
    """The script for a table, named with or without its schema. ValueError if a derived name is too long."""
    *schema, name = table
    triggers = {event: f"{name}_fence_{event}" for event in EVENTS}
    for derived in triggers.values():
        SQLITE.check(derived)
    names = FencedTable.of(SQLITE, table, id_column, token_column)
    quoted = {event: SQLITE.quoted(*schema, trigger) for event, trigger in triggers.items()}
    # In a trigger a table has no schema: SQLite uses that of the trigger.
    inside = FencedTable(SQLITE.quoted(name), SQLITE.quoted(f"{name}_fence"), names.id, names.token)
    statements = (
        Statement(
            "The token of the last write. Every token is higher than 0. (Omit this if the column exists.)",
            f"ALTER TABLE {names.table}\n  ADD COLUMN {names.token} INTEGER NOT NULL DEFAULT 0",
        ),
        Statement(
            "The highest token seen for each id. It outlives the row.",
            f"CREATE TABLE {names.fence} (\n  id PRIMARY KEY NOT NULL,\n  fencing_token INTEGER NOT NULL\n)",
        ),
        *(
            Statement(f"Check every row that an {event.upper()} writes.", _trigger(inside, trigger, event.upper()))
            for event, trigger in quoted.items()
        ),
        Statement(
            "Copy the tokens of an existing column.",
            # Qualified, because SQLite treats an unknown name in double quotes as a string.
            f"INSERT INTO {names.fence} (id, fencing_token)\n"
            f"  SELECT old.{names.id}, max(old.{names.token})\n"
            f"  FROM {names.table} AS old WHERE old.{names.token} > 0 GROUP BY old.{names.id}\n"
            f"  ON CONFLICT (id) DO UPDATE SET\n    fencing_token = max(fencing_token, excluded.fencing_token)",
        ),
    )
    removal = (*(f"DROP TRIGGER {trigger}" for trigger in quoted.values()), f"DROP TABLE {names.fence}")
    return FencingScript("SQLite", names, statements, removal)


def _trigger(inside: FencedTable, trigger: str, event: str) -> str:
    fence, new_id, new_token = inside.fence, f"NEW.{inside.id}", f"NEW.{inside.token}"
    return f"""\
CREATE TRIGGER {trigger} AFTER {event} ON {inside.table}
BEGIN
  SELECT RAISE(ABORT, 'fencing token is not an integer')
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
