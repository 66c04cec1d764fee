"""`project …`: manages projects, each with its own locks, service keys and quota (CLI-12)."""

import click

from .. import output
from ..admin_api import JsonObject, admin_client
from ..confirm import confirm
from ..connection import Connection, admin_options
from ..group import Group

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Group, short_help="Manage projects.")
def project() -> None:
    """Manage projects: each has its own locks, service keys and quota.

    These commands need the admin token, in VOLCANO_LOCKS_ADMIN_TOKEN or a
    file. PROJECT is a project's name or id.

    \b
    Examples:
      volcano-locks project create nightly-jobs
      volcano-locks project list
      volcano-locks project set nightly-jobs --requests-per-minute 6000
    """


@project.command()
@click.argument("name")
@_json
@admin_options
def create(*, name: str, as_json: bool, connection: Connection) -> None:
    """Create the project NAME.

    \b
    Example:
      volcano-locks project create nightly-jobs
    """
    with admin_client(connection) as admin:
        created = admin.request("POST", "/projects", {"name": name})
    output.effect_is_done()
    _print(created, as_json)


@project.command(name="list")
@_json
@admin_options
def list_(*, as_json: bool, connection: Connection) -> None:
    """List all projects.

    \b
    Example:
      volcano-locks project list --json
    """
    with admin_client(connection) as admin:
        items = admin.list_all("/projects")
    if as_json:
        output.print_json({"items": items})
    else:
        output.print_table(
            ("NAME", "ID", "REQUESTS/MIN"), [(item["name"], item["id"], _quota_text(item)) for item in items]
        )


@project.command()
@click.argument("name_or_id", metavar="PROJECT")
@_json
@admin_options
def show(*, name_or_id: str, as_json: bool, connection: Connection) -> None:
    """Show one project.

    \b
    Example:
      volcano-locks project show nightly-jobs
    """
    with admin_client(connection) as admin:
        _print(admin.project(name_or_id), as_json)


@project.command(name="set")
@click.argument("name_or_id", metavar="PROJECT")
@click.option("--name", metavar="NAME", help="The new name.")
@click.option("--requests-per-minute", type=click.IntRange(min=0), metavar="N", help="The quota; 0 removes it.")
@_json
@admin_options
def set_(
    *,
    name_or_id: str,
    name: str | None,
    requests_per_minute: int | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Change a project's name or quota.

    \b
    Example:
      volcano-locks project set nightly-jobs --requests-per-minute 6000
    """
    options = {"name": name, "requests_per_minute": requests_per_minute}
    change = {field: value for field, value in options.items() if value is not None}
    if not change:
        raise click.UsageError("nothing to change: pass --name or --requests-per-minute")
    with admin_client(connection) as admin:
        found = admin.project(name_or_id)
        changed = admin.request("PATCH", f"/projects/{found['id']}", change)
    output.effect_is_done()
    _print(changed, as_json)


@project.command()
@click.argument("name_or_id", metavar="PROJECT")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@admin_options
def delete(*, name_or_id: str, yes: bool, connection: Connection) -> None:
    """Delete a project with its service keys and locks. Asks first.

    \b
    Example:
      volcano-locks project delete nightly-jobs
    """
    with admin_client(connection) as admin:
        found = admin.project(name_or_id)
        confirm(f"Delete the project {found['name']} with all its service keys and locks?", yes)
        admin.request("DELETE", f"/projects/{found['id']}")
    output.message(f"project {found['name']} is deleted")


def _print(item: JsonObject, as_json: bool) -> None:
    if as_json:
        output.print_json(item)
    else:
        output.print_fields(
            {
                "name": item["name"],
                "id": item["id"],
                "requests per minute": _quota_text(item),
                "created": item["created_at"],
            }
        )


def _quota_text(item: JsonObject) -> str:
    return str(item["requests_per_minute"] or "no limit")
