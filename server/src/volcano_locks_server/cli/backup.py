"""`volcano-locks backup`: a SQLite store in one file, from its server while that runs, or from its file (KEEP-9).

The file appears under its name only when it is whole, looked through and on the disk.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.cli.connection import API_URL_DEFAULT, API_URL_VARIABLE, Connection
from volcano_locks.cli.exit_codes import INPUT_OUTPUT, UNAVAILABLE, USAGE, Stop
from volcano_locks.cli.output import json_line, line, message

from .running import explained

if TYPE_CHECKING:
    from ..stores.sqlite.backup import BackupContents

TAKE_SECONDS_MAX: Final = 600.0
TELL_EVERY_BYTES: Final = 64 * 1024 * 1024


@click.command(short_help="Back up a SQLite store.")
@click.option("--to", "file", metavar="FILE", required=True, help="The file to write; it must not exist.")
@click.option(
    "--api-url", metavar="URL", help=f"The server that runs; else {API_URL_VARIABLE}, else {API_URL_DEFAULT}."
)
@click.option(
    "--admin-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="A file with the admin token, instead of VOLCANO_LOCKS_ADMIN_TOKEN.",
)
@click.option("--store", metavar="URL", help="The store's file itself, sqlite:///…, when no server runs.")
@click.option("--json", "as_json", is_flag=True, help="Print what was backed up as JSON.")
def backup(file: str, api_url: str | None, admin_token_file: Path | None, store: str | None, as_json: bool) -> None:
    """Back up a SQLite store, from its running server or from its file.

    A server has its file to itself, so that no other program can copy it:
    ask the server. It goes on serving meanwhile. Other stores are backed up
    with their engines' own tools.

    \b
    Examples:
      volcano-locks backup --to locks-monday.backup \\
          --admin-token-file /var/lib/locks/locks.db.admin-token
      volcano-locks backup --to locks.backup --store sqlite:///locks.db

    The file holds no secret, but the digests of all; only its owner can
    read it. Keep the admin token's file with it if you want the same token
    after a restore.

    \b
    Exit codes:
      0   backed up, and the file looked through
      64  an option is wrong
      69  the server or the store cannot be used, or has no room
      74  the file cannot be written
      77  the admin token is missing or refused
    """
    if store is not None and api_url is not None:
        raise Stop("give --api-url for a server that runs, or --store for a file that none serves, not both", USAGE)
    with explained(), _written(Path(file)) as part:
        if store is None:
            url = api_url or os.environ.get(API_URL_VARIABLE) or API_URL_DEFAULT
            _fetch(Connection.for_admin(url, admin_token_file), part)
        else:
            _copy(store, part)
        contents = _looked_through(part, file)
    if as_json:
        json_line({"file": file} | what_it_holds(contents))
    else:
        line(f"backed up {counts_told(contents)} to {file}")


def what_it_holds(contents: "BackupContents") -> dict[str, object]:
    """A backup's contents in the words of `--json`."""
    from ..stores.errors import format_instant  # noqa: PLC0415

    return {
        "projects": contents.projects,
        "service_keys": contents.service_keys,
        "locks": contents.locks,
        "written_at": format_instant(contents.newest_ms).replace("+00:00", "Z") if contents.newest_ms else None,
    }


def counts_told(contents: "BackupContents") -> str:
    """The counts, for people."""
    return f"{contents.projects} projects, {contents.service_keys} service keys, {contents.locks} locks"


def sqlite_store(url: str) -> Path:
    """The file that `--store` names. Stop where it names none."""
    from ..stores import shown_url, sqlite_path  # noqa: PLC0415

    try:
        path = sqlite_path(url)
    except ValueError as error:
        raise Stop(f"--store: {error}", USAGE) from None
    if path is None:
        told = "is backed up and restored with its engine's own tools; volcano-locks does it for sqlite:/// alone"
        raise Stop(f"--store: {shown_url(url)} {told}", USAGE)
    return path


@contextmanager
def _written(file: Path) -> Iterator[Path]:
    """A path to write to, which becomes `file` at the end, whole; nothing is left of it where that fails."""
    from ..stores.sqlite.backup import sync  # noqa: PLC0415

    if os.path.lexists(file):
        raise Stop(f"--to: {file} exists already: name another file", USAGE)
    part: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        os.close(descriptor)
        part = Path(name)
        yield part
        os.link(part, file)  # never over another file
    except FileExistsError:
        raise Stop(f"--to: {file} exists already: name another file", USAGE) from None
    except OSError as error:
        raise Stop(f"cannot write {file}: {error.strerror or error}", INPUT_OUTPUT) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    sync(file.parent)


def _fetch(connection: Connection, part: Path) -> None:
    """The server's backup, part by part."""
    from volcano_locks.cli.admin_api import admin_of  # noqa: PLC0415

    with admin_of(connection) as admin, part.open("wb") as target:
        made = admin.ask("POST", "/backups", timeout_seconds=TAKE_SECONDS_MAX)
        path = f"/backups/{made['id']}"
        tell_at = TELL_EVERY_BYTES
        while (have := target.tell()) < made["size_bytes"]:
            if have >= tell_at:
                message(f"fetched {have // 2**20} of {made['size_bytes'] // 2**20} MiB")
                tell_at = have + TELL_EVERY_BYTES
            target.write(admin.fetch(path, offset=have))
        admin.ask("DELETE", path)
        target.flush()
        os.fsync(target.fileno())


def _copy(url: str, part: Path) -> None:
    """A file that no server has open, whatever log a crash left beside it."""
    from ..rules.errors import StoreUnavailableError  # noqa: PLC0415
    from ..stores.sqlite.backup import back_up_stopped  # noqa: PLC0415

    path = sqlite_store(url)
    if not path.exists():
        raise Stop(f"--store: there is no file {path}", USAGE)
    try:
        back_up_stopped(path, part)
    except StoreUnavailableError as error:
        if error.cause_code == "file_in_use":
            raise Stop(f"{path} is served: back it up through its server, with --api-url", UNAVAILABLE) from None
        raise


def _looked_through(part: Path, file: str) -> "BackupContents":
    from ..rules.errors import StoreUnavailableError  # noqa: PLC0415
    from ..stores.sqlite.backup import inspect_backup  # noqa: PLC0415

    try:
        return inspect_backup(part)
    except StoreUnavailableError as error:
        raise Stop(f"no backup was made: {error.message.replace(str(part), file)}", UNAVAILABLE) from None
