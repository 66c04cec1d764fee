"""`key …`: manages a project's service keys (CLI-12). A secret is printed once, by the command that created it."""

from datetime import UTC, datetime, timedelta
from typing import Final

import click

from volcano_locks.protocol.arguments import parse_date

from .. import output
from ..admin_api import JsonObject, admin_client, keys_path
from ..confirm import confirm
from ..connection import SERVICE_KEY_VARIABLE, Connection, admin_options
from ..group import Group
from ..parameters import KEEP_OLD, KEY_LIFE

KNOWN_PERMISSIONS: Final = ("*", "locks.manage", "locks.read")

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_project = click.argument("project", metavar="PROJECT")
_key = click.argument("name_or_id", metavar="KEY")


@click.group(cls=Group, short_help="Manage service keys.")
def key() -> None:
    """Manage service keys, with which workers use a project's locks.

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
    help="What the key may do: everything (*, the default), use locks (locks.manage) or only read them (locks.read). "
    "Permissions of other services, such as functions.invoke, are stored and grant nothing here.",
)
@click.option("--expires-in", type=KEY_LIFE, metavar="DURATION", help="How long the key is valid. Default: forever.")
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
    """Create the service key NAME and print its secret, once.

    \b
    Examples:
      volcano-locks key create nightly-jobs worker-1
      (umask 077; volcano-locks key create nightly-jobs worker-1 > worker.key)
      volcano-locks key create nightly-jobs ci --expires-in 90d
      volcano-locks key create nightly-jobs dashboard --permission locks.read
    """
    body: JsonObject = {"name": name, "permissions": list(permissions)}
    if expires_in is not None:
        body["expires_at"] = output.instant_json(datetime.now(UTC) + timedelta(seconds=expires_in))
    with admin_client(connection) as admin:
        owner = admin.project(project)
        _print_secret(admin.request("POST", keys_path(owner["id"]), body), as_json)
    for permission in permissions:
        if permission not in KNOWN_PERMISSIONS:
            output.message(f"{permission} grants nothing here; the lock service uses {', '.join(KNOWN_PERMISSIONS)}")


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
    with admin_client(connection) as admin:
        items = admin.list_all(keys_path(admin.project(project)["id"]))
    if as_json:
        output.print_json({"items": items})
        return
    output.print_table(
        ("NAME", "BEGINS", "MAY", "EXPIRES", "LAST USED", "OLD SECRET UNTIL"),
        [
            (
                item["name"],
                item["key_prefix"],
                ",".join(item["permissions"]),
                _day(item["expires_at"]),
                _day(item["last_used_at"]),
                _kept_until_text(item) or "-",
            )
            for item in items
        ],
    )


@key.command()
@_project
@_key
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@admin_options
def revoke(*, project: str, name_or_id: str, yes: bool, connection: Connection) -> None:
    """Revoke a service key: it stops working within seconds. Asks first.

    \b
    Example:
      volcano-locks key revoke nightly-jobs worker-1
    """
    with admin_client(connection) as admin:
        owner = admin.project(project)
        found = admin.service_key(owner["id"], name_or_id)
        confirm(f"Revoke the service key {found['name']} ({found['key_prefix']}…) of {owner['name']}?", yes)
        admin.request("DELETE", keys_path(owner["id"], found["id"]))
    output.message(f"service key {found['name']} is revoked")


@key.command()
@_project
@_key
@click.option("--keep-old", type=KEEP_OLD, default="0", metavar="DURATION", help="How long the old secret stays valid.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
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
    """Replace a service key's secret and print the new one, once.

    Asks first unless --keep-old lets the old secret work for a while. A key has
    one old secret: a second rotation ends the one that the first kept, and asks.

    \b
    Example:
      volcano-locks key rotate nightly-jobs worker-1 --keep-old 1h
    """
    with admin_client(connection) as admin:
        owner = admin.project(project)
        found = admin.service_key(owner["id"], name_or_id)
        kept = _kept_until_text(found)
        if kept is not None:
            ends = "ends now" if yes else "would end now"
            output.message(f"the secret from before the last rotation, kept until {kept}, {ends}")
        if keep_old:
            confirm(f"Replace the secret of {found['name']}?", yes or kept is None)
        else:
            confirm(f"Invalidate the old secret of {found['name']} now? (--keep-old delays this)", yes)
        path = f"{keys_path(owner['id'], found['id'])}/regenerate"
        before = datetime.now(UTC)
        item = admin.request("POST", path, {"keep_old_seconds": keep_old})
        _print_secret(item, as_json)
    output.message(f"the old secret of {item['name']} {_old_secret_text(item, before, keep_old)}")


def _print_secret(item: JsonObject, as_json: bool) -> None:
    """Prints the secret alone on stdout, for redirection by `>`, and what to do with it on stderr."""
    if as_json:
        output.print_json(item)
    else:
        output.print_line(item["key_value"])
    output.message(
        f"the secret of {item['name']} is shown only this once: store it now, "
        f"and pass it to workers in {SERVICE_KEY_VARIABLE} or in a file"
    )


def _old_secret_text(item: JsonObject, before: datetime, keep_old: int) -> str:
    """Until when the old secret is valid. Counts from before the request, so that the time is never too late."""
    if keep_old == 0:
        return "is no longer valid"
    until = before + timedelta(seconds=keep_old)
    if item["expires_at"] is not None:
        until = min(until, parse_date(item["expires_at"]))
    return f"is valid until {output.instant_text(until)}"


def _kept_until_text(item: JsonObject) -> str | None:
    """Until when the secret from before the last rotation is valid; None if none is. Older servers leave it out."""
    text = item.get("old_secret_good_until")
    if text is None:
        return None
    until = min(parse_date(end) for end in (text, item["expires_at"]) if end is not None)
    return output.local_text(until) if until > datetime.now(UTC) else None


def _day(instant: str | None) -> str:
    return "never" if instant is None else instant[:10]
