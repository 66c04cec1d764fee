"""The fence in MySQL 8.0.21 and newer and in MariaDB, for InnoDB tables.

Each trigger first writes the fence, which waits for a transaction that is writing the same id. Then it reads the
current value with a locking read: a plain read could return the snapshot of a transaction that began earlier.

A trigger's body contains statements, so the script changes the client's DELIMITER around it.
"""

from typing import Final

from .identifiers import MYSQL
from .script import EVENTS, REFUSAL, FencedTable, FencingScript, Statement

_DELIMITER: Final = "//"
_CAUTION: Final = "The driver must count rows found, not rows changed (CLIENT_FOUND_ROWS)."


def script(table: tuple[str, ...], id_column: str, token_column: str) -> FencingScript:
    """The script for a table, named with or without its database. ValueError if a derived name is too long."""
    *database, name = table
    triggers = {event: f"{name}_fence_{event}" for event in EVENTS}
    for derived in triggers.values():
        MYSQL.check(derived)
    names = FencedTable.of(MYSQL, table, id_column, token_column)
    quoted = {event: MYSQL.quoted(*database, trigger) for event, trigger in triggers.items()}
    removal = (*(f"DROP TRIGGER {trigger}" for trigger in quoted.values()), f"DROP TABLE {names.fence}")
    return FencingScript("MySQL or MariaDB", names, _statements(names, quoted), removal, _DELIMITER, _CAUTION)


def _statements(names: FencedTable, triggers: dict[str, str]) -> tuple[Statement, ...]:
    return (
        Statement(
            "The token of the last write. Every token is higher than 0. (Omit this if the column exists.)",
            f"ALTER TABLE {names.table}\n  ADD COLUMN {names.token} BIGINT NOT NULL DEFAULT 0",
        ),
        Statement(
            "The highest token seen for each id. It outlives the row.",
            f"CREATE TABLE {names.fence} (\n  fencing_token BIGINT NOT NULL,\n  PRIMARY KEY (id)\n)"
            f" ENGINE = InnoDB AS\n  SELECT {names.id} AS id, {names.token} AS fencing_token\n"
            f"  FROM {names.table} LIMIT 0",
        ),
        *(
            Statement(
                f"Check every row that an {event.upper()} writes.",
                _trigger(names, trigger, event.upper()),
                compound=True,
            )
            for event, trigger in triggers.items()
        ),
        Statement(
            "Copy the tokens of an existing column.",
            f"INSERT INTO {names.fence} (id, fencing_token)\n  SELECT {names.id}, MAX({names.token})\n"
            f"  FROM {names.table} WHERE {names.token} > 0 GROUP BY {names.id}\n"
            f"  ON DUPLICATE KEY UPDATE\n"
            f"    fencing_token = GREATEST(\n      {names.fence}.fencing_token, VALUES(fencing_token)\n    )",
        ),
    )


def _trigger(names: FencedTable, trigger: str, event: str) -> str:
    return f"""\
CREATE TRIGGER {trigger}
AFTER {event} ON {names.table} FOR EACH ROW
BEGIN
  DECLARE highest BIGINT;
  INSERT INTO {names.fence} (id, fencing_token)
  VALUES (NEW.{names.id}, NEW.{names.token})
  ON DUPLICATE KEY UPDATE
    fencing_token = GREATEST(fencing_token, NEW.{names.token});
  SELECT fencing_token INTO highest
  FROM {names.fence} WHERE id = NEW.{names.id} FOR UPDATE;
  IF NEW.{names.token} < highest THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '{REFUSAL}';
  END IF;
END"""
