"""The fence in PostgreSQL 11 and newer.

One statement compares and stores the token. It waits for a transaction that is writing the same id, then compares with
the committed value; under REPEATABLE READ and SERIALIZABLE the database aborts the later transaction instead.

The function runs with its owner's rights, so that the application needs no rights on the fence table and cannot lower a
token. Such a function must not depend on the search path: every name in it has its schema, which defaults to `public`.
"""

from typing import Final

from .identifiers import POSTGRESQL
from .script import REFUSAL, FencedTable, FencingScript, Statement

_SCHEMA_DEFAULT: Final = "public"
_TRIGGER: Final = "volcano_fence"


def script(table: tuple[str, ...], id_column: str, token_column: str) -> FencingScript:
    """The script for a table, named with or without its schema. ValueError if a derived name is too long."""
    full_name = table if len(table) == 2 else (_SCHEMA_DEFAULT, *table)
    names = FencedTable.of(POSTGRESQL, full_name, id_column, token_column)
    trigger = POSTGRESQL.quoted(_TRIGGER)
    return FencingScript(
        "PostgreSQL",
        names,
        _statements(names, trigger),
        (f"DROP TRIGGER {trigger} ON {names.table}", f"DROP FUNCTION {names.fence}()", f"DROP TABLE {names.fence}"),
    )


def _statements(names: FencedTable, trigger: str) -> tuple[Statement, ...]:
    return (
        Statement(
            "The token of the last write. Every token is higher than 0.",
            f"ALTER TABLE {names.table}\n  ADD COLUMN IF NOT EXISTS {names.token} bigint NOT NULL DEFAULT 0",
        ),
        Statement(
            "The highest token seen for each id. It outlives the row.",
            f"CREATE TABLE {names.fence} AS\n  SELECT {names.id} AS id, {names.token} AS fencing_token\n"
            f"  FROM {names.table} WITH NO DATA",
        ),
        Statement(
            "One entry per id, each with a token.",
            f"ALTER TABLE {names.fence}\n  ADD PRIMARY KEY (id),\n  ALTER COLUMN fencing_token SET NOT NULL",
        ),
        Statement(
            "Stores a token that is not lower, and refuses any other.",
            _function(names),
        ),
        Statement("Only the triggers call it.", f"REVOKE ALL ON FUNCTION {names.fence}() FROM PUBLIC"),
        Statement(
            "Check every inserted or updated row.",
            f"CREATE TRIGGER {trigger}\n  AFTER INSERT OR UPDATE ON {names.table}\n"
            f"  FOR EACH ROW EXECUTE FUNCTION {names.fence}()",
        ),
        Statement(
            "Copy the tokens of an existing column.",
            f"INSERT INTO {names.fence} AS seen (id, fencing_token)\n  SELECT {names.id}, max({names.token})\n"
            f"  FROM {names.table} WHERE {names.token} > 0 GROUP BY {names.id}\n"
            f"  ON CONFLICT (id) DO UPDATE SET\n"
            f"    fencing_token = greatest(seen.fencing_token, EXCLUDED.fencing_token)",
        ),
    )


def _function(names: FencedTable) -> str:
    body = f"""
BEGIN
  INSERT INTO {names.fence} AS seen (id, fencing_token)
  VALUES (NEW.{names.id}, NEW.{names.token})
  ON CONFLICT (id) DO UPDATE SET fencing_token = EXCLUDED.fencing_token
  WHERE seen.fencing_token <= EXCLUDED.fencing_token;
  IF NOT FOUND THEN
    RAISE EXCEPTION '{REFUSAL}: %', NEW.{names.token}
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NULL;
END
"""
    tag = "$fence$"
    while tag in body:  # a name may contain anything
        tag = f"{tag[:-1]}_$"
    return (
        f"CREATE FUNCTION {names.fence}() RETURNS trigger\n"
        f"LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp\nAS {tag}{body}{tag}"
    )
