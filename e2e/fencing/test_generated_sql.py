"""CLI-20: the SQL that `fencing sql` prints, run unchanged on real databases, refuses lower tokens."""

import json
from contextlib import closing

import pytest

from .databases import TABLE, Connection, Database, Mariadb, Postgresql, Sqlite, fencing_sql

UNFENCED_UPDATE = "UPDATE report SET total = :total, fencing_token = :token WHERE day = :day"
INSERT = "INSERT INTO report (day, total, writer, fencing_token) VALUES (:day, :total, 'x', :token)"
TOTALS = "SELECT total FROM report ORDER BY day, total"


def pattern(dialect: str, which: str) -> str:
    """The printed write or delete."""
    found: str = json.loads(fencing_sql(dialect, "report", "day", "--json"))[which]
    return found


@pytest.fixture
def written(fenced: Database, connection: Connection) -> Database:
    """A fenced table with a row written under token 200."""
    fenced.execute(connection, INSERT, day="monday", total=2, token=200)
    return fenced


def test_the_printed_update_refuses_a_lower_token(written: Database, connection: Connection) -> None:
    """It changes no row for a lower token. The same and a higher token can write again."""
    write = pattern(written.dialect, "write")
    taken = [
        written.execute(connection, write.replace("SET ", f"SET total = {total}, "), id="monday", fencing_token=token)
        for total, token in ((3, 200), (1, 199), (4, 201), (1, 200))
    ]
    assert taken == [1, 0, 1, 0]
    assert written.rows(connection, TOTALS) == [(4,)]


def test_a_claim_may_be_repeated(written: Database, connection: Connection) -> None:
    """The printed update alone, by a new holder that does not know whether its first try succeeded."""
    write = pattern(written.dialect, "write")
    assert [written.execute(connection, write, id="monday", fencing_token=300) for _ in range(2)] == [1, 1]
    with written.refused():
        written.execute(connection, UNFENCED_UPDATE, day="monday", total=1, token=299)


def test_a_lock_with_a_row_of_its_own_fences_every_table(database: Database, connection: Connection) -> None:
    """docs/guide/fencing.md: the claim comes first, so a late transaction fails before its DELETE."""
    database.apply(f"{TABLE}; CREATE TABLE lock_fence (lock_key varchar(128) NOT NULL PRIMARY KEY);")
    database.apply(fencing_sql(database.dialect, "lock_fence", "lock_key"))
    database.execute(connection, "INSERT INTO lock_fence (lock_key) VALUES ('daily-rollup')")
    claim = "UPDATE lock_fence SET fencing_token = :token WHERE lock_key = 'daily-rollup'"
    database.begin(connection)
    assert database.execute(connection, claim, token=200) == 1
    database.execute(connection, "INSERT INTO report (day, total) VALUES ('monday', 2)")
    database.execute(connection, "COMMIT")
    database.begin(connection)
    with database.refused():
        database.execute(connection, claim, token=199)
    database.execute(connection, "ROLLBACK")
    assert database.rows(connection, TOTALS) == [(2,)]


def test_an_update_without_the_comparison_is_refused_too(written: Database, connection: Connection) -> None:
    with written.refused():
        written.execute(connection, UNFENCED_UPDATE, day="monday", total=1, token=199)
    assert written.rows(connection, TOTALS) == [(2,)]
    written.execute(connection, UNFENCED_UPDATE, day="monday", total=3, token=201)
    assert written.rows(connection, TOTALS) == [(3,)]


def test_a_statement_that_is_too_low_for_one_row_changes_none(written: Database, connection: Connection) -> None:
    written.execute(connection, INSERT, day="tuesday", total=2, token=100)
    with written.refused():
        written.execute(connection, "UPDATE report SET total = 1, fencing_token = 150")
    assert written.rows(connection, TOTALS) == [(2,), (2,)]


def test_a_deleted_row_cannot_be_inserted_under_a_lower_token(written: Database, connection: Connection) -> None:
    written.execute(connection, "DELETE FROM report")
    with written.refused():
        written.execute(connection, INSERT, day="monday", total=1, token=199)
    with written.refused():
        written.execute(connection, "INSERT INTO report (day, total) VALUES ('monday', 1)")
    written.execute(connection, INSERT, day="monday", total=3, token=200)
    assert written.rows(connection, TOTALS) == [(3,)]


def test_upserts_and_ignored_errors_do_not_bypass_the_fence(written: Database, connection: Connection) -> None:
    """REPLACE in SQLite and MariaDB deletes and inserts; IGNORE must not ignore or lower the fence."""
    with written.refused():
        written.execute(connection, written.insert_or_replace, day="monday", total=1, token=199)
    assert written.execute(connection, written.insert_if_absent, day="monday", total=1, token=199) == 0
    assert written.rows(connection, TOTALS) == [(2,)]
    written.execute(connection, written.insert_or_replace, day="monday", total=3, token=300)
    written.execute(connection, "DELETE FROM report")
    with written.refused():
        written.execute(connection, written.insert_if_absent, day="monday", total=1, token=299)
    with written.refused():
        written.execute(connection, written.insert_or_replace, day="monday", total=1, token=299)
    written.execute(connection, written.insert_if_absent, day="monday", total=4, token=301)
    written.execute(connection, "DELETE FROM report")
    with written.refused():
        written.execute(connection, written.insert_or_replace, day="monday", total=1, token=300)
    assert written.rows(connection, TOTALS) == []


@pytest.mark.parametrize("database", ["mariadb", "sqlite"], indirect=True)
@pytest.mark.parametrize("variant", ["IGNORE", "OR IGNORE", "OR REPLACE", "OR FAIL", "OR ROLLBACK", "OR ABORT"])
def test_no_variant_of_update_bypasses_the_fence(written: Database, connection: Connection, variant: str) -> None:
    if (variant == "IGNORE") != (written.dialect == "mysql"):
        variant = ""
    forgotten = UNFENCED_UPDATE.replace("UPDATE", f"UPDATE {variant}")
    with written.refused():
        written.execute(connection, forgotten, day="monday", total=1, token=199)
    written.execute(connection, forgotten, day="monday", total=3, token=300)
    with written.refused():
        written.execute(connection, forgotten, day="monday", total=1, token=299)
    assert written.rows(connection, TOTALS) == [(3,)]


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_an_upsert_that_compares_changes_no_row_without_an_error(written: Database, connection: Connection) -> None:
    """The upsert of docs/guide/leases.md."""
    upsert = f"{INSERT} ON CONFLICT (day) DO UPDATE SET total = excluded.total, fencing_token = excluded.fencing_token"
    compares = f"{upsert} WHERE report.fencing_token <= excluded.fencing_token"
    assert written.execute(connection, compares, day="monday", total=1, token=199) == 0
    assert written.execute(connection, compares, day="monday", total=3, token=201) == 1
    assert written.rows(connection, TOTALS) == [(3,)]


@pytest.mark.parametrize("token", ["NULL", "'late'", "-1", "0"])
def test_an_invalid_token_is_refused(written: Database, connection: Connection, token: str) -> None:
    for statement in (
        f"UPDATE report SET fencing_token = {token}",
        f"INSERT INTO report VALUES ('monday', 1, 'x', {token})",
    ):
        with pytest.raises(Exception, match=r"(?i)token|integer|bigint|duplicate|unique"):
            written.execute(connection, statement)
    assert written.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_an_update_that_keeps_the_token_is_accepted(written: Database, connection: Connection) -> None:
    """A repair without a token can change a row; the fence keeps its value."""
    assert written.execute(connection, "UPDATE report SET total = 7") == 1
    with written.refused():
        written.execute(connection, UNFENCED_UPDATE, day="monday", total=1, token=199)
    assert written.rows(connection, TOTALS) == [(7,)]


def test_a_deletion_needs_its_own_comparison_or_a_claim_before_it(written: Database, connection: Connection) -> None:
    """Not enforced by the fence: a DELETE has no token that a trigger could compare."""
    delete, write = pattern(written.dialect, "delete"), pattern(written.dialect, "write")
    assert written.execute(connection, delete, id="monday", fencing_token=199) == 0
    with written.refused():
        claim = write.partition("AND")[0]
        written.execute(connection, claim, id="monday", fencing_token=199)
    assert written.execute(connection, delete, id="monday", fencing_token=200) == 1
    written.execute(connection, INSERT, day="monday", total=2, token=200)
    assert written.execute(connection, "DELETE FROM report WHERE day = 'monday'") == 1


def test_a_row_with_a_changed_id_is_compared_by_the_new_id(written: Database, connection: Connection) -> None:
    written.execute(connection, INSERT, day="tuesday", total=9, token=100)
    written.execute(connection, "DELETE FROM report WHERE day = 'monday'")
    with written.refused():
        written.execute(connection, "UPDATE report SET day = 'monday' WHERE day = 'tuesday'")
    assert written.rows(connection, TOTALS) == [(9,)]


def test_rows_of_one_lock_share_a_fence(database: Database, connection: Connection) -> None:
    """If the id names the lock and not the row, a new holder's first write fences every row with that id."""
    shared = TABLE.replace("NOT NULL PRIMARY KEY", "NOT NULL")
    database.apply(f"{shared};\n{fencing_sql(database.dialect)}")
    database.execute(connection, INSERT, day="monday", total=1, token=100)
    database.execute(connection, INSERT, day="monday", total=2, token=200)
    with database.refused():
        database.execute(connection, "UPDATE report SET total = 9, fencing_token = 100 WHERE total = 1")
    with database.refused():
        database.execute(connection, "UPDATE report SET total = 9 WHERE total = 1")
    with database.refused():
        database.execute(connection, INSERT, day="monday", total=9, token=199)
    assert database.rows(connection, TOTALS) == [(1,), (2,)]


def test_existing_tokens_count(database: Database, connection: Connection) -> None:
    """With an existing column, all printed statements but the first are run, as the comment of the first says."""
    database.apply(f"{TABLE.replace('writer', 'fencing_token bigint, writer')};")
    database.apply("INSERT INTO report (day, total, fencing_token) VALUES ('monday', 2, 200), ('tuesday', 1, NULL);")
    for statement in json.loads(fencing_sql(database.dialect, "report", "day", "--json"))["install"]:
        if not statement.startswith("ALTER TABLE") or "COLUMN IF NOT EXISTS" in statement or "PRIMARY" in statement:
            database.execute(connection, statement)
    database.execute(connection, "DELETE FROM report WHERE day = 'monday'")
    with database.refused():
        database.execute(connection, INSERT, day="monday", total=1, token=199)
    ignoring = {"mysql": "IGNORE", "sqlite": "OR IGNORE"}.get(database.dialect, "")
    with pytest.raises(Exception, match=r"(?i)null|integer|token"):
        database.execute(connection, f"UPDATE {ignoring} report SET fencing_token = NULL")


def test_the_fence_can_be_removed_and_installed_again(written: Database, connection: Connection) -> None:
    script = json.loads(fencing_sql(written.dialect, "report", "day", "--json"))
    for statement in script["remove"]:
        written.execute(connection, statement)
    written.execute(connection, UNFENCED_UPDATE, day="monday", total=1, token=199)
    for statement in script["install"][1:]:
        written.execute(connection, statement)
    with written.refused():
        written.execute(connection, UNFENCED_UPDATE, day="monday", total=1, token=198)


@pytest.mark.parametrize("name", ['a"; --', "a`; --", "it's", "$fence$", "select", "a;b//c", "a\\", "Größe.x", ":id"])
def test_any_table_name_works(database: Database, name: str) -> None:
    """CLI-21: through the database's own client, which splits the statements itself."""
    mark = "`" if database.dialect == "mysql" else '"'
    quoted = f"{mark}{name.replace(mark, mark * 2)}{mark}"
    table = f"CREATE TABLE {quoted} ({quoted} varchar(9) NOT NULL PRIMARY KEY, total bigint);\n"
    database.apply(table + fencing_sql(database.dialect, quoted, quoted))
    with closing(database.connect()) as connection:
        database.execute(connection, f"INSERT INTO {quoted} VALUES ('one', 2, 200)")
        with database.refused():
            database.execute(connection, f"UPDATE {quoted} SET total = 1, fencing_token = 199")
        assert database.rows(connection, f"SELECT total FROM {quoted}") == [(2,)]


def test_a_schema_name_is_used_in_every_statement(database: Database, connection: Connection) -> None:
    """CLI-21: it works with any search path or current database."""
    if isinstance(database, Sqlite):
        schema = "beside"
        attach = f"ATTACH '{database.file}.beside' AS beside"
        database.execute(connection, attach)
    elif isinstance(database, Mariadb):
        schema, attach = f"{database.name}_beside", ""
        database.execute(connection, f"CREATE DATABASE {schema}")
    else:
        schema, attach = "beside", ""
        database.execute(connection, "CREATE SCHEMA beside")
    database.execute(connection, TABLE.replace("report", f"{schema}.report"))
    database.apply(f"{attach};\n{fencing_sql(database.dialect, f'{schema}.report')}")
    database.execute(connection, INSERT.replace("report", f"{schema}.report"), day="monday", total=2, token=200)
    with database.refused():
        update = UNFENCED_UPDATE.replace("report", f"{schema}.report")
        database.execute(connection, update, day="monday", total=1, token=199)


def test_the_fence_compares_ids_as_the_table_does(sqlite: Sqlite) -> None:
    """SQLite with a collation. The other databases copy the column with its collation."""
    sqlite.apply(f"{TABLE.replace('PRIMARY KEY', 'COLLATE NOCASE PRIMARY KEY')};\n{fencing_sql('sqlite')}")
    with closing(sqlite.connect()) as connection:
        sqlite.execute(connection, INSERT, day="Monday", total=2, token=200)
        sqlite.execute(connection, "DELETE FROM report")
        with sqlite.refused():
            sqlite.execute(connection, INSERT, day="monday", total=1, token=199)


def test_a_writer_needs_no_rights_on_the_fence_in_postgresql_and_cannot_lower_it(postgresql: Postgresql) -> None:
    postgresql.apply(f"{TABLE};\n{fencing_sql('postgresql')}")
    postgresql.apply(f"CREATE ROLE {postgresql.name}; GRANT SELECT, INSERT, UPDATE ON report TO {postgresql.name};")
    connection = postgresql.connect()
    with connection:
        connection.execute(f"SET ROLE {postgresql.name}")
        connection.execute("CREATE TEMPORARY TABLE report_fence (id text PRIMARY KEY, fencing_token bigint)")
        connection.execute("INSERT INTO report VALUES ('monday', 2, 'x', 200)")
        with postgresql.refused():
            connection.execute("UPDATE report SET fencing_token = 199")
        with pytest.raises(Exception, match="permission denied"):
            connection.execute("UPDATE public.report_fence SET fencing_token = 0")


def test_a_writer_needs_no_rights_on_the_fence_in_mariadb_and_cannot_lower_it(mariadb: Mariadb) -> None:
    mariadb.apply(f"{TABLE};\n{fencing_sql('mysql')}")
    mariadb.apply(f"CREATE USER {mariadb.name}; GRANT SELECT, INSERT, UPDATE ON report TO {mariadb.name};")
    writer = Mariadb(mariadb.socket, mariadb.name, mariadb.name)
    with writer.connect() as connection:
        writer.execute(connection, "INSERT INTO report VALUES ('monday', 2, 'x', 200)")
        with writer.refused():
            writer.execute(connection, "UPDATE report SET fencing_token = 199")
        with pytest.raises(Exception, match="denied"):
            writer.execute(connection, "UPDATE report_fence SET fencing_token = 0")
