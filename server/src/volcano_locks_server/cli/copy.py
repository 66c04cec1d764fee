"""`volcano-locks copy`: all that one store remembers, into another one that is empty (KEEP rules).

What is copied is read back from the target and compared, so that "copied" is something that was seen. Progress is
told on stderr, for those who wait; no URL is shown with its password, and no digest is shown at all.
"""

import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import click

from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.exit_codes import INTERNAL, UNAVAILABLE, USAGE, Stop
from volcano_locks.cli.output import json_line, line, message

from .running import explained

if TYPE_CHECKING:
    from ..ports.snapshot import Entry, Snapshot

TELL_EVERY_SECONDS: Final = 2.0


@click.command(short_help="Copy everything from one store to another.")
@click.option(
    "--from",
    "source",
    metavar="URL",
    envvar="VOLCANO_LOCKS_COPY_FROM",
    required=True,
    help="The store to read, which stays as it is; else VOLCANO_LOCKS_COPY_FROM.",
)
@click.option(
    "--to",
    "target",
    metavar="URL",
    envvar="VOLCANO_LOCKS_COPY_TO",
    required=True,
    help="The store to fill, which must be empty; else VOLCANO_LOCKS_COPY_TO.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was copied as JSON.")
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy projects, service keys and locks from one store to another.

    Stop every server of both stores first. Service keys go on working,
    leases go on under their holders, and fencing tokens go on rising. The
    copy is whole or not there at all; begin again after a failure.

    A URL with a password in it belongs into the variable: every user of the
    machine can read arguments.

    \b
    Examples:
      volcano-locks copy --from sqlite:///locks.db \\
          --to postgresql://locks@db.internal/locks

    \b
    Exit codes:
      0   copied, read back and found the same
      64  an option is wrong, or the store to read is not there
      69  a store cannot be used, or the one to fill is not empty
      70  the copy is not what was read: do not use it
    """
    with explained():
        counted = run_to_end(lambda: _copy(source, target))
    if as_json:
        json_line(counted)
    else:
        line(f"copied {_told(counted)}")


async def _copy(source_url: str, target_url: str) -> dict[str, int]:
    """How many of each were copied. Stop or StoreUnavailableError where nothing was."""
    from ..ports.clock import SystemClock  # noqa: PLC0415

    if source_url == target_url:
        raise Stop("--from and --to name the same store", USAGE)
    async with AsyncExitStack() as opened:
        source = await _opened(source_url, "--from", opened)
        target = await _opened(target_url, "--to", opened)
        refuse_clock_ahead(await target.newest_ms(), SystemClock().now_ms())
        read, found = Tally("copied"), Tally("compared")
        await target.load(read.over(source.pages()), await source.newest_ms())
        async for _ in found.over(target.pages()):
            pass
    if read != found:
        raise Stop(
            f"the copy differs from what was read: read {_told(read.counted)}, found {_told(found.counted)}; "
            "do not use it, and report this",
            INTERNAL,
        )
    return read.counted


def refuse_clock_ahead(target_ms: int, now_ms: int) -> None:
    """Stop where the leases, judged by the clock of the store to fill, would end more than their grace too early."""
    from ..rules.lease import GRACE_MS  # noqa: PLC0415

    if target_ms > now_ms + GRACE_MS:
        raise Stop(
            f"the clock of the store to fill is {(target_ms - now_ms) / 1_000:.1f} s ahead of this machine's, so "
            "leases would end too early there: set the clocks right, then copy again",
            UNAVAILABLE,
        )


async def _opened(url: str, flag: str, opened: AsyncExitStack) -> "Snapshot":
    """The store, closed with `opened`. Stop where it is none that can be copied."""
    from ..ports.clock import SystemClock  # noqa: PLC0415
    from ..stores import open_store, shown_url, sqlite_path  # noqa: PLC0415

    try:
        path = sqlite_path(url)
        if url == "memory://":
            raise Stop(f"{flag}: memory:// keeps nothing that could be copied", USAGE)
        if path is not None and flag == "--from" and not path.exists():
            raise Stop(f"{flag}: there is no file {path}", USAGE)
        store = await open_store(url, SystemClock())
    except ValueError as error:
        raise Stop(f"{flag}: {error}", USAGE) from None
    opened.push_async_callback(store.close)
    if store.snapshot is None:
        raise Stop(f"{flag}: {shown_url(url)} cannot be copied in this release", USAGE)
    return store.snapshot


class Tally:
    """How many entries went by, and the sum of their hashes, which is the same in any order."""

    def __init__(self, doing: str) -> None:
        self._doing: Final = doing
        self._kinds: Counter[str] = Counter()
        self._sum = 0
        self._tell_at = time.monotonic() + TELL_EVERY_SECONDS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tally) and (self._kinds, self._sum) == (other._kinds, other._sum)

    __hash__ = None  # type: ignore[assignment]

    @property
    def counted(self) -> dict[str, int]:
        """How many of each kind."""
        names = {"projects": "Project", "service_keys": "StoredServiceKey", "locks": "StoredLock"}
        return {name: self._kinds[kind] for name, kind in names.items()}

    async def over(self, pages: "AsyncIterator[Sequence[Entry]]") -> "AsyncIterator[Sequence[Entry]]":
        """The same pages, counted as they go by; long work says where it is."""
        async for page in pages:
            for entry in page:
                self._count(entry)
            if time.monotonic() >= self._tell_at:
                self._tell_at = time.monotonic() + TELL_EVERY_SECONDS
                message(f"{self._doing} so far: {_told(self.counted)}")
            yield page

    def _count(self, entry: "Entry") -> None:
        import msgspec  # noqa: PLC0415

        self._kinds[type(entry).__name__] += 1
        self._sum = (
            self._sum + int.from_bytes(hashlib.sha256(msgspec.msgpack.encode(entry, enc_hook=str)).digest())
        ) % 2**256


def _told(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counted.items())
