"""The fence in MySQL 8.0.21 and newer and in MariaDB, for InnoDB tables.

Each trigger first writes the fence, which waits for a transaction that is writing the same id, and then reads what
is there now with a locking read: a plain one would show the past of a transaction that began earlier.

A trigger's body has statements inside, so the script changes the client's DELIMITER around it.
"""

from typing import Final

from .identifiers import MYSQL
from .script import REFUSAL, Fenced, Script, Step

_DELIMITER: Final = "//"
_CAUTION: Final = "Its driver has to count rows found, not rows changed (CLIENT_FOUND_ROWS)."
_EVENTS: Final = ("insert", "update")


def script(table: tuple[str, ...], id_column: str, token_column: str) -> Script:
    """The script for a table named with or without its database; ValueError when a name grows too long."""
    *database, name = table
    triggers = {event: f"{name}_fence_{event}" for event in _EVENTS}
    for derived in triggers.values():
        MYSQL.check(derived)
    names = Fenced(
        MYSQL.quoted(*table),
        MYSQL.quoted(*database, f"{name}_fence"),
        MYSQL.quoted(id_column),
        MYSQL.quoted(token_column),
    )
    quoted = {event: MYSQL.quoted(*database, trigger) for event, trigger in triggers.items()}
    removal = (*(f"DROP TRIGGER {trigger}" for trigger in quoted.values()), f"DROP TABLE {names.fence}")
    return Script("MySQL or MariaDB", names, _steps(names, quoted), removal, _DELIMITER, _CAUTION)


def _steps(names: Fenced, triggers: dict[str, str]) -> tuple[Step, ...]:
    return (
        Step(
            "The token of the last write. Every token is higher than 0. (Leave this out if the column is there.)",
            f"ALTER TABLE {names.table}\n  ADD COLUMN {names.token} BIGINT NOT NULL DEFAULT 0",
        ),
        Step(
            "The highest token seen for each id. It outlives the row.",
            f"CREATE TABLE {names.fence} (\n  fencing_token BIGINT NOT NULL,\n  PRIMARY KEY (id)\n)"
            f" ENGINE = InnoDB AS\n  SELECT {names.id} AS id, {names.token} AS fencing_token\n"
            f"  FROM {names.table} LIMIT 0",
        ),
        *(
            Step(
                f"Every row that an {event.upper()} writes is judged.",
                _trigger(names, trigger, event.upper()),
                compound=True,
            )
            for event, trigger in triggers.items()
        ),
        Step(
            "The tokens that the table has already, if the column is an old one.",
            f"INSERT INTO {names.fence} (id, fencing_token)\n  SELECT {names.id}, MAX({names.token})\n"
            f"  FROM {names.table} WHERE {names.token} > 0 GROUP BY {names.id}\n"
            f"  ON DUPLICATE KEY UPDATE\n"
            f"    fencing_token = GREATEST(\n      {names.fence}.fencing_token, VALUES(fencing_token)\n    )",
        ),
    )


def _trigger(names: Fenced, trigger: str, event: str) -> str:
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
