"""`volcano-locks serve`: a server for work (CLI-14, CLI-15)."""

import os
from typing import TYPE_CHECKING, Final

import click

from ..runtime.admin_token import token_path
from ..runtime.settings import SETTINGS, Setting, Settings
from ..stores import shown_url, sqlite_path
from .running import explained, serve_until_asked_to_stop

if TYPE_CHECKING:
    from ..runtime.server import Server


METAVARS: Final = {
    "store": "URL",
    "host": "ADDRESS",
    "port": "NUMBER",
    "tls_certificate": "FILE",
    "tls_key": "FILE",
    "workers": "NUMBER",
    "log_level": "LEVEL",
}


def _option(setting: Setting) -> click.Option:
    """The flag of a setting. `Settings.load` parses and defaults it, for flags and variables alike; click does not."""
    default = getattr(Settings(), setting.name)
    told = f"{setting.what[0].upper()}{setting.what[1:]}."
    if setting.switch:
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.Option([flags], default=None, help=f"{told} Default: {'yes' if default else 'no'}.")
    if default is not None:
        told += f" Default: {default}"
    return click.Option([setting.flag], metavar=METAVARS.get(setting.name, "TEXT"), help=told)


class ServeCommand(click.Command):
    """Has a flag for each row of SETTINGS that is no secret: arguments can be read by every user of the machine."""

    def __init__(self, *arguments: object, **attributes: object) -> None:
        super().__init__(*arguments, **attributes)  # type: ignore[arg-type]
        self.params.extend(_option(setting) for setting in SETTINGS if not setting.secret)


@click.command(cls=ServeCommand, short_help="Start a server for work.")
def serve(**flags: object) -> None:
    """Start a server for work.

    Each option can also be set by a variable, VOLCANO_LOCKS_ and the option's
    name: --log-level is VOLCANO_LOCKS_LOG_LEVEL. The option wins. The admin
    token comes from VOLCANO_LOCKS_ADMIN_TOKEN alone; without it one is made and
    kept beside the data, in a file only its owner can read.

    \b
    Examples:
      volcano-locks serve --store sqlite:////var/lib/volcano-locks/locks.db
      volcano-locks serve --host 0.0.0.0 --behind-proxy
      volcano-locks serve --store postgresql://locks@db/locks --workers 4
      volcano-locks serve --host 0.0.0.0 \\
          --tls-certificate /etc/tls/cert.pem --tls-key /etc/tls/key.pem

    Where it listens is said on stdout; the log is lines of JSON on stderr.
    SIGTERM or SIGINT stops the server once what is in flight has been
    answered; a second one ends it at once, and loses nothing that was
    acknowledged.

    \b
    Exit codes:
      0   stopped when asked
      64  an option or a variable is wrong
      69  the port or the store cannot be used
    """
    with explained():
        serve_until_asked_to_stop(Settings.load(flags, os.environ), _announce)


async def _announce(server: "Server") -> None:
    """For the person who started it, on stdout: stderr is the log, and nothing but JSON."""
    click.echo(f"listening on {server.url}, data in {shown_url(server.settings.store)}")
    click.echo(_admin_token_place(server.settings))


def _admin_token_place(settings: Settings) -> str:
    """Where the person finds the admin token; never the token."""
    if settings.admin_token is not None:
        return "the admin token is the one in VOLCANO_LOCKS_ADMIN_TOKEN"
    database = sqlite_path(settings.store)
    if database is None:
        return "no admin token is set, so nobody can make a project: set VOLCANO_LOCKS_ADMIN_TOKEN"
    return f"the admin token is in {token_path(database).absolute()}"
