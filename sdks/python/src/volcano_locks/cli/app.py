"""The group of commands: which there are, and how they are found without importing them all.

Commands of this distribution are named in COMMANDS and imported when asked for. Every other name is looked
up in the entry-point group `volcano_locks.commands`: an entry point's name is the command's name and it loads
a `click.Command`. The server's distribution adds `dev`, `serve` and others that way. The look-up reads the
metadata of everything installed, so commands of our own never pay for it.

Exit codes are ours (`exits`), so `App.main` ends the process itself instead of leaving that to click,
whose usage errors end with 2.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from . import exit_codes
from .output import PROGRAM, message

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
    "watch": "watch.command:watch",
    "force-release": "commands.locks:force_release",
    "project": "commands.projects:project",
    "key": "commands.keys:key",
    "fencing": "fencing.command:fencing",
    "verify": "verify.command:verify",
}
SERVER_COMMANDS: Final = frozenset({"dev", "serve", "migrate", "backup", "restore", "copy", "doctor"})


class App(click.Group):
    """A click group that imports a command when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Our commands in the order people meet them, then those of other distributions that can be loaded."""
        return [*COMMANDS, *sorted(name for name in _entry_points() if _loads(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command, imported now; None when there is none of that name."""
        if cmd_name in COMMANDS:
            module_name, attribute = COMMANDS[cmd_name].split(":")
            command: click.Command = getattr(import_module(f"{__package__}.{module_name}"), attribute)
            return command
        entry_point = _entry_points().get(cmd_name)
        if entry_point is not None:
            return _load(entry_point)
        if cmd_name in SERVER_COMMANDS and not SERVER_COMMANDS & _entry_points().keys():
            raise exit_codes.Stop(
                f"`{cmd_name}` comes with the server; install it with: pip install volcano-locks-server",
                exit_codes.USAGE,
            )
        return None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _deaf_reader() from None

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command the arguments name and end the process with its exit code."""
        extra["standalone_mode"] = False
        try:
            result = super().main(args=args, prog_name=prog_name or PROGRAM, **extra)
            sys.stdout.flush()
        except exit_codes.Stop as stop:
            if stop.message is not None:
                message(stop.message, colour="red")
            sys.exit(stop.exit_code)
        except click.ClickException as error:
            error.show()
            sys.exit(exit_codes.USAGE)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(exit_codes.SIGNAL_BASE + 2)
        except exit_codes.Interrupted as interrupted:
            sys.exit(interrupted.exit_code)
        except BrokenPipeError:
            sys.exit(_deaf_reader().exit_code)
        except Exception:  # noqa: BLE001 (a bug: show it whole, under its own code)
            traceback.print_exc()
            sys.exit(exit_codes.INTERNAL)
        sys.exit(result if isinstance(result, int) else 0)


def _deaf_reader() -> exit_codes.Stop:
    """The reader of our data has gone; the flush at exit must not complain of it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_codes.Stop(None, exit_codes.INPUT_OUTPUT)


def _entry_points() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 (27 ms that `run` must not pay)

    found = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
    return {name: found[name] for name in found if name not in COMMANDS}


def _load(entry_point: "EntryPoint") -> click.Command:
    try:
        command = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise exit_codes.Stop(
            f"`{entry_point.name}` cannot be loaded: {error}; is its distribution whole?", exit_codes.INTERNAL
        ) from error
    if not isinstance(command, click.Command):
        raise exit_codes.Stop(f"`{entry_point.name}` ({entry_point.value}) is no click command", exit_codes.INTERNAL)
    return command


def _loads(name: str) -> bool:
    try:
        _load(_entry_points()[name])
    except exit_codes.Stop:
        return False
    return True


@click.command(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(package_name="volcano-locks", prog_name=PROGRAM, message="%(prog)s %(version)s")
def app() -> None:
    """Elect one worker, keep it the only one, and stop it when it no longer is.

    \b
    Examples:
      volcano-locks run daily-rollup -- ./rollup.sh
      volcano-locks ls --held
      volcano-locks dev          (a server for development, when installed)

    The server is found by --api-url or VOLCANO_API_URL, the project by the
    service key in VOLCANO_SERVICE_KEY or in a file (--service-key-file).

    \b
    Exit codes:
      64  the command line is wrong     75  lock not acquired
      69  server unavailable            76  ownership lost
      77  credentials                   else the code of the command run
    """
