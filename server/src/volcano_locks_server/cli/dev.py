"""`volcano-locks dev`: a development server, ready to use (CLI-13).

It takes no settings from the environment, so the printed text is complete. Data is in memory unless --store names a
store. Each start creates a new secret for the service key `dev` of the project `dev`.
"""

import secrets
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.cli.output import effect_is_done, is_unicode, message, print_line

from .startup import exit_on_startup_error, serve_until_stopped

if TYPE_CHECKING:
    from ..runtime.server import Server

NAME: Final = "dev"
PORTS_TRIED: Final = 10
WIDTH_MAX: Final = 76
ADMIN_TOKEN_BYTES: Final = 24


@click.command(short_help="Start a development server.")
@click.option("--port", metavar="NUMBER", help="The port. Default: 7420, or the next free port.")
@click.option("--store", metavar="URL", help="Keep the data, as in sqlite:///locks.db. Default: in memory.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning (default) or error.")
def dev(port: str | None, store: str | None, log_level: str | None) -> None:
    """Start a development server with a project and a service key ready.

    It listens on this machine only (`serve` has --host) and prints what to
    paste into another terminal. Without --store its data is lost when it stops. Each start creates
    a new secret for the service key.

    \b
    Examples:
      volcano-locks dev
      volcano-locks dev --store sqlite:///locks.db --port 8000
    """
    from ..runtime.listen_errors import ListenError  # noqa: PLC0415
    from ..runtime.settings import PORT_DEFAULT, Settings  # noqa: PLC0415

    flags = {
        "store": store or "memory://",
        "log_level": log_level or "warning",
        "admin_token": f"dev-{secrets.token_urlsafe(ADMIN_TOKEN_BYTES)}",
        "dashboard": True,
    }
    ports = [port] if port is not None else range(PORT_DEFAULT, PORT_DEFAULT + PORTS_TRIED)
    with exit_on_startup_error():
        for candidate in ports:
            try:
                settings = Settings.load({**flags, "port": candidate}, {})
                serve_until_stopped(settings, _announce, ends_with_terminal=True)
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
    rule = "─" if is_unicode() else "-"
    effect_is_done()
    print_line(f"{rule * 2} DEVELOPMENT ONLY ".ljust(width, rule))
    link = await server.dashboard_link(secret)
    for text in _instructions(server, secret, link):
        print_line(text)
    print_line(rule * width)


def _path_of_the_command() -> list[str]:
    """A line to paste if this shell does not find the command, for example after `make dev`."""
    command = Path(sys.argv[0]).absolute()
    if command.name != "volcano-locks" or shutil.which(command.name):
        return []
    return [f"  export PATH={shlex.quote(str(command.parent))}:$PATH"]


def _instructions(server: "Server", secret: str, link: str) -> list[str]:
    from ..stores import shown_url  # noqa: PLC0415

    in_memory = server.settings.store == "memory://"
    data = "in memory, lost when the server stops" if in_memory else f"in {shown_url(server.settings.store)}"
    return [
        f"  A lock service on {server.url}, for this machine only.",
        f"  Data: {data}. Project and service key: {NAME}.",
        "",
        "  In another terminal, paste:",
        "",
        *_path_of_the_command(),
        f"  export VOLCANO_API_URL={server.url}",
        f"  export VOLCANO_SERVICE_KEY={secret}",
        "",
        "  Then try:",
        "",
        "  volcano-locks run hello -- echo it works",
        "",
        "  The dashboard, by a link that works once, within a minute",
        "  (the command `volcano-locks dashboard` opens another one):",
        "",
        f"  {link}",
        "",
        "  To create projects and keys, also paste:",
        "",
        f"  export VOLCANO_LOCKS_ADMIN_TOKEN={server.admin_token}",
        "",
        "  Ctrl-C stops the server.",
    ]
