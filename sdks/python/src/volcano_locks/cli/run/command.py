"""`volcano-locks run`: a command that runs only while this host holds the lock (CLI-5 to CLI-9).

The order matters. The command's process and its warden are forked first, while this process is small and has
one thread; only then is the HTTP client imported and the lock acquired. The command starts once the lock is
held, and the lock is released only when the command's whole group is gone.
"""

import errno
import logging
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import click

from volcano_locks.errors import LockHeldError, LockOwnershipLostError, VolcanoError
from volcano_locks.protocol.arguments import checked_key

from .. import exit_codes
from ..connection import SECRET_VARIABLES, Connection, service_options
from ..contention_message import held_text
from ..error_messages import explained
from ..output import instant_json, instant_text, message
from ..parameters import EXIT_CODE, HOLD, TTL
from ..wait_options import WaitingCommand, wait_options
from ..wait_progress import Progress
from .executable import find_program
from .linux import adopt_orphans
from .process_group import Child
from .signals import Events, interrupt_on_ending_signals
from .supervisor import Ended, Supervisor
from .terminal import Terminal
from .watchdog import Warden

if TYPE_CHECKING:
    from volcano_locks import Client, LockGuard

_COMMAND: Final = "volcano_locks.command"


class RunCommand(WaitingCommand):
    """Takes everything after the first `--` as the command, untouched; the options stand before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's parsing of what stands before `--`."""
        before, dashes, command = args, "", list[str]()
        if "--" in args:
            at = args.index("--")
            before, dashes, command = args[:at], "--", args[at + 1 :]
        ctx.meta[_COMMAND] = tuple(command)
        try:
            rest = super().parse_args(ctx, before)
        except click.UsageError as error:
            if dashes:
                raise
            missing = "there is no `--`: put it between the lock's key and the command"
            raise click.UsageError(f"{error.format_message()}\n{missing}", ctx) from None
        if not command and not ctx.resilient_parsing:
            lacking = "the command after it is missing" if dashes else "put `--` and the command after the lock's key"
            raise click.UsageError(f"nothing to run: {lacking}", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """What the usage line shows."""
        return [*super().collect_usage_pieces(ctx), "-- CMD [ARG]..."]


@click.command(cls=RunCommand, short_help="Run a command while holding a lock.")
@click.argument("key")
@click.option("--ttl", type=TTL, default="30s", show_default=True, help="Length of the lease, renewed while CMD runs.")
@wait_options
@click.option(
    "--hold-at-least",
    type=HOLD,
    metavar="DURATION",
    help="Leave the lock taken until so long after CMD's start, also if it ends sooner.",
)
@click.option("--skip-ok", is_flag=True, help="Exit 0, without a word, when the lock is held. For cron.")
@click.option(
    "-E",
    "--not-acquired-code",
    "not_acquired",
    type=EXIT_CODE,
    metavar="CODE",
    help=f"Exit code when the lock is held.  [default: {exit_codes.NOT_ACQUIRED}]",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of a lock that is held or waited for.")
@service_options
def run(
    *,
    key: str,
    ttl: int,
    wait: float,
    hold_at_least: int | None,
    skip_ok: bool,
    not_acquired: int | None,
    quiet: bool,
    connection: Connection,
) -> int:
    """Run CMD while holding the lock KEY, and stop it when the lock is lost.

    \b
    Examples:
      volcano-locks run daily-rollup -- ./rollup.sh --day today
      volcano-locks run deploy --ttl 2m -w 10m -- make deploy
      volcano-locks run scheduler --wait -- ./scheduler

    \b
    In a crontab, the same line on every host:
      0 3 * * *  volcano-locks run --skip-ok --hold-at-least 60s tick -- tick

    Who waits stands in the lock's line, first come first served, and is told
    on stderr who holds the lock. Waiting goes on while the server is away.

    CMD runs in a process group of its own and finds VOLCANO_LOCK_KEY,
    VOLCANO_LOCK_FENCING_TOKEN and VOLCANO_LOCK_EXPIRES_AT in its environment,
    but not the service key. Signals are passed on to the group. When the lock
    is lost, the group gets SIGTERM and half a second later SIGKILL. What CMD
    leaves running in its group is stopped before the lock is released.

    A lease cannot stop a process that is paused: send the fencing token along
    with each write, and let the place you write to refuse a lower one.

    \b
    Exit codes: those of CMD (128 + n when signal n killed it), and
      64  the command line is wrong     76  ownership lost
      69  server unavailable            77  credentials
      75  lock not acquired             126, 127  CMD cannot be run
    """
    if skip_ok and not_acquired is not None:
        raise click.UsageError("--skip-ok and -E exclude each other: --skip-ok is -q -E 0")
    command: tuple[str, ...] = click.get_current_context().meta[_COMMAND]
    program = find_program(command[0])
    with explained(connection):
        checked_key(key)
    adopt_orphans()
    child = Child.prepare(program, command)
    warden = Warden.post(child)
    interrupt_on_ending_signals()
    wish = Wish(key, ttl, wait, hold_at_least, quiet or skip_ok)
    try:
        with explained(connection), connection.client() as client:
            try:
                return _run_holding(child, program, client, wish, Progress(connection, key))
            except LockHeldError:
                told = None if wish.quiet else held_text(client, key, undone="nothing was run", waited=wait > 0)
                refused = exit_codes.NOT_ACQUIRED if not_acquired is None else not_acquired
                raise exit_codes.Stop(told, 0 if skip_ok else refused) from None
    finally:
        child.dismiss()
        if not child.alive():  # otherwise this is a failure of ours, and the warden stops what still runs
            warden.relieve()


@dataclass(frozen=True, slots=True)
class Wish:
    """How the lock is wanted."""

    key: str
    ttl: int
    wait: float
    hold_at_least: int | None
    quiet: bool


def _run_holding(child: Child, program: str, client: "Client", wish: Wish, progress: Progress) -> int:
    """Acquire, run, release; the exit code. Raises the client's errors of acquiring."""
    logging.getLogger("volcano_locks").addHandler(logging.NullHandler())
    block = client.locks.with_lock(wish.key, ttl=wish.ttl, wait=wish.wait, hold_at_least=wish.hold_at_least)
    guard: LockGuard | None = None
    ended: Ended | None = None
    try:
        with progress:
            if wish.wait and not wish.quiet:
                progress.begin()
            # Not through an ExitStack: a signal could come between what it acquires and what it remembers.
            with block as guard:
                progress.end()
                ended = _run_guarded(guard, child, program)
                if not ended.gone:
                    _leave_locked(ended)
    except LockOwnershipLostError as error:
        told = ended is not None and ended.lost
        raise exit_codes.Stop(None if told else str(error), exit_codes.OWNERSHIP_LOST) from None
    except BaseException:
        if guard is not None and wish.hold_at_least:  # nothing was run, so there is nothing to keep others from
            with suppress(VolcanoError):
                client.locks.release(wish.key, guard.lease)
        raise
    if guard.release_error is not None:
        undone = "held on to for longer" if wish.hold_at_least else "released"
        message(f"the command has ended; the lock was not {undone}: {guard.release_error}")
        message(f"{wish.key} is free again by itself at {instant_text(guard.lease.expires_at)}")
    return ended.exit_code


def _run_guarded(guard: "LockGuard", child: Child, program: str) -> Ended:
    """Start the command and watch over it; Stop 126 or 127 when it cannot be executed."""
    events = Events.open()
    terminal = Terminal()
    terminal.lend_at_start(child.group_id)
    try:
        child.start(_environment(guard))
    except OSError as error:
        terminal.take_back()
        exit_code = exit_codes.NOT_FOUND if error.errno == errno.ENOENT else exit_codes.NOT_EXECUTABLE
        raise exit_codes.Stop(f"{program}: {error.strerror}; nothing was run", exit_code) from None
    return Supervisor(child, guard, events, terminal).watch()


def _environment(guard: "LockGuard") -> dict[str, str]:
    """What the command sees: this environment without the secrets, and the lease (CLI-6)."""
    kept = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    return kept | {
        "VOLCANO_LOCK_KEY": guard.key,
        "VOLCANO_LOCK_FENCING_TOKEN": str(guard.fencing_token),
        "VOLCANO_LOCK_EXPIRES_AT": instant_json(guard.lease.expires_at),
    }


def _leave_locked(ended: Ended) -> NoReturn:
    """End at once: releasing would let another start beside what the kernel does not end."""
    message("processes of the command cannot be ended; the lock is not released and lapses by itself", colour="red")
    sys.stdout.flush()
    os._exit(exit_codes.OWNERSHIP_LOST if ended.lost else ended.exit_code)
