"""`audit`: shows who changed what (CLI-40)."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from .. import output
from ..admin_api import PAGE_LIMIT, AdminClient, JsonObject, admin_client
from ..connection import ADMIN_TOKEN, Connection, any_secret_options
from ..parameters import Duration

HEADINGS: Final = ("WHEN", "WHO", "FROM", "WHAT", "CHANGE", "REASON")
ENTRIES_DEFAULT: Final = 100
ENTRIES_MAX: Final = 100_000
_SINCE: Final = Duration(1, 3_650 * 86_400)
_SINCE_DEFAULT: Final = 7 * 86_400
_ID_LENGTH: Final = 36
_NONE: Final = "-"


@click.command(short_help="Show who changed or forced what, and why.")
@click.option(
    "--project", metavar="PROJECT", help="Only this project, by its name or id; also a deleted one, by its id."
)
@click.option("--since", type=_SINCE, default=_SINCE_DEFAULT, metavar="DURATION", help="How far back. Default: 7d.")
@click.option(
    "--limit",
    type=click.IntRange(1, ENTRIES_MAX),
    default=ENTRIES_DEFAULT,
    metavar="N",
    help=f"The latest N entries. Default: {ENTRIES_DEFAULT}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@any_secret_options
def audit(*, project: str | None, since: int, limit: int, as_json: bool, connection: Connection) -> None:
    """Show what was changed, by whom, from where and why; the latest first.

    Force releases, changes of projects, keys and tokens, sign-ins to the
    dashboard, backups. The admin token shows all of it, a service key that of
    its own project.

    \b
    Examples:
      volcano-locks audit --since 2d
      volcano-locks audit --admin --project reports
      volcano-locks audit --json | jq -r '.items[] | select(.reason) | .reason'
    """
    begin = (datetime.now(UTC) - timedelta(seconds=since)).isoformat(timespec="milliseconds")
    with admin_client(connection) as client:
        items, has_more = _latest(client, _path(client, connection, project), begin, limit)
    if as_json:
        output.print_json({"items": items})
    elif items:
        _print([_row(item) for item in items])
    else:
        output.message("no entries in that time")
    if has_more:
        output.message(f"these are the latest {limit} entries; there are more: use --limit or --since")


def _path(client: AdminClient, connection: Connection, project: str | None) -> str:
    is_admin = connection.remedy == ADMIN_TOKEN.remedy
    if project is None:
        if is_admin:
            return "/audit"
        project = client.request("GET", "/activity")["project_id"]  # of a service key: its own
    is_id = len(project) == _ID_LENGTH and project.count("-") == 4
    return f"/projects/{project if is_id or not is_admin else client.project(project)['id']}/audit"


def _latest(client: AdminClient, path: str, begin: str, limit: int) -> tuple[list[JsonObject], bool]:
    """The latest entries since `begin`, and whether there are more."""
    items: list[JsonObject] = []
    query: dict[str, Any] = {"from": begin}
    while True:
        page = client.request("GET", path, **query, limit=min(PAGE_LIMIT, limit - len(items)))
        items += page["items"]
        next_cursor = page.get("next_cursor")
        if not next_cursor or len(items) >= limit:
            return items, bool(next_cursor)
        query["cursor"] = next_cursor


def _print(rows: list[tuple[str, ...]]) -> None:
    """A table, or paragraphs on a terminal that is too narrow for it."""
    if output.fits_terminal((HEADINGS, *rows)):
        output.print_table(HEADINGS, rows)
        return
    for when, who, address, what, change, reason in rows:
        output.print_line(f"{when}  {what}")
        output.print_indented(f"by {who}" + ("" if address == _NONE else f" from {address}"))
        for name, text in (("reason", reason), ("change", change)):
            if text != _NONE:
                output.print_indented(f"{name}: {text}")


def _row(item: JsonObject) -> tuple[str, ...]:
    actor, target = item["actor"], item["target"]
    at = datetime.fromisoformat(item["at"]).astimezone()
    what = f"{item['action'].replace('_', ' ')} {target['name'] or target['kind']}"
    change = _change(item["before"], item["after"])
    return f"{at:%Y-%m-%d %H:%M:%S}", actor["name"], item["address"] or _NONE, what, change, item["reason"] or _NONE


def _change(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """What is different, for people."""
    if before is not None and after is not None and before.keys() & after.keys():
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return ", ".join(f"{name} {_shown(before.get(name))} → {_shown(after.get(name))}" for name in changed) or _NONE
    facts = before or after or {}
    return ", ".join(f"{name} {_shown(value)}" for name, value in facts.items() if value is not None) or _NONE


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else _NONE if value is None else str(value)
