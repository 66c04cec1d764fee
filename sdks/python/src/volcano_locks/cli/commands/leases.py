"""`acquire`, `renew`, `release`: one request each, for scripts that hold a lock over several steps (CLI-10).

The owner token is a secret that has to be kept between the steps. It is never an argument, since arguments
are everybody's to read: it stays in a lease file, travels through stdin and stdout as part of the lease's
JSON, or is given in VOLCANO_LOCK_TOKEN. It is printed only where nothing else keeps it.

Nobody renews such a lease but the script. `run` does all of this by itself and stops the work on a loss.
"""

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from volcano_locks.errors import LockHeldError, VolcanoError
from volcano_locks.protocol.arguments import checked_key, checked_ttl, checked_uuid
from volcano_locks.protocol.lease import Lease

from .. import exit_codes
from ..connection import Connection, service_options
from ..contention_message import held_text
from ..error_messages import explained
from ..lease_file import STDIN, LeaseFile, read_lease, record_of
from ..output import held, instant_json, json_line, message
from ..parameters import TTL
from ..wait_options import WaitingCommand, wait_options
from ..wait_progress import Progress

TOKEN_VARIABLE: Final = "VOLCANO_LOCK_TOKEN"  # noqa: S105 (the variable's name)

_LEASE_FILE: Final = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


@click.command(cls=WaitingCommand, short_help="Acquire a lock and print or keep its lease.")
@click.argument("key")
@click.option("--ttl", type=TTL, default="30s", show_default=True, help="Length of the lease.")
@wait_options
@click.option(
    "--lease-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Keep the lease here (mode 0600) instead of printing it.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing of a lock that is held or waited for.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def acquire(
    *,
    key: str,
    ttl: int,
    wait: float,
    lease_file: Path | None,
    quiet: bool,
    as_json: bool,
    connection: Connection,
) -> None:
    """Acquire the lock KEY for --ttl.

    Without --lease-file the lease is printed as JSON, with the owner token
    that renews and releases it: keep that secret. Nothing renews the lease
    but you; `run` does it by itself.

    A file that keeps the lease of another lock is not overwritten until a
    second after that lease's expiry, by this machine's clock; release it or
    name another file. What is no lease is not overwritten at all.

    \b
    Examples:
      volcano-locks acquire deploy --ttl 5m --lease-file deploy.lease
      volcano-locks release --lease-file deploy.lease

    \b
      lease=$(volcano-locks acquire deploy --ttl 5m)
      echo "$lease" | volcano-locks release --lease-file -
    """
    with explained(connection), connection.client() as client:

        def granted() -> Lease:
            try:
                with Progress(connection, key) as progress:
                    if wait and not quiet:
                        progress.begin()
                    return client.locks.acquire(key, ttl=ttl, wait=wait)
            except LockHeldError:
                told = None if quiet else held_text(client, key, undone="nothing was acquired", waited=wait > 0)
                raise exit_codes.Stop(told, exit_codes.NOT_ACQUIRED) from None

        if lease_file is None:
            lease = granted()
            try:
                _heed_no_interrupts()
                json_line(record_of(lease))
            except BaseException:  # nobody has its owner token
                with suppress(VolcanoError):
                    client.locks.release(key, lease)
                raise
            return
        with LeaseFile(lease_file, key) as room:
            lease = granted()
            _heed_no_interrupts()
            try:
                room.keep(lease)
            except exit_codes.Stop as stop:
                client.locks.release(key, lease)
                raise exit_codes.Stop(f"{stop.message}\n{key} was released again", stop.exit_code) from None
            except OSError as error:
                client.locks.release(key, lease)
                reason = f"cannot write {lease_file}: {error.strerror}; the lock was released"
                raise exit_codes.Stop(reason, exit_codes.INPUT_OUTPUT) from None
        _print(lease, as_json)


@click.command(short_help="Set a lease's expiry anew.")
@click.argument("key", required=False)
@click.option("--ttl", type=TTL, help="Length from now on; the lease's own when left out.")
@click.option(
    "--lease-file", type=_LEASE_FILE, metavar="PATH", help="The lease to renew; `-` reads stdin and prints the new one."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def renew(
    *,
    key: str | None,
    ttl: int | None,
    lease_file: Path | None,
    as_json: bool,
    connection: Connection,
) -> None:
    """Renew a lease: it ends --ttl from now.

    The lease is in --lease-file, or KEY is given with the owner token in
    VOLCANO_LOCK_TOKEN. Exit code 76: the lease is lost; stop the work.

    \b
    Examples:
      volcano-locks renew --lease-file deploy.lease --ttl 5m
      VOLCANO_LOCK_TOKEN=… volcano-locks renew deploy --ttl 5m
    """
    if lease_file is None and ttl is None:
        raise click.UsageError("--ttl is needed when there is no --lease-file to tell it")
    with explained(connection), connection.client() as client:
        lease = _lease(key, lease_file, ttl)
        if lease_file is None:
            _print(client.locks.renew(lease.key, lease, ttl=ttl), as_json)
        elif lease_file == STDIN:
            json_line(record_of(client.locks.renew(lease.key, lease, ttl=ttl)))
        else:
            renewed = client.locks.renew(lease.key, lease, ttl=ttl)
            _keep_renewed(renewed, lease_file)
            _print(renewed, as_json)


@click.command(short_help="Give a lease back.")
@click.argument("key", required=False)
@click.option("--lease-file", type=_LEASE_FILE, metavar="PATH", help="The lease to release; `-` reads stdin.")
@service_options
def release(*, key: str | None, lease_file: Path | None, connection: Connection) -> None:
    """Release a lock; the lease file, if any, is removed.

    The lease is in --lease-file, or KEY is given with the owner token in
    VOLCANO_LOCK_TOKEN. Exit code 76: somebody else holds the lock by now.

    \b
    Examples:
      volcano-locks release --lease-file deploy.lease
      VOLCANO_LOCK_TOKEN=… volcano-locks release deploy
    """
    with explained(connection), connection.client() as client:
        lease = _lease(key, lease_file, None)
        client.locks.release(lease.key, lease)
    if lease_file is not None and lease_file != STDIN:
        lease_file.unlink(missing_ok=True)


def _lease(key: str | None, lease_file: Path | None, ttl: int | None) -> Lease:
    """The lease that is meant. With a bare token its other fields are only place holders: no request sends them."""
    if lease_file is not None:
        lease = read_lease(lease_file)
        if key is not None and key != lease.key:
            raise exit_codes.Stop(
                f"the lease is one of {lease.key}, not of {key}; nothing was changed", exit_codes.USAGE
            )
        return lease
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if key is None or not token:
        raise exit_codes.Stop(
            f"which lease? Pass --lease-file PATH, or KEY with {TOKEN_VARIABLE} set", exit_codes.USAGE
        )
    owner = checked_uuid(TOKEN_VARIABLE, token)
    return Lease(checked_key(key), owner, checked_ttl(ttl or 30), datetime.now(UTC), fencing_token=1)


def _heed_no_interrupts() -> None:
    """To the end of the process. Who has the lease is not to be told that the acquire was interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _keep_renewed(lease: Lease, lease_file: Path) -> None:
    """A file that cannot be rewritten still holds the token, so the lease is not lost with it."""
    try:
        with LeaseFile(lease_file, lease.key) as room:
            room.keep(lease)
    except (OSError, exit_codes.Stop):
        message(f"renewed, but {lease_file} could not be rewritten: it shows the old expiry")


def _print(lease: Lease, as_json: bool) -> None:
    if as_json:
        json_line({"expires_at": instant_json(lease.expires_at), "fencing_token": lease.fencing_token})
    else:
        held(lease.key, lease.expires_at, lease.fencing_token)
