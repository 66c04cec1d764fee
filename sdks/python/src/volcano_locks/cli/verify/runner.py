"""Runs the checks within SECONDS_MAX: waiting checks all at once, the others beside them a few at a time.

A check that fails, hangs or finds the server broken does not affect the others. Its lock is freed when it ends; if
that fails, its short lease expires.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from volcano_locks.errors import VolcanoError

from .check import Check, ScratchLock
from .http_client import BrokenPromise, HttpClient, Inconclusive

KEY_PREFIX: Final = "volcano-locks-verify"
SECONDS_MAX: Final = 30.0
AT_ONCE_MAX: Final = 6
CLEAN_UP_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. `saw` is for people."""

    check: Check
    holds: bool
    saw: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ServiceUnderTest:
    """One run against one service: how to reach it, and the TTL of the leases."""

    http: HttpClient
    ttl_seconds: int
    client_options: dict[str, Any]
    run_name: str


def new_run_name() -> str:
    """The prefix of all keys of one run."""
    return f"{KEY_PREFIX}:{secrets.token_hex(6)}"


async def run_all(
    service: ServiceUnderTest, checks: Sequence[Check], report: Callable[[CheckResult], None]
) -> list[CheckResult]:
    """All results in the order of `checks`; `report` gets each as soon as it is known."""
    end = asyncio.get_running_loop().time() + SECONDS_MAX
    few = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(number: int, check: Check) -> CheckResult:
        if check.waits:
            result = await _run(service, number, check, end)
        else:
            async with few:
                result = await _run(service, number, check, end)
        report(result)
        return result

    tasks = [asyncio.create_task(one(number, check)) for number, check in enumerate(checks)]
    try:
        return await asyncio.gather(*tasks)
    except BaseException as failure:
        if not isinstance(failure, asyncio.CancelledError):  # which cancelled the tasks already
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # they free their locks while the client is open
        raise


async def _run(service: ServiceUnderTest, number: int, check: Check, end: float) -> CheckResult:
    lock = ScratchLock(service.http, f"{service.run_name}:{number}", service.ttl_seconds, service.client_options)
    began = lock.clock.now()
    try:
        async with asyncio.timeout_at(end):
            holds, saw = True, await check.run(lock)
    except BrokenPromise as found:
        holds, saw = False, str(found)
    except Inconclusive as found:
        holds, saw = False, f"inconclusive: {found}"
    except VolcanoError as error:
        details = " ".join(str(part) for part in (error.status, error.code) if part)
        holds, saw = False, f"the client raised {type(error).__name__}{f' ({details})' if details else ''}"
    except TimeoutError:
        holds, saw = False, f"inconclusive: not finished within {SECONDS_MAX:.0f} s"
    except Exception as error:  # noqa: BLE001 - an error in one check must not lose the others' results
        holds, saw = False, f"inconclusive: {type(error).__name__} in the check itself"
    finally:
        seconds = lock.clock.now() - began
        await _clean_up(lock)
    return CheckResult(check, holds, saw, seconds)


async def _clean_up(lock: ScratchLock) -> None:
    with contextlib.suppress(Inconclusive, TimeoutError):
        async with asyncio.timeout(CLEAN_UP_SECONDS_MAX):
            await lock.http.force_release(lock.key)
