"""CLI-20: what `fencing sql` prints, run as printed on real databases, lets no lower token in."""

import json
from contextlib import closing

import pytest

from .databases import TABLE, Connection, Database, Mariadb, Postgresql, Sqlite, fencing_sql

FORGOTTEN = "UPDATE report SET total = :total, fencing_token = :token WHERE day = :day"
INSERT = "INSERT INTO report (day, total, writer, fencing_token) VALUES (:day, :total, 'x', :token)"
TOTALS = "SELECT total FROM report ORDER BY day, total"


def pattern(dialect: str, which: str) -> str:
    """The printed write or delete."""
    found: str = json.loads(fencing_sql(dialect, "report", "day", "--json"))[which]
    return found


@pytest.fixture
def written(fenced: Database, connection: Connection) -> Database:
    """With a row that token 200 has written."""
    fenced.execute(connection, INSERT, day="monday", total=2, token=200)
    return fenced


def test_the_printed_update_takes_no_lower_token(written: Database, connection: Connection) -> None:
    """It says so by changing no row; the same token may write again, and a higher one may."""
    write = pattern(written.dialect, "write")
    taken = [
        written.execute(connection, write.replace("SET ", f"SET total = {total}, "), id="monday", fencing_token=token)
        for total, token in ((3, 200), (1, 199), (4, 201), (1, 200))
    ]
    assert taken == [1, 0, 1, 0]
    assert written.rows(connection, TOTALS) == [(4,)]


def test_a_claim_may_be_repeated(written: Database, connection: Connection) -> None:
    """The printed update alone, by the new holder, who may not know whether its first try arrived."""
    write = pattern(written.dialect, "write")
    assert [written.execute(connection, write, id="monday", fencing_token=300) for _ in range(2)] == [1, 1]
    with written.refused():
        written.execute(connection, FORGOTTEN, day="monday", total=1, token=299)


def test_a_lock_with_a_row_of_its_own_fences_every_table(database: Database, connection: Connection) -> None:
    """docs/guide/fencing.md: the claim comes first, so a late transaction does not come to its DELETE."""
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


def test_a_forgotten_where_does_not_undo_it(written: Database, connection: Connection) -> None:
    with written.refused():
        written.execute(connection, FORGOTTEN, day="monday", total=1, token=199)
    assert written.rows(connection, TOTALS) == [(2,)]
    written.execute(connection, FORGOTTEN, day="monday", total=3, token=201)
    assert written.rows(connection, TOTALS) == [(3,)]


def test_a_statement_with_one_low_row_changes_none(written: Database, connection: Connection) -> None:
    written.execute(connection, INSERT, day="tuesday", total=2, token=100)
    with written.refused():
        written.execute(connection, "UPDATE report SET total = 1, fencing_token = 150")
    assert written.rows(connection, TOTALS) == [(2,), (2,)]


def test_a_row_that_was_deleted_does_not_come_back_under_a_lower_token(
    written: Database, connection: Connection
) -> None:
    written.execute(connection, "DELETE FROM report")
    with written.refused():
        written.execute(connection, INSERT, day="monday", total=1, token=199)
    with written.refused():
        written.execute(connection, "INSERT INTO report (day, total) VALUES ('monday', 1)")
    written.execute(connection, INSERT, day="monday", total=3, token=200)
    assert written.rows(connection, TOTALS) == [(3,)]


def test_neither_upserts_nor_ways_to_ignore_errors_get_past_it(written: Database, connection: Connection) -> None:
    """REPLACE in SQLite and MariaDB is a deletion and an insertion; IGNORE must not ignore the fence, nor lower it."""
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
@pytest.mark.parametrize("manner", ["IGNORE", "OR IGNORE", "OR REPLACE", "OR FAIL", "OR ROLLBACK", "OR ABORT"])
def test_no_manner_of_update_gets_past_it(written: Database, connection: Connection, manner: str) -> None:
    if (manner == "IGNORE") != (written.dialect == "mysql"):
        manner = ""
    forgotten = FORGOTTEN.replace("UPDATE", f"UPDATE {manner}")
    with written.refused():
        written.execute(connection, forgotten, day="monday", total=1, token=199)
    written.execute(connection, forgotten, day="monday", total=3, token=300)
    with written.refused():
        written.execute(connection, forgotten, day="monday", total=1, token=299)
    assert written.rows(connection, TOTALS) == [(3,)]


@pytest.mark.parametrize("database", ["postgresql", "sqlite"], indirect=True)
def test_an_upsert_that_compares_stays_quiet(written: Database, connection: Connection) -> None:
    """The one of docs/guide/leases.md: no row changes, and it is no error."""
    upsert = f"{INSERT} ON CONFLICT (day) DO UPDATE SET total = excluded.total, fencing_token = excluded.fencing_token"
    compares = f"{upsert} WHERE report.fencing_token <= excluded.fencing_token"
    assert written.execute(connection, compares, day="monday", total=1, token=199) == 0
    assert written.execute(connection, compares, day="monday", total=3, token=201) == 1
    assert written.rows(connection, TOTALS) == [(3,)]


@pytest.mark.parametrize("token", ["NULL", "'late'", "-1", "0"])
def test_what_is_no_token_is_refused(written: Database, connection: Connection, token: str) -> None:
    for statement in (
        f"UPDATE report SET fencing_token = {token}",
        f"INSERT INTO report VALUES ('monday', 1, 'x', {token})",
    ):
        with pytest.raises(Exception, match=r"(?i)token|integer|bigint|duplicate|unique"):
            written.execute(connection, statement)
    assert written.rows(connection, "SELECT total, fencing_token FROM report") == [(2, 200)]


def test_an_update_that_leaves_the_token_alone_writes_under_the_rows(written: Database, connection: Connection) -> None:
    """Who knows no token may mend a row; the fence stays where it is."""
    assert written.execute(connection, "UPDATE report SET total = 7") == 1
    with written.refused():
        written.execute(connection, FORGOTTEN, day="monday", total=1, token=199)
    assert written.rows(connection, TOTALS) == [(7,)]


def test_a_deletion_is_judged_by_its_own_comparison_or_by_a_claim_before_it(
    written: Database, connection: Connection
) -> None:
    """What is not held: a DELETE gives no token that a trigger could judge."""
    delete, write = pattern(written.dialect, "delete"), pattern(written.dialect, "write")
    assert written.execute(connection, delete, id="monday", fencing_token=199) == 0
    with written.refused():
        claim = write.partition("AND")[0]
        written.execute(connection, claim, id="monday", fencing_token=199)
    assert written.execute(connection, delete, id="monday", fencing_token=200) == 1
    written.execute(connection, INSERT, day="monday", total=2, token=200)
    assert written.execute(connection, "DELETE FROM report WHERE day = 'monday'") == 1


def test_a_row_that_takes_another_id_is_judged_as_that_one(written: Database, connection: Connection) -> None:
    written.execute(connection, INSERT, day="tuesday", total=9, token=100)
    written.execute(connection, "DELETE FROM report WHERE day = 'monday'")
    with written.refused():
        written.execute(connection, "UPDATE report SET day = 'monday' WHERE day = 'tuesday'")
    assert written.rows(connection, TOTALS) == [(9,)]


def test_rows_of_one_lock_share_a_fence(database: Database, connection: Connection) -> None:
    """Where the id names the lock and not the row, the new holder's first write fences every row of it."""
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


def test_tokens_that_are_there_already_count(database: Database, connection: Connection) -> None:
    """An old column: the printed statements but the first, as its comment says."""
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


def test_the_fence_can_be_taken_away_and_put_up_again(written: Database, connection: Connection) -> None:
    script = json.loads(fencing_sql(written.dialect, "report", "day", "--json"))
    for statement in script["remove"]:
        written.execute(connection, statement)
    written.execute(connection, FORGOTTEN, day="monday", total=1, token=199)
    for statement in script["install"][1:]:
        written.execute(connection, statement)
    with written.refused():
        written.execute(connection, FORGOTTEN, day="monday", total=1, token=198)


@pytest.mark.parametrize("name", ['a"; --', "a`; --", "it's", "$fence$", "select", "a;b//c", "a\\", "Größe.x", ":id"])
def test_any_name_is_fenced(database: Database, name: str) -> None:
    """CLI-21: by the database's own client, which looks for the ends of statements itself."""
    mark = "`" if database.dialect == "mysql" else '"'
    quoted = f"{mark}{name.replace(mark, mark * 2)}{mark}"
    table = f"CREATE TABLE {quoted} ({quoted} varchar(9) NOT NULL PRIMARY KEY, total bigint);\n"
    database.apply(table + fencing_sql(database.dialect, quoted, quoted))
    with closing(database.connect()) as connection:
        database.execute(connection, f"INSERT INTO {quoted} VALUES ('one', 2, 200)")
        with database.refused():
            database.execute(connection, f"UPDATE {quoted} SET total = 1, fencing_token = 199")
        assert database.rows(connection, f"SELECT total FROM {quoted}") == [(2,)]


def test_a_schema_is_kept_everywhere(database: Database, connection: Connection) -> None:
    """CLI-21: whatever the search path or the current database is."""
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
        database.execute(connection, FORGOTTEN.replace("report", f"{schema}.report"), day="monday", total=1, token=199)


def test_ids_that_are_the_same_in_the_table_are_the_same_in_the_fence(sqlite: Sqlite) -> None:
    """A collation decides that. The other databases copy the column, and its collation with it."""
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
