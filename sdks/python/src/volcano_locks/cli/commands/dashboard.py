"""`dashboard`: opens the server's dashboard in a browser, signed in by a one-time link (CLI-39)."""

import os
import sys

import click

from .. import output
from ..admin_api import admin_client
from ..connection import Connection, any_secret_options

_GRAPHICAL = ("DISPLAY", "WAYLAND_DISPLAY")  # without one of them, a browser on Linux would take over the terminal


@click.command(short_help="Open the dashboard in a browser.")
@click.option("--print", "only_print", is_flag=True, help="Print the link instead of opening it.")
@click.option("--json", "as_json", is_flag=True, help="Print the link and its end as JSON.")
@any_secret_options
def dashboard(*, only_print: bool, as_json: bool, connection: Connection) -> None:
    """Open the server's dashboard in a browser.

    It is signed in by a link that works once, within a minute. With a service
    key it shows the locks of that project, with an admin token the projects,
    their keys and the audit. Without a browser the link is printed.

    \b
    Examples:
      volcano-locks dashboard
      volcano-locks dashboard --admin
      volcano-locks dashboard --print
    """
    with admin_client(connection) as client:
        made = client.request("POST", "/ui/codes")
    link = f"{connection.api_url.rstrip('/')}/ui#code={made['code']}"
    if as_json:
        output.print_json({"url": link, "expires_at": made["expires_at"]})
    elif only_print or not _open(link):
        output.print_line(link)
        output.message("this link signs in once, within a minute")
    else:
        output.message(f"opened the dashboard of {connection.api_url} in a browser")


def _open(link: str) -> bool:
    """Open the link in a graphical browser; False if there is none."""
    if sys.platform == "linux" and not any(os.environ.get(name) for name in _GRAPHICAL):
        return False
    import webbrowser  # noqa: PLC0415 (searches for browsers when it is imported)

    try:
        return webbrowser.open(link)
    except (webbrowser.Error, OSError):
        return False
