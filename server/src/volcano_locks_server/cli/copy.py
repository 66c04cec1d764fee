"""`volcano-locks copy`: copies a whole store into another, empty one (KEEP-1 to KEEP-4).

The target is read back and compared, so "copied" is verified. Progress goes to stderr. No URL is shown with its
password, and no digest is shown.
"""

import hashlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.exit_codes import INTERNAL, UNAVAILABLE, USAGE, Exit
from volcano_locks.cli.output import effect_is_done, message, print_json, print_line

from .startup import exit_on_startup_error

if TYPE_CHECKING:
    from ..ports.snapshot import Entry, Snapshot

PROGRESS_EVERY_SECONDS: Final = 2.0


@click.command(short_help="Copy everything from one store to another.")
@click.option(
    "--from",
    "source",
    metavar="URL",
    envvar="VOLCANO_LOCKS_COPY_FROM",
    required=True,
    help="The store to read, which is not changed. Default: VOLCANO_LOCKS_COPY_FROM.",
)
@click.option(
    "--to",
    "target",
    metavar="URL",
    envvar="VOLCANO_LOCKS_COPY_TO",
    required=True,
    help="The store to fill, which must be empty. Default: VOLCANO_LOCKS_COPY_TO.",
)
@click.option(
    "--allow-plaintext-store/--no-allow-plaintext-store",
    envvar="VOLCANO_LOCKS_ALLOW_PLAINTEXT_STORE",
    help="Connect to stores beyond this machine without TLS.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def copy(source: str, target: str, allow_plaintext_store: bool, as_json: bool) -> None:
    """Copy projects, keys, admin tokens and locks from one store to another.

    Stop every server of both stores first. Service keys stay valid, holders
    keep their leases, and fencing tokens keep rising. Either everything is
    copied or nothing; after a failure, run the command again. Of the history,
    only the last hold of each lock is copied.

    A URL with a password is refused in an argument, which every user of the
    machine can read: put it into the variable.

    \b
    Examples:
      volcano-locks copy --from sqlite:///locks.db \\
          --to 'postgresql://locks@db/locks?sslmode=verify-full'

    \b
    Exit codes:
      0   copied and verified
      64  an option is invalid, or the source does not exist
      69  a store cannot be used, or the target is not empty
      70  the copy differs from the source: do not use it
    """
    _refuse_exposing("source", "--from", source, allow_plaintext_store)
    _refuse_exposing("target", "--to", target, allow_plaintext_store)
    with exit_on_startup_error():
        counts = run_to_end(lambda: _copy(source, target))
    effect_is_done()
    message("of the history, only the last hold of each lock is copied")
    if as_json:
        print_json(counts)
    else:
        print_line(f"copied {_counts_text(counts)}")


def _refuse_exposing(parameter: str, flag: str, url: str, allow_plaintext_store: bool) -> None:
    """Exit 64 for a URL that exposes a password or, without TLS, the traffic (CLI-37)."""
    from ..runtime.store_setting import StoreRefusedError, refuse_password, refuse_plaintext  # noqa: PLC0415

    try:
        if click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            refuse_password(url, flag, f"VOLCANO_LOCKS_COPY_{flag[2:].upper()}")
        if not allow_plaintext_store:
            refuse_plaintext(url, flag, os.environ)
    except StoreRefusedError as error:
        raise Exit(str(error), USAGE) from None


async def _copy(source_url: str, target_url: str) -> dict[str, int]:
    """Returns the number of copied entries by kind. Raises Exit or StoreUnavailableError if the copy failed."""
    from ..ports.clock import SystemClock  # noqa: PLC0415

    if source_url == target_url:
        raise Exit("--from and --to name the same store", USAGE)
    async with AsyncExitStack() as opened:
        source = await _opened(source_url, "--from", opened)
        target = await _opened(target_url, "--to", opened)
        refuse_clock_ahead(await target.newest_ms(), SystemClock().now_ms())
        read, found = Tally("copied"), Tally("compared")
        history = await source.clock_history()
        await target.load(read.count_pages(source.pages()), await source.newest_ms(), history)
        async for _ in found.count_pages(target.pages()):
            pass
    if read != found:
        raise Exit(
            f"the copy differs from the source: read {_counts_text(read.counts)}, found {_counts_text(found.counts)}; "
            "do not use it, and report this",
            INTERNAL,
        )
    return read.counts


def refuse_clock_ahead(target_ms: int, now_ms: int) -> None:
    """Exit 69 if the target's clock would end the leases earlier than their grace allows."""
    from ..rules.lease import GRACE_MS  # noqa: PLC0415

    if target_ms > now_ms + GRACE_MS:
        raise Exit(
            f"the target's clock is {(target_ms - now_ms) / 1_000:.1f} s ahead of this machine's, so leases would end "
            "too early there: correct the clocks, then copy again",
            UNAVAILABLE,
        )


async def _opened(url: str, flag: str, opened: AsyncExitStack) -> "Snapshot":
    """Opens the store, which `opened` closes. Exit 64 if it cannot be copied."""
    from ..ports.clock import SystemClock  # noqa: PLC0415
    from ..stores import open_store, shown_url, sqlite_path  # noqa: PLC0415

    try:
        path = sqlite_path(url)
        if url == "memory://":
            raise Exit(f"{flag}: memory:// keeps nothing to copy", USAGE)
        if path is not None and flag == "--from" and not path.exists():
            raise Exit(f"{flag}: there is no file {path}", USAGE)
        store = await open_store(url, SystemClock())
    except ValueError as error:
        raise Exit(f"{flag}: {error}", USAGE) from None
    opened.push_async_callback(store.close)
    if store.snapshot is None:
        raise Exit(f"{flag}: {shown_url(url)} cannot be copied in this release", USAGE)
    return store.snapshot


@dataclass(slots=True)
class Tally:
    """Counts entries and adds up their hashes; the sum does not depend on the order."""

    action: str = field(compare=False)
    kinds: Counter[str] = field(default_factory=Counter)
    sum: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of entries of each kind."""
        names = {
            "projects": "Project",
            "service_keys": "StoredServiceKey",
            "admin_tokens": "StoredAdminToken",
            "audit_entries": "AuditEntry",
            "locks": "StoredLock",
        }
        return {name: self.kinds[kind] for name, kind in names.items()}

    async def count_pages(self, pages: "AsyncIterator[Sequence[Entry]]") -> "AsyncIterator[Sequence[Entry]]":
        """Yields the same pages and counts them; reports progress on long runs."""
        progress_at = time.monotonic() + PROGRESS_EVERY_SECONDS
        async for page in pages:
            for entry in page:
                self._count(entry)
            if time.monotonic() >= progress_at:
                progress_at = time.monotonic() + PROGRESS_EVERY_SECONDS
                message(f"{self.action} so far: {_counts_text(self.counts)}")
            yield page

    def _count(self, entry: "Entry") -> None:
        import msgspec  # noqa: PLC0415

        self.kinds[type(entry).__name__] += 1
        self.sum = (
            self.sum + int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(entry, enc_hook=str)).digest())
        ) % 2**256


def _counts_text(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
