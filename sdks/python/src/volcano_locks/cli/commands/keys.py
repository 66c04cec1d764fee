"""`key …`: the service keys of a project (CLI-12). A key's secret is printed once, by the command that made it."""

from datetime import UTC, datetime, timedelta
from typing import Final

import click

from volcano_locks.protocol.arguments import parse_date

from .. import output
from ..admin_api import Thing, admin_of, keys_path
from ..confirm import ask
from ..connection import SERVICE_KEY_VARIABLE, Connection, admin_options
from ..parameters import KEEP_OLD, KEY_LIFE

KNOWN_PERMISSIONS: Final = ("*", "locks.manage", "locks.read")

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_project = click.argument("project", metavar="PROJECT")
_key = click.argument("name_or_id", metavar="KEY")


@click.group(short_help="Create, list, revoke, rotate service keys.")
def key() -> None:
    """Service keys: what workers show to use a project's locks.

    These commands need the admin token, in VOLCANO_LOCKS_ADMIN_TOKEN or a
    file. PROJECT and KEY are names or ids.

    \b
    Examples:
      volcano-locks key create nightly-jobs worker-1
      volcano-locks key list nightly-jobs
      volcano-locks key rotate nightly-jobs worker-1 --keep-old 1h
    """


@key.command()
@_project
@click.argument("name")
@click.option(
    "--permission",
    "permissions",
    multiple=True,
    metavar="PERMISSION",
    help="What it may do: everything (*, and when left out), all with locks (locks.manage), only look at them "
    "(locks.read). Permissions of other services, such as functions.invoke, are kept and grant nothing here.",
)
@click.option("--expires-in", type=KEY_LIFE, metavar="DURATION", help="How long it works; for ever when left out.")
@_json
@admin_options
def create(
    *,
    project: str,
    name: str,
    permissions: tuple[str, ...],
    expires_in: int | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Create the service key NAME and print its secret, this once.

    \b
    Examples:
      volcano-locks key create nightly-jobs worker-1
      (umask 077; volcano-locks key create nightly-jobs worker-1 > worker.key)
      volcano-locks key create nightly-jobs ci --expires-in 90d
      volcano-locks key create nightly-jobs dashboard --permission locks.read
    """
    body: Thing = {"name": name, "permissions": list(permissions)}
    if expires_in is not None:
        body["expires_at"] = output.instant_json(datetime.now(UTC) + timedelta(seconds=expires_in))
    with admin_of(connection) as admin:
        owner = admin.project(project)
        _print_secret(admin.ask("POST", keys_path(owner["id"]), body), as_json)
    for permission in permissions:
        if permission not in KNOWN_PERMISSIONS:
            output.message(f"{permission} grants nothing here: the lock service knows {', '.join(KNOWN_PERMISSIONS)}")


@key.command(name="list")
@_project
@_json
@admin_options
def list_(*, project: str, as_json: bool, connection: Connection) -> None:
    """List a project's service keys, without their secrets.

    \b
    Example:
      volcano-locks key list nightly-jobs
    """
    with admin_of(connection) as admin:
        items = admin.everything(keys_path(admin.project(project)["id"]))
    if as_json:
        output.json_line({"items": items})
        return
    output.table(
        ("NAME", "BEGINS", "MAY", "EXPIRES", "LAST USED"),
        [
            (
                item["name"],
                item["key_prefix"],
                ",".join(item["permissions"]),
                _day(item["expires_at"]),
                _day(item["last_used_at"]),
            )
            for item in items
        ],
    )


@key.command()
@_project
@_key
@click.option("--yes", is_flag=True, help="Do not ask.")
@admin_options
def revoke(*, project: str, name_or_id: str, yes: bool, connection: Connection) -> None:
    """Revoke a service key: it stops working within seconds. Asks first.

    \b
    Example:
      volcano-locks key revoke nightly-jobs worker-1
    """
    with admin_of(connection) as admin:
        owner = admin.project(project)
        found = admin.service_key(owner["id"], name_or_id)
        ask(f"Revoke the service key {found['name']} ({found['key_prefix']}…) of {owner['name']}?", yes)
        admin.ask("DELETE", keys_path(owner["id"], found["id"]))
    output.message(f"service key {found['name']} is revoked")


@key.command()
@_project
@_key
@click.option(
    "--keep-old", type=KEEP_OLD, default="0", metavar="DURATION", help="How long the old secret goes on working."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_json
@admin_options
def rotate(
    *,
    project: str,
    name_or_id: str,
    keep_old: int,
    yes: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Give a service key a new secret and print it, this once.

    Asks first unless the old secret goes on working for a while.

    \b
    Example:
      volcano-locks key rotate nightly-jobs worker-1 --keep-old 1h
    """
    with admin_of(connection) as admin:
        owner = admin.project(project)
        found = admin.service_key(owner["id"], name_or_id)
        ask(f"End the old secret of {found['name']} at once? (--keep-old lets it live on)", yes or keep_old > 0)
        path = f"{keys_path(owner['id'], found['id'])}/regenerate"
        before = datetime.now(UTC)
        item = admin.ask("POST", path, {"keep_old_seconds": keep_old})
        _print_secret(item, as_json)
    output.message(f"the old secret of {item['name']} works {_old_until(item, before, keep_old)}")


def _print_secret(item: Thing, as_json: bool) -> None:
    """The secret alone on stdout, so that it can be kept by `>`; what to do with it on stderr."""
    if as_json:
        output.json_line(item)
    else:
        output.line(item["key_value"])
    output.message(
        f"this is the only time the secret of {item['name']} is shown: keep it now, "
        f"and give it to workers as {SERVICE_KEY_VARIABLE} or in a file"
    )


def _old_until(item: Thing, before: datetime, keep_old: int) -> str:
    """How long the old secret works, counted from before the request, so that it is not said to work too long."""
    if keep_old == 0:
        return "no longer"
    until = before + timedelta(seconds=keep_old)
    if item["expires_at"] is not None:
        until = min(until, parse_date(item["expires_at"]))
    return f"until {output.instant_text(until)}"


def _day(instant: str | None) -> str:
    return "never" if instant is None else instant[:10]
