"""`volcano-locks backup`: copies a SQLite store to one file, from its running server or from its file (KEEP-9).

The file appears under its name only when it is complete, verified and synced to disk.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.cli.connection import ADMIN_TOKEN, API_URL_DEFAULT, API_URL_VARIABLE, Connection
from volcano_locks.cli.exit_codes import INPUT_OUTPUT, UNAVAILABLE, USAGE, Exit
from volcano_locks.cli.output import effect_is_done, message, print_json, print_line

from .startup import exit_on_startup_error

if TYPE_CHECKING:
    from ..stores.sqlite.backup import BackupContents

CREATE_SECONDS_MAX: Final = 600.0
PROGRESS_EVERY_BYTES: Final = 64 * 1024 * 1024


@click.command(short_help="Back up a SQLite store.")
@click.option("--to", "file", metavar="FILE", required=True, help="The file to write; it must not exist.")
@click.option(
    "--api-url", metavar="URL", help=f"The running server. Default: {API_URL_VARIABLE}, else {API_URL_DEFAULT}."
)
@click.option(
    "--admin-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="A file with the admin token. Default: VOLCANO_LOCKS_ADMIN_TOKEN.",
)
@click.option("--store", metavar="URL", help="The store's file, sqlite:///…, if no server is running.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def backup(file: str, api_url: str | None, admin_token_file: Path | None, store: str | None, as_json: bool) -> None:
    """Back up a SQLite store, from its running server or from its file.

    A running server has its file locked, so the backup comes from the server,
    which keeps serving. Back up other stores with their engines' own tools.

    \b
    Examples:
      volcano-locks backup --to locks-monday.backup \\
          --admin-token-file /var/lib/locks/locks.db.admin-token
      volcano-locks backup --to locks.backup --store sqlite:///locks.db

    The file contains digests of the secrets, no secrets; only its owner can
    read it. To keep the admin token after a restore, also keep its file.

    \b
    Exit codes:
      0   backed up and verified
      64  an option is invalid
      69  the server or the store cannot be used, or has no space
      74  the file cannot be written
      77  the admin token is missing or refused
    """
    if store is not None and api_url is not None:
        raise Exit("use --api-url for a running server or --store for a file without one, not both", USAGE)
    with exit_on_startup_error(), _new_file(Path(file)) as part:
        if store is None:
            url = api_url or os.environ.get(API_URL_VARIABLE) or API_URL_DEFAULT
            _download(Connection.with_secret(ADMIN_TOKEN, url, admin_token_file), part)
        else:
            _copy_file(store, part)
        contents = _verify(part, file)
    effect_is_done()
    if as_json:
        print_json({"file": file} | contents_json(contents))
    else:
        print_line(f"backed up {counts_text(contents)} to {file}")


def contents_json(contents: "BackupContents") -> dict[str, object]:
    """A backup's contents for `--json`."""
    from ..stores.errors import format_instant  # noqa: PLC0415

    return {
        "projects": contents.projects,
        "service_keys": contents.service_keys,
        "admin_tokens": contents.admin_tokens,
        "locks": contents.locks,
        "written_at": format_instant(contents.newest_ms).replace("+00:00", "Z") if contents.newest_ms else None,
    }


def counts_text(contents: "BackupContents") -> str:
    """The counts, for people."""
    return (
        f"{contents.projects} projects, {contents.service_keys} service keys, {contents.admin_tokens} admin tokens, "
        f"{contents.locks} locks"
    )


def sqlite_store(url: str) -> Path:
    """The file that `--store` names. Exit 64 if it is not a SQLite store."""
    from ..stores import shown_url, sqlite_path  # noqa: PLC0415

    try:
        path = sqlite_path(url)
    except ValueError as error:
        raise Exit(f"--store: {error}", USAGE) from None
    if path is None:
        reason = "cannot be backed up or restored here: that is for sqlite:/// alone; use the engine's own tools"
        raise Exit(f"--store: {shown_url(url)} {reason}", USAGE)
    return path


@contextmanager
def _new_file(file: Path) -> Iterator[Path]:
    """A temporary path that becomes `file` at the end, complete. On an error nothing is left of it."""
    from ..stores.sqlite.file_lock import sync  # noqa: PLC0415

    if os.path.lexists(file):
        raise Exit(f"--to: {file} already exists: name another file", USAGE)
    part: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        os.close(descriptor)
        part = Path(name)
        yield part
        os.link(part, file)  # never over another file
    except FileExistsError:
        raise Exit(f"--to: {file} already exists: name another file", USAGE) from None
    except OSError as error:
        raise Exit(f"cannot write {file}: {error.strerror or error}", INPUT_OUTPUT) from None
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    sync(file.parent)


def _download(connection: Connection, part: Path) -> None:
    """Downloads the server's backup, part by part."""
    from volcano_locks.cli.admin_api import admin_client  # noqa: PLC0415

    with admin_client(connection) as admin, part.open("wb") as target:
        created = admin.request("POST", "/backups", timeout_seconds=CREATE_SECONDS_MAX)
        path = f"/backups/{created['id']}"
        progress_at = PROGRESS_EVERY_BYTES
        while (have := target.tell()) < created["size_bytes"]:
            if have >= progress_at:
                message(f"downloaded {have // 2**20} of {created['size_bytes'] // 2**20} MiB")
                progress_at = have + PROGRESS_EVERY_BYTES
            target.write(admin.fetch(path, offset=have))
        admin.request("DELETE", path)
        target.flush()
        os.fsync(target.fileno())


def _copy_file(url: str, part: Path) -> None:
    """Copies the file of a stopped server, including any log that a crash left beside it."""
    from ..rules.errors import StoreUnavailableError  # noqa: PLC0415
    from ..stores.sqlite.backup import back_up_stopped  # noqa: PLC0415

    path = sqlite_store(url)
    if not path.exists():
        raise Exit(f"--store: there is no file {path}", USAGE)
    try:
        back_up_stopped(path, part)
    except StoreUnavailableError as error:
        if error.cause_code == "file_in_use":
            raise Exit(f"{path} is in use by a server: back it up with --api-url", UNAVAILABLE) from None
        raise


def _verify(part: Path, file: str) -> "BackupContents":
    from ..rules.errors import StoreUnavailableError  # noqa: PLC0415
    from ..stores.sqlite.backup import inspect_backup  # noqa: PLC0415

    try:
        return inspect_backup(part)
    except StoreUnavailableError as error:
        raise Exit(f"no backup was made: {error.message.replace(str(part), file)}", UNAVAILABLE) from None
