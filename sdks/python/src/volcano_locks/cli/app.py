"""The command group: which commands exist, and how they are found without importing them all.

COMMANDS lists this distribution's commands; a command is imported when it is named. Any other name is looked up in the
entry-point group `volcano_locks.commands`, where each entry point loads a `click.Command`. The server's distribution
adds `dev`, `serve` and others that way. This look-up reads the metadata of all installed packages, so the commands in
COMMANDS never trigger it.

`App.main` ends the process itself because click would exit with 2 on a usage error; our code is 64 (`exit_codes`).
"""

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from . import exit_codes
from .group import Group
from .output import PROGRAM, OutputFailedError, discard_stdout, message, visible_lines
from .streams import StdoutError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP: Final = "volcano_locks.commands"

COMMANDS: Final = {
    "run": "run.command:run",
    "acquire": "commands.leases:acquire",
    "renew": "commands.leases:renew",
    "release": "commands.leases:release",
    "get": "commands.locks:get",
    "ls": "commands.ls:ls",
    "history": "commands.history:history",
    "watch": "watch.command:watch",
    "force-release": "commands.force_release:force_release",
    "dashboard": "commands.dashboard:dashboard",
    "audit": "commands.audit:audit",
    "project": "commands.projects:project",
    "key": "commands.keys:key",
    "fencing": "fencing.command:fencing",
    "verify": "verify.command:verify",
}
SERVER_COMMANDS: Final = frozenset(
    {"admin-token", "dev", "serve", "migrate", "backup", "restore", "copy", "doctor", "reset-clock"}
)


class App(Group):
    """A group that imports a command when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """This distribution's commands in order of use, then the loadable ones of other distributions."""
        return [*COMMANDS, *sorted(name for name in _entry_points() if _is_loadable(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Imports and returns the command; None if no command has that name."""
        if cmd_name in COMMANDS:
            module_name, attribute = COMMANDS[cmd_name].split(":")
            command: click.Command = getattr(import_module(f"{__package__}.{module_name}"), attribute)
            return command
        entry_point = _entry_points().get(cmd_name)
        if entry_point is not None:
            return _load(entry_point)
        if cmd_name in SERVER_COMMANDS and not SERVER_COMMANDS & _entry_points().keys():
            raise exit_codes.Exit(
                f"`{cmd_name}` needs the server; install it with: pip install volcano-locks-server",
                exit_codes.USAGE,
            )
        return None

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Runs the command that the arguments name, and ends the process with its exit code."""
        extra["standalone_mode"] = False
        try:
            result = super().main(args=args, prog_name=prog_name or PROGRAM, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()
        except exit_codes.Exit as stop:
            if stop.message is not None:
                message(stop.message, colour="red", lines=True)
            sys.exit(stop.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(exit_codes.USAGE)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(exit_codes.SIGNAL_BASE + 2)
        except exit_codes.Interrupted as interrupted:
            sys.exit(interrupted.exit_code)
        except StdoutError as error:  # such as `--help > /dev/full`
            discard_stdout()
            failed = OutputFailedError(error.cause)
            if failed.message is not None:
                message(failed.message, colour="red")
            sys.exit(failed.exit_code)
        except Exception:  # noqa: BLE001 (a bug: print the traceback)
            click.echo(visible_lines(traceback.format_exc()), err=True)
            sys.exit(exit_codes.INTERNAL)
        sys.exit(result if isinstance(result, int) else 0)


def _entry_points() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 (takes 27 ms, too long for `run`)

    found = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
    return {name: found[name] for name in found if name not in COMMANDS}


def _load(entry_point: "EntryPoint") -> click.Command:
    try:
        command = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise exit_codes.Exit(
            f"`{entry_point.name}` cannot be loaded: {error}; reinstall the package that provides it",
            exit_codes.INTERNAL,
        ) from error
    if not isinstance(command, click.Command):
        raise exit_codes.Exit(f"`{entry_point.name}` ({entry_point.value}) is not a click command", exit_codes.INTERNAL)
    return command


def _is_loadable(name: str) -> bool:
    try:
        _load(_entry_points()[name])
    except exit_codes.Exit:
        return False
    return True


@click.command(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="volcano-locks", prog_name=PROGRAM, message="%(prog)s %(version)s")
def app() -> None:
    """Run jobs under distributed locks: one host at a time does the work.

    \b
    Examples:
      volcano-locks run daily-rollup -- ./rollup.sh
      volcano-locks ls --held
      volcano-locks dev          (a development server, if installed)

    The server is --api-url or VOLCANO_API_URL. The service key selects the
    project; it is in VOLCANO_SERVICE_KEY or in a file (--service-key-file).

    \b
    Exit codes:
      64  the command line is wrong     75  lock not acquired
      69  server unavailable            76  ownership lost
      77  no valid credential           else the code of the command run
    """
