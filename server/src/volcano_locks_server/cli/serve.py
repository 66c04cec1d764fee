"""`volcano-locks serve`: a production server (CLI-14, CLI-15)."""

import os
from typing import TYPE_CHECKING

import click

from volcano_locks.cli.output import effect_is_done, print_line

from ..runtime.admin_token import token_path
from ..runtime.settings import SETTINGS, Setting, Settings
from ..stores import shown_url, sqlite_path
from .startup import exit_on_startup_error, serve_until_stopped

if TYPE_CHECKING:
    from ..runtime.server import Server


def _option(setting: Setting) -> click.Option:
    """The flag of a setting. `Settings.load` parses flags and variables alike and applies the default; click
    does not.
    """
    default = getattr(Settings(), setting.name)
    text = f"{setting.what[0].upper()}{setting.what[1:]}."
    if setting.switch:
        flags = f"{setting.flag}/--no-{setting.flag.removeprefix('--')}"
        return click.Option([flags], default=None, help=f"{text} Default: {'yes' if default else 'no'}.")
    if default is not None:
        text += f" Default: {default}"
    return click.Option([setting.flag], metavar=setting.metavar, help=text)


@click.command(short_help="Start a production server.")
def serve(**flags: object) -> None:
    """Start a production server.

    Each option can also be set by a variable: --log-level is
    VOLCANO_LOCKS_LOG_LEVEL. The option wins. The admin token has no option: set
    VOLCANO_LOCKS_ADMIN_TOKEN, or let the server create a token and store it
    beside the data, in a file that only its owner can read.

    \b
    Examples:
      volcano-locks serve --store sqlite:////var/lib/volcano-locks/locks.db
      volcano-locks serve --host 0.0.0.0 --behind-proxy
      volcano-locks serve --store-url-file /etc/locks.url --workers 4
      volcano-locks serve --host 0.0.0.0 \\
          --tls-certificate /etc/tls/cert.pem --tls-key /etc/tls/key.pem

    The address is printed on stdout; the log is JSON lines on stderr. SIGTERM
    or SIGINT stops the server after it has answered the requests in progress;
    a second signal stops it at once. Acknowledged changes are never lost.
    SIGHUP reloads the TLS certificate and its key.

    \b
    Exit codes:
      0   stopped by a signal
      64  an option or a variable is invalid
      69  the port or the store cannot be used
    """
    with exit_on_startup_error():
        serve_until_stopped(Settings.load(flags, os.environ), _announce)


# Every user of the machine can read a process's arguments, so secrets have no flag.
serve.params += [_option(setting) for setting in SETTINGS if not setting.secret]


async def _announce(server: "Server") -> None:
    """Prints the address and where the admin token is, on stdout: stderr is the JSON log."""
    effect_is_done()
    print_line(f"listening on {server.url}, data in {shown_url(server.settings.store)}")
    print_line(_admin_token_text(server.settings))


def _admin_token_text(settings: Settings) -> str:
    """Where to find the admin token; never the token itself."""
    if settings.admin_token is not None:
        return "the admin token is the one in VOLCANO_LOCKS_ADMIN_TOKEN"
    database = sqlite_path(settings.store)
    if database is None:
        if settings.store == "memory://":
            return "no admin token is set, so no projects can be created: set VOLCANO_LOCKS_ADMIN_TOKEN"
        return (
            "the admin API takes the tokens in the store: volcano-locks admin-token create NAME --offline makes one; "
            "VOLCANO_LOCKS_ADMIN_TOKEN is not set"
        )
    return f"the admin token is in {token_path(database).absolute()}"
