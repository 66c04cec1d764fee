"""`volcano-locks run`: runs a command only while this host holds the lock (CLI-5 to CLI-9).

Order of work: fork the command's process and its watchdog while this process is small and has one thread; then import
the HTTP client and acquire the lock. The command starts once the lock is held. The lock is released only when the
command's whole process group is gone.
"""

import errno
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

import click

from volcano_locks.errors import LockHeldError, LockOwnershipLostError, VolcanoError
from volcano_locks.protocol.arguments import checked_key

from .. import exit_codes
from ..connection import SECRET_VARIABLES, SERVICE_KEY_VARIABLE, Connection, service_options
from ..contention_message import lock_held_message
from ..error_messages import exit_on_client_error
from ..output import instant_json, instant_text, message
from ..parameters import EXIT_CODE, HOLD, TTL
from ..wait_options import WaitingCommand, wait_options
from ..wait_progress import WaitProgress
from .executable import find_program
from .linux import adopt_orphans
from .process_group import CommandLaunch, CommandProcess
from .signals import GivenSignals, SignalQueue, interrupt_on_ending_signals
from .supervisor import Outcome, Supervisor
from .terminal import Terminal
from .watchdog import Watchdog

if TYPE_CHECKING:
    from volcano_locks import Client, LockGuard

_COMMAND: Final = "volcano_locks.command"


class RunCommand(WaitingCommand):
    """Passes everything after the first `--` unchanged to the command; options come before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """click's parsing of the arguments before `--`."""
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
            missing = "put `--` between the lock's key and the command"
            raise click.UsageError(f"{error.format_message()}\n{missing}", ctx) from None
        if not command and not ctx.resilient_parsing:
            lacking = "the command after `--` is missing" if dashes else "put `--` and the command after the lock's key"
            raise click.UsageError(f"nothing to run: {lacking}", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Adds the command to the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- CMD [ARG]..."]


@click.command(cls=RunCommand, short_help="Run a command while holding a lock.")
@click.argument("key")
@click.option("--ttl", type=TTL, default="30s", show_default=True, help="Length of the lease, renewed while CMD runs.")
@wait_options
@click.option(
    "--hold-at-least",
    type=HOLD,
    metavar="DURATION",
    help="Keep the lock held for at least this long after CMD starts, even if CMD ends sooner. "
    "It is free 1 second later, at the earliest after 6. For a job of every minute: 30s.",
)
@click.option("--skip-ok", is_flag=True, help="If the lock is held, exit 0 without a message. For cron.")
@click.option(
    "-E",
    "--not-acquired-code",
    "not_acquired",
    type=EXIT_CODE,
    metavar="CODE",
    help=f"Exit code if the lock is held.  [default: {exit_codes.NOT_ACQUIRED}]",
)
@click.option(
    "--pass-service-key",
    is_flag=True,
    help="Hand the service key to CMD as VOLCANO_SERVICE_KEY, for clients in it.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no message about a held lock or a wait.")
@service_options
def run(
    *,
    key: str,
    ttl: int,
    wait: float,
    hold_at_least: int | None,
    skip_ok: bool,
    not_acquired: int | None,
    pass_service_key: bool,
    quiet: bool,
    connection: Connection,
) -> int:
    """Run CMD while holding the lock KEY, and stop it if the lock is lost.

    \b
    Examples:
      volcano-locks run daily-rollup -- ./rollup.sh --day today
      volcano-locks run deploy --ttl 2m -w 10m -- make deploy
      volcano-locks run scheduler --wait -- ./scheduler

    \b
    In a crontab, the same line on every host:
      0 3 * * *  volcano-locks run --skip-ok --hold-at-least 60s tick -- tick

    -w and --wait wait in the lock's first-in first-out queue, even while the
    server cannot be reached, and show on stderr who holds the lock.

    CMD runs in its own process group. Its environment has VOLCANO_LOCK_KEY,
    VOLCANO_LOCK_FENCING_TOKEN and VOLCANO_LOCK_EXPIRES_AT, but the service key
    only with --pass-service-key. Signals are passed on to the group. If the lock
    is lost, or if this program dies, the group gets SIGTERM, and SIGKILL half a
    second later. Processes that CMD leaves in its group are stopped before the
    lock is released.

    A lease cannot stop a process that is paused. Send the fencing token with
    each write, and let the database refuse a lower one (see fencing sql).

    \b
    Exit codes: those of CMD (128 + n if signal n killed it), and
      64  the command line is wrong     76  ownership lost
      69  server unavailable            77  no valid credential
      75  lock not acquired             126, 127  CMD cannot be run
    """
    if skip_ok and not_acquired is not None:
        raise click.UsageError("use --skip-ok or -E, not both: --skip-ok is -q -E 0")
    command: tuple[str, ...] = click.get_current_context().meta[_COMMAND]
    program = find_program(command[0])
    with exit_on_client_error(connection):
        checked_key(key)
    launch = CommandLaunch(program, command, GivenSignals.take())
    adopt_orphans()
    watchdog = Watchdog.start(launch.fork)
    job = Job(launch.process(watchdog.command_id), watchdog, program)
    interrupt_on_ending_signals()
    service_key = connection.secret if pass_service_key else None
    options = LockOptions(key, ttl, wait, hold_at_least, quiet or skip_ok, service_key)
    try:
        with exit_on_client_error(connection), connection.client() as client:
            try:
                return _run_holding(job, client, options, WaitProgress(connection, key))
            except LockHeldError as held:
                consequence = "nothing was run"
                text = None if options.quiet else lock_held_message(held, key, consequence, waited=wait > 0)
                exit_code = exit_codes.NOT_ACQUIRED if not_acquired is None else not_acquired
                raise exit_codes.Exit(text, 0 if skip_ok else exit_code) from None
    finally:
        never_started = job.process.discard()
        if never_started or not job.process.alive():  # otherwise `run` failed, and the watchdog ends the group
            watchdog.stop()


@dataclass(frozen=True, slots=True)
class LockOptions:
    """How to acquire and hold the lock."""

    key: str
    ttl: int
    wait: float
    hold_at_least: int | None
    quiet: bool
    service_key: str | None = field(repr=False)  # for the command


@dataclass(frozen=True, slots=True)
class Job:
    """The process that becomes the command, its watchdog, and the path of the program."""

    process: CommandProcess
    watchdog: Watchdog
    program: str


def _run_holding(job: Job, client: "Client", options: LockOptions, progress: WaitProgress) -> int:
    """Acquires the lock, runs the command, releases; returns the exit code. Raises the errors of the acquire."""
    logging.getLogger("volcano_locks").addHandler(logging.NullHandler())
    block = client.locks.with_lock(options.key, ttl=options.ttl, wait=options.wait, hold_at_least=options.hold_at_least)
    guard: LockGuard | None = None
    outcome: Outcome | None = None
    try:
        with progress:
            if options.wait and not options.quiet:
                progress.begin()
            # No ExitStack: a signal could arrive after it acquires the lock and before it registers the exit.
            with block as guard:
                progress.end()
                outcome = _run_guarded(guard, job, options)
                if not outcome.gone:
                    _exit_without_release(outcome)
    except LockOwnershipLostError as error:
        reported = outcome is not None and outcome.lost
        raise exit_codes.Exit(None if reported else str(error), exit_codes.OWNERSHIP_LOST) from None
    except BaseException:
        if guard is not None and options.hold_at_least:  # nothing was run, so --hold-at-least does not apply
            with suppress(VolcanoError):
                client.locks.release(options.key, guard.lease)
        raise
    if guard.release_error is not None:
        failure = "extended" if options.hold_at_least else "released"
        message(f"the command has ended, but the lock was not {failure}: {guard.release_error}")
        message(f"its lease expires at {instant_text(guard.lease.expires_at)}, and {options.key} is free 1 s later")
    return outcome.exit_code


def _run_guarded(guard: "LockGuard", job: Job, options: LockOptions) -> Outcome:
    """Starts and supervises the command. Exit 126 or 127 if it cannot be executed."""
    signals = SignalQueue.open()
    terminal = Terminal()
    terminal.give_if_interactive(job.process.group_id)
    try:
        deadline = guard.lease.deadline
        assert deadline is not None
        job.watchdog.extend(deadline)
        job.process.start(_environment(guard, options))
    except OSError as error:
        terminal.take_back()
        exit_code = exit_codes.NOT_FOUND if error.errno == errno.ENOENT else exit_codes.NOT_EXECUTABLE
        raise exit_codes.Exit(f"{job.program}: {error.strerror}; nothing was run", exit_code) from None
    return Supervisor(job.process, job.watchdog, guard, signals, terminal).run()


def _environment(guard: "LockGuard", options: LockOptions) -> dict[str, str]:
    """The command's environment: this one without the secrets, plus the lease, and the service key if the user wants
    that (CLI-6).
    """
    kept = {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES}
    if options.service_key is not None:
        kept[SERVICE_KEY_VARIABLE] = options.service_key
    return kept | {
        "VOLCANO_LOCK_KEY": guard.key,
        "VOLCANO_LOCK_FENCING_TOKEN": str(guard.fencing_token),
        "VOLCANO_LOCK_EXPIRES_AT": instant_json(guard.lease.expires_at),
    }


def _exit_without_release(outcome: Outcome) -> NoReturn:
    """Exits at once. A release would let another holder start beside processes that the kernel does not end."""
    message("the command's processes cannot be killed; the lock stays held until its lease expires", colour="red")
    os._exit(exit_codes.OWNERSHIP_LOST if outcome.lost else outcome.exit_code)
