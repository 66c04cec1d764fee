"""`volcano-locks run`: a command that runs only while this host holds the lock (CLI-5 to CLI-9).

The order matters. The command's process and its warden are forked first, while this process is small and has
one thread; only then is the HTTP client imported and the lock acquired. The command starts once the lock is
held, and the lock is released only when the command's whole group is gone.
"""

import errno
import logging
import os
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NoReturn

import click

from volcano_locks.errors import LockHeldError, LockOwnershipLostError
from volcano_locks.messages import checked_key

from . import exits
from .child import Child
from .connection import SECRET_VARIABLES, Connection, service_options
from .events import Events, interrupt_on_ending_signals
from .held import held_text
from .linux import adopt_orphans
from .output import instant_json, instant_text, message
from .parameters import EXIT_CODE, TTL, WAIT
from .problems import explained
from .program import find_program
from .supervisor import Ended, Supervisor
from .terminal import Terminal
from .waiting import Patience, patiently
from .warden import Warden

if TYPE_CHECKING:
    from volcano_locks import Client, LockGuard

_COMMAND: Final = "volcano_locks.command"


class RunCommand(click.Command):
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
@click.option("-n", "--no-wait", is_flag=True, help="Do not wait when the lock is held. The default.")
@click.option("-w", "--wait", "wait_seconds", type=WAIT, metavar="DURATION", help="Wait for the lock, at most so long.")
@click.option(
    "-E",
    "--not-acquired-code",
    "not_acquired",
    type=EXIT_CODE,
    default=exits.NOT_ACQUIRED,
    metavar="CODE",
    show_default=True,
    help="Exit code when the lock is held.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing when the lock is held.")
@service_options
def run(
    *,
    key: str,
    ttl: int,
    no_wait: bool,
    wait_seconds: int | None,
    not_acquired: int,
    quiet: bool,
    connection: Connection,
) -> int:
    """Run CMD while holding the lock KEY, and stop it when the lock is lost.

    \b
    Examples:
      volcano-locks run daily-rollup -- ./rollup.sh --day today
      volcano-locks run deploy --ttl 2m -w 10m -- make deploy
      * * * * *  volcano-locks run -q -E 0 tick -- /usr/local/bin/tick

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
    if no_wait and wait_seconds is not None:
        raise click.UsageError("-n and -w exclude each other")
    command: tuple[str, ...] = click.get_current_context().meta[_COMMAND]
    program = find_program(command[0])
    with explained(connection):
        checked_key(key)
    adopt_orphans()
    child = Child.prepare(program, command)
    warden = Warden.post(child)
    interrupt_on_ending_signals()
    try:
        with explained(connection), connection.client() as client:
            try:
                return _run_holding(child, program, client, key, ttl=ttl, wait_seconds=wait_seconds or 0)
            except LockHeldError:
                told = None if quiet else held_text(client, key, undone="nothing was run", waited=bool(wait_seconds))
                raise exits.Stop(told, not_acquired) from None
    finally:
        child.dismiss()
        if not child.alive():  # otherwise this is a failure of ours, and the warden stops what still runs
            warden.relieve()


def _run_holding(child: Child, program: str, client: "Client", key: str, *, ttl: int, wait_seconds: int) -> int:
    """Acquire, run, release; the exit code. Raises the client's errors of acquiring."""
    logging.getLogger("volcano_locks").addHandler(logging.NullHandler())
    if wait_seconds and sys.stderr.isatty():
        message(f"waiting for {key}")
    patience = Patience(wait_seconds, time.monotonic)
    ended: Ended | None = None
    try:
        with ExitStack() as stack:
            guard = patiently(lambda: stack.enter_context(client.locks.with_lock(key, ttl=ttl)), patience)
            ended = _run_guarded(guard, child, program)
            if not ended.gone:
                _leave_locked(ended)
    except LockOwnershipLostError as error:
        told = ended is not None and ended.lost
        raise exits.Stop(None if told else str(error), exits.OWNERSHIP_LOST) from None
    if guard.release_error is not None:
        message(f"the command has ended; the lock was not released: {guard.release_error}")
        message(f"{key} is free again by itself at {instant_text(guard.lease.expires_at)}")
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
        exit_code = exits.NOT_FOUND if error.errno == errno.ENOENT else exits.NOT_EXECUTABLE
        raise exits.Stop(f"{program}: {error.strerror}; nothing was run", exit_code) from None
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
    os._exit(exits.OWNERSHIP_LOST if ended.lost else ended.exit_code)
