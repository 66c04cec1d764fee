"""`volcano-locks verify`: the table of checks, run and told (CLI-17 to CLI-19)."""

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from volcano_locks.cli import exit_codes, output
from volcano_locks.cli.connection import Connection, service_options
from volcano_locks.cli.error_messages import explained
from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.parameters import Duration

if TYPE_CHECKING:
    from .check import Check
    from .runner import Result

TTL_SECONDS_MIN: Final = 5
TTL_SECONDS_MAX: Final = 20
HELLO_SECONDS_MAX: Final = 4.0

_TTL: Final = Duration(TTL_SECONDS_MIN, TTL_SECONDS_MAX)


@click.command(short_help="Check that a service keeps its promises.")
@click.option("--only", type=click.Choice(["public", "ours"]), help="Only the public API's promises, or only ours.")
@click.option("--ttl", type=_TTL, default="5s", show_default=True, help="Length of the leases, 5s to 20s.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def verify(*, only: str | None, ttl: int, as_json: bool, connection: Connection) -> None:
    """Check a live service on throw-away locks, a line for each promise.

    `public` promises are those of the public API, which any service that is
    compatible with it keeps; `ours` are this project's own. Exit code 0: all
    hold. 1: at least one does not, or could not be judged.

    It takes --ttl and a few seconds, less than 40 in all, and sends about 150
    requests, which count against the project's quota. Its locks are called
    volcano-locks-verify:…, are freed, and else lapse by themselves.

    The service key is never an argument, because everybody on the machine can
    read those: it is in VOLCANO_SERVICE_KEY, or in --service-key-file.

    \b
    Examples:
      volcano-locks verify --api-url https://locks.example.com
      volcano-locks verify --only public --json
    """
    from .checks import CHECKS  # noqa: PLC0415 - brings the HTTP library, which `--help` need not wait for

    checks = [check for check in CHECKS if only in (None, check.whose)]
    # Whether anybody is there, and takes the key, is not one of the promises: it has exit codes of its own.
    with explained(connection), connection.client(HELLO_SECONDS_MAX) as client:
        client.locks.get("volcano-locks-verify")
    telling = _Telling(checks, ttl, lines=not as_json)
    results = run_to_end(lambda: _results(connection, checks, ttl, telling))
    failed = [result for result in results if not result.holds]
    if as_json:
        output.json_line(_as_json(connection, results))
    if failed:
        raise exit_codes.Stop(
            f"{len(failed)} of {len(results)} promises do not hold or could not be judged", exit_codes.NOT_DONE
        )
    output.message(f"all {len(results)} promises hold", colour="green")


async def _results(connection: Connection, checks: "Sequence[Check]", ttl: int, telling: "_Telling") -> "list[Result]":
    from volcano_locks.clock import SystemClock  # noqa: PLC0415 - see verify

    from .http_client import Wire  # noqa: PLC0415 - see verify
    from .runner import Site, new_run_name, run_all  # noqa: PLC0415 - see verify

    options: dict[str, Any] = {"api_url": connection.api_url, "service_key": connection.secret}
    async with Wire(connection.api_url, connection.secret, SystemClock()) as wire:
        progress = asyncio.create_task(telling.progress())
        try:
            return await run_all(Site(wire, ttl, options, new_run_name()), checks, telling.result)
        finally:
            progress.cancel()
            telling.clear()


class _Telling:
    """Lines on stdout in the table's order, as soon as all before them are there; progress on stderr meanwhile."""

    def __init__(self, checks: "Sequence[Check]", ttl: int, *, lines: bool) -> None:
        self._checks = checks
        self._lines = lines
        self._came: dict[str, Result] = {}
        self._told = 0
        self._width = max(len(check.name) for check in checks)
        self._on_terminal = sys.stderr.isatty()
        output.message(f"{len(checks)} checks on throw-away locks with leases of {ttl} s, about {ttl + 3} s in all")

    def result(self, result: "Result") -> None:
        """One more is there."""
        self._came[result.check.name] = result
        self.clear()
        while self._lines and self._told < len(self._checks) and self._checks[self._told].name in self._came:
            output.line(self._line(self._came[self._checks[self._told].name]))
            self._told += 1

    async def progress(self) -> None:
        """How many are done, a few times a second, on a terminal only."""
        while self._on_terminal:
            left = len(self._checks) - len(self._came)
            click.echo(f"\r… {left} left, waiting for leases to lapse ", nl=False, err=True)
            await asyncio.sleep(0.3)

    def clear(self) -> None:
        """Take the progress away, so that what comes next has the line to itself."""
        if self._on_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _line(self, result: "Result") -> str:
        verdict = "ok" if result.holds else "FAILED"
        name = result.check.name.ljust(self._width)
        return f"{verdict:6}  {result.check.whose:6}  {name}  {result.seconds:4.1f} s  {result.saw}"


def _as_json(connection: Connection, results: "Sequence[Result]") -> dict[str, object]:
    return {
        "api_url": connection.api_url,
        "holds": all(result.holds for result in results),
        "checks": [
            {
                "name": result.check.name,
                "whose": result.check.whose,
                "rules": list(result.check.rules),
                "holds": result.holds,
                "saw": result.saw,
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
    }
