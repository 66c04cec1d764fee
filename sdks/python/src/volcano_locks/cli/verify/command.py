"""`volcano-locks verify`: runs the checks and reports the results (CLI-17 to CLI-19)."""

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from volcano_locks.cli import exit_codes, output
from volcano_locks.cli.connection import Connection, service_options
from volcano_locks.cli.error_messages import exit_on_client_error
from volcano_locks.cli.event_loop import run_to_end
from volcano_locks.cli.parameters import Duration

if TYPE_CHECKING:
    from .check import Check
    from .runner import CheckResult

TTL_SECONDS_MIN: Final = 5
TTL_SECONDS_MAX: Final = 20
PROBE_SECONDS_MAX: Final = 4.0

_TTL: Final = Duration(TTL_SECONDS_MIN, TTL_SECONDS_MAX)


@click.command(short_help="Check that a live service keeps its promises.")
@click.option("--only", type=click.Choice(["public", "ours"]), help="Only the public API's promises, or only ours.")
@click.option("--ttl", type=_TTL, default="5s", show_default=True, help="Length of the leases, 5s to 20s.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@service_options
def verify(*, only: str | None, ttl: int, as_json: bool, connection: Connection) -> None:
    """Check a live service on scratch locks, with a line for each promise.

    `public` promises are those of the public API, which every compatible
    service keeps; `ours` are this project's own. Exit code 0: all hold. 1: at
    least one does not hold or was inconclusive.

    It takes a few seconds more than --ttl, at most 40 in all, and sends about 150
    requests, which count against the project's quota. Its locks are named
    volcano-locks-verify:…; they are freed, or else expire.

    The service key is never an argument, because every user of the machine can
    read arguments: set VOLCANO_SERVICE_KEY or pass --service-key-file.

    \b
    Examples:
      volcano-locks verify --api-url https://locks.example.com
      volcano-locks verify --only public --json
    """
    from .all_checks import CHECKS  # noqa: PLC0415 - imports the HTTP library, which `--help` does not need

    output.effect_is_done()  # the exit code is the verdict
    checks = [check for check in CHECKS if only in (None, check.whose)]
    # An unreachable server or a refused key has an exit code of its own and is not a failed promise.
    with exit_on_client_error(connection), connection.client(PROBE_SECONDS_MAX) as client:
        client.locks.get("volcano-locks-verify")
    reporter = _Reporter(checks, ttl, lines=not as_json)
    results = run_to_end(lambda: _run(connection, checks, ttl, reporter))
    failed = [result for result in results if not result.holds]
    if as_json:
        output.print_json(_as_json(connection, results))
    if failed:
        raise exit_codes.Exit(
            f"{len(failed)} of {len(results)} promises do not hold or were inconclusive", exit_codes.NOT_DONE
        )
    output.message(f"all {len(results)} promises hold", colour="green")


async def _run(
    connection: Connection, checks: "Sequence[Check]", ttl: int, reporter: "_Reporter"
) -> "list[CheckResult]":
    from volcano_locks.clock import SystemClock  # noqa: PLC0415 - see verify

    from .http_client import HttpClient  # noqa: PLC0415 - see verify
    from .runner import ServiceUnderTest, new_run_name, run_all  # noqa: PLC0415 - see verify

    options: dict[str, Any] = {"api_url": connection.api_url, "service_key": connection.secret}
    async with HttpClient(connection.api_url, connection.secret, SystemClock()) as http:
        progress = asyncio.create_task(reporter.progress())
        try:
            return await run_all(ServiceUnderTest(http, ttl, options, new_run_name()), checks, reporter.result)
        finally:
            progress.cancel()
            reporter.clear()


class _Reporter:
    """Prints results on stdout in the order of the checks, each as soon as possible, and progress on stderr."""

    def __init__(self, checks: "Sequence[Check]", ttl: int, *, lines: bool) -> None:
        self._checks = checks
        self._print_lines = lines
        self._results: dict[str, CheckResult] = {}
        self._printed = 0
        self._width = max(len(check.name) for check in checks)
        self._on_terminal = sys.stderr.isatty()
        output.message(f"{len(checks)} checks on scratch locks with leases of {ttl} s; this takes about {ttl + 3} s")

    def result(self, result: "CheckResult") -> None:
        """Takes a result and prints all whose turn it is."""
        self._results[result.check.name] = result
        self.clear()
        while (
            self._print_lines
            and self._printed < len(self._checks)
            and self._checks[self._printed].name in self._results
        ):
            output.print_line(self._line(self._results[self._checks[self._printed].name]))
            self._printed += 1

    async def progress(self) -> None:
        """Shows how many are left, a few times a second, on a terminal only."""
        while self._on_terminal:
            left = len(self._checks) - len(self._results)
            click.echo(f"\r… {left} left, waiting for leases to expire ", nl=False, err=True)
            await asyncio.sleep(0.3)

    def clear(self) -> None:
        """Clears the progress line."""
        if self._on_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _line(self, result: "CheckResult") -> str:
        verdict = "ok" if result.holds else "FAILED"
        name = result.check.name.ljust(self._width)
        return f"{verdict:6}  {result.check.whose:6}  {name}  {result.seconds:4.1f} s  {result.saw}"


def _as_json(connection: Connection, results: "Sequence[CheckResult]") -> dict[str, object]:
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
