"""`volcano-locks dev`: a server for trying out, ready to use (CLI-13).

It takes nothing from the environment: what it shows is all there is to know. Data lives in memory unless a store is
named. Each start makes a new secret for the service key `dev` of the project `dev`.
"""

import secrets
import shutil
import sys
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.cli.output import line, message

from .running import explained, serve_until_asked_to_stop

if TYPE_CHECKING:
    from ..runtime.server import Server

NAME: Final = "dev"
PORTS_TRIED: Final = 10
WIDTH_MAX: Final = 76
ADMIN_TOKEN_BYTES: Final = 24


@click.command(short_help="Start a server for trying out.")
@click.option("--port", metavar="NUMBER", help="Listen here; else 7420, or the next port that is free.")
@click.option("--store", metavar="URL", help="Keep the data: sqlite:///locks.db. Else it is in memory.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning (the default) or error.")
def dev(port: str | None, store: str | None, log_level: str | None) -> None:
    """Start a server for trying out, with a project and a service key ready.

    It listens on this machine only, and shows what to paste into another
    terminal. Without --store all it knows is gone when it stops. The
    service key is a new one at each start.

    \b
    Examples:
      volcano-locks dev
      volcano-locks dev --store sqlite:///locks.db --port 8000
    """
    from ..runtime.server import ListenError  # noqa: PLC0415
    from ..runtime.settings import PORT_DEFAULT, Settings  # noqa: PLC0415

    flags = {
        "store": store or "memory://",
        "log_level": log_level or "warning",
        "admin_token": f"dev-{secrets.token_urlsafe(ADMIN_TOKEN_BYTES)}",
    }
    ports = [port] if port is not None else range(PORT_DEFAULT, PORT_DEFAULT + PORTS_TRIED)
    with explained():
        for candidate in ports:
            try:
                serve_until_asked_to_stop(Settings.load({**flags, "port": candidate}, {}), _announce)
            except ListenError:
                if candidate == ports[-1]:
                    raise
                message(f"port {candidate} is taken, trying the next one")
            else:
                message("stopped")
                return


async def _announce(server: "Server") -> None:
    secret = (await server.issue_service_key(NAME, NAME)).secret
    width = min(WIDTH_MAX, shutil.get_terminal_size((80, 24)).columns - 1)
    rule = "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
    line(f"{rule * 2} DEVELOPMENT ONLY ".ljust(width, rule))
    for text in _told(server, secret):
        line(text)
    line(rule * width)


def _told(server: "Server", secret: str) -> list[str]:
    from ..stores import shown_url  # noqa: PLC0415

    in_memory = server.settings.store == "memory://"
    kept = "in memory, gone when this stops" if in_memory else f"in {shown_url(server.settings.store)}"
    return [
        f"  A lock service on {server.url} for this machine alone.",
        f"  Data: {kept}. Project and service key: {NAME}.",
        "",
        "  In another terminal, paste:",
        "",
        f"  export VOLCANO_API_URL={server.url}",
        f"  export VOLCANO_SERVICE_KEY={secret}",
        "",
        "  and try:",
        "",
        "  volcano-locks run hello -- echo it works",
        "",
        "  To make projects and keys of your own, also paste:",
        "",
        f"  export VOLCANO_LOCKS_ADMIN_TOKEN={server.admin_token}",
        "",
        "  Ctrl-C stops it.",
    ]
