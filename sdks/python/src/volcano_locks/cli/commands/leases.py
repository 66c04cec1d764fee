"""`acquire`, `renew`, `release`: one request each, for scripts that hold a lock over several steps (CLI-10).

The owner token is a secret that the script keeps between the steps. It is never an argument, because every user of the
machine can read arguments. It is in a lease file, in the lease's JSON on stdin or stdout, or in VOLCANO_LOCK_TOKEN. It
is printed only if it is not stored in a lease file.

Only the script renews such a lease. `run` renews by itself and stops the work on a loss.
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
from ..contention_message import lock_held_message
from ..error_messages import exit_on_client_error
from ..lease_file import STDIN, LeaseFile, lease_record, read_lease
from ..output import effect_is_done, instant_json, message, print_held_lock, print_json
from ..parameters import TTL
from ..wait_options import WaitingCommand, wait_options
from ..wait_progress import WaitProgress

TOKEN_VARIABLE: Final = "VOLCANO_LOCK_TOKEN"  # noqa: S105 (the variable's name)

_LEASE_FILE: Final = click.Path(dir_okay=False, allow_dash=True, path_type=Path)


@click.command(cls=WaitingCommand, short_help="Acquire a lock and print or store its lease.")
@click.argument("key")
@click.option("--ttl", type=TTL, default="30s", show_default=True, help="Length of the lease.")
@wait_options
@click.option(
    "--lease-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Store the lease here (mode 0600) instead of printing it.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print no message about a held lock or a wait.")
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
    that renews and releases it: keep that secret. The lease is not renewed
    automatically; `run` does that.

    If the file contains another lock's lease, it is not overwritten until a
    second after that lease's expiry, by this machine's clock. A file that does
    not contain a lease is never overwritten.

    \b
    Examples:
      volcano-locks acquire deploy --ttl 5m --lease-file deploy.lease
      volcano-locks release --lease-file deploy.lease

    \b
      lease=$(volcano-locks acquire deploy --ttl 5m)
      echo "$lease" | volcano-locks release --lease-file -
    """
    with exit_on_client_error(connection), connection.client() as client:

        def granted() -> Lease:
            try:
                with WaitProgress(connection, key) as progress:
                    if wait and not quiet:
                        progress.begin()
                    return client.locks.acquire(key, ttl=ttl, wait=wait)
            except LockHeldError as held:
                text = None if quiet else lock_held_message(held, key, "nothing was acquired", waited=wait > 0)
                raise exit_codes.Exit(text, exit_codes.NOT_ACQUIRED) from None

        if lease_file is None:
            lease = granted()
            try:
                _ignore_interrupts()
                print_json(lease_record(lease))
            except BaseException:  # its owner token would be lost
                with suppress(VolcanoError):
                    client.locks.release(key, lease)
                raise
            return
        with LeaseFile(lease_file, key) as file:
            lease = granted()
            _ignore_interrupts()
            try:
                file.write(lease)
            except exit_codes.Exit as stop:
                client.locks.release(key, lease)
                raise exit_codes.Exit(f"{stop.message}\n{key} was released again", stop.exit_code) from None
            except OSError as error:
                client.locks.release(key, lease)
                reason = f"cannot write {lease_file}: {error.strerror}; {key} was released again"
                raise exit_codes.Exit(reason, exit_codes.INPUT_OUTPUT) from None
        effect_is_done()
        _print(lease, as_json)


@click.command(short_help="Renew a lease.")
@click.argument("key", required=False)
@click.option("--ttl", type=TTL, help="Length of the lease from now. Default: its current TTL.")
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
    """Renew a lease: it then expires --ttl from now.

    Pass the lease in --lease-file, or pass KEY and set the owner token in
    VOLCANO_LOCK_TOKEN. Exit code 76: the lease is lost; stop the work.

    \b
    Examples:
      volcano-locks renew --lease-file deploy.lease --ttl 5m
      VOLCANO_LOCK_TOKEN=… volcano-locks renew deploy --ttl 5m
    """
    if lease_file is None and ttl is None:
        raise click.UsageError("--ttl is required without --lease-file")
    with exit_on_client_error(connection), connection.client() as client:
        lease = _lease(key, lease_file, ttl)
        if lease_file is None:
            renewed = client.locks.renew(lease.key, lease, ttl=ttl)
            effect_is_done()
            _print(renewed, as_json)
        elif lease_file == STDIN:
            print_json(lease_record(client.locks.renew(lease.key, lease, ttl=ttl)))
        else:
            renewed = client.locks.renew(lease.key, lease, ttl=ttl)
            _store_renewed(renewed, lease_file)
            effect_is_done()
            _print(renewed, as_json)


@click.command(short_help="Release a lock.")
@click.argument("key", required=False)
@click.option("--lease-file", type=_LEASE_FILE, metavar="PATH", help="The lease to release; `-` reads stdin.")
@service_options
def release(*, key: str | None, lease_file: Path | None, connection: Connection) -> None:
    """Release a lock, and remove the lease file if there is one.

    Pass the lease in --lease-file, or pass KEY and set the owner token in
    VOLCANO_LOCK_TOKEN. Exit code 76: another client holds the lock by now. A lock
    that is free already, or that was never acquired, is a success.

    \b
    Examples:
      volcano-locks release --lease-file deploy.lease
      VOLCANO_LOCK_TOKEN=… volcano-locks release deploy
    """
    with exit_on_client_error(connection), connection.client() as client:
        lease = _lease(key, lease_file, None)
        client.locks.release(lease.key, lease)
    if lease_file is not None and lease_file != STDIN:
        lease_file.unlink(missing_ok=True)


def _lease(key: str | None, lease_file: Path | None, ttl: int | None) -> Lease:
    """The lease to act on. With a bare token the other fields are placeholders that no request sends."""
    if lease_file is not None:
        lease = read_lease(lease_file)
        if key is not None and key != lease.key:
            raise exit_codes.Exit(f"the lease is for {lease.key}, not for {key}; nothing was changed", exit_codes.USAGE)
        return lease
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if key is None or not token:
        raise exit_codes.Exit(
            f"no lease given: pass --lease-file PATH, or pass KEY and set {TOKEN_VARIABLE}", exit_codes.USAGE
        )
    owner = checked_uuid(TOKEN_VARIABLE, token)
    return Lease(checked_key(key), owner, checked_ttl(ttl or 30), datetime.now(UTC), fencing_token=1)


def _ignore_interrupts() -> None:
    """Until the process ends: once the lease is stored, the acquire must not be reported as interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _store_renewed(lease: Lease, lease_file: Path) -> None:
    """Stores the renewed lease. If that fails, the old file still has the token, so the lease is not lost."""
    try:
        with LeaseFile(lease_file, lease.key) as file:
            file.write(lease)
    except (OSError, exit_codes.Exit):
        message(f"renewed, but {lease_file} could not be rewritten; it still has the old expiry")


def _print(lease: Lease, as_json: bool) -> None:
    if as_json:
        print_json({"expires_at": instant_json(lease.expires_at), "fencing_token": lease.fencing_token})
    else:
        print_held_lock(lease.key, lease.expires_at, lease.fencing_token)
