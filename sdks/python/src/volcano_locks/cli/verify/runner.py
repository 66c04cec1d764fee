"""Running the checks: those that wait all side by side, the others beside them a few at once; within SECONDS_MAX.

A check that breaks, hangs or finds the server broken costs the others nothing. Whatever it did, its lock is
freed when it ends, and what cannot be freed lapses with its short lease.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from volcano_locks.errors import VolcanoError

from .check import Check, Room
from .http_client import Broken, Unjudged, Wire

KEY_PREFIX: Final = "volcano-locks-verify"
SECONDS_MAX: Final = 30.0
AT_ONCE_MAX: Final = 6
CLEAN_UP_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check. `saw` is for people."""

    check: Check
    holds: bool
    saw: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Site:
    """One run against one service: how to reach it, and the length of a lease."""

    wire: Wire
    ttl_seconds: int
    client_options: dict[str, Any]
    run_name: str


def new_run_name() -> str:
    """The beginning of all keys of one run."""
    return f"{KEY_PREFIX}:{secrets.token_hex(6)}"


async def run_all(site: Site, checks: Sequence[Check], tell: Callable[[Result], None]) -> list[Result]:
    """All results in the order of `checks`; `tell` gets each as it comes."""
    end = asyncio.get_running_loop().time() + SECONDS_MAX
    few = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(number: int, check: Check) -> Result:
        if check.waits:
            result = await _run(site, number, check, end)
        else:
            async with few:
                result = await _run(site, number, check, end)
        tell(result)
        return result

    tasks = [asyncio.create_task(one(number, check)) for number, check in enumerate(checks)]
    try:
        return await asyncio.gather(*tasks)
    except BaseException as failure:
        if not isinstance(failure, asyncio.CancelledError):  # of that they have heard
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # they free their locks while they can be reached
        raise


async def _run(site: Site, number: int, check: Check, end: float) -> Result:
    room = Room(site.wire, f"{site.run_name}:{number}", site.ttl_seconds, site.client_options)
    began = room.clock.now()
    try:
        async with asyncio.timeout_at(end):
            holds, saw = True, await check.run(room)
    except Broken as found:
        holds, saw = False, str(found)
    except Unjudged as found:
        holds, saw = False, f"not judged: {found}"
    except VolcanoError as error:
        told = " ".join(str(part) for part in (error.status, error.code) if part)
        holds, saw = False, f"the client raised {type(error).__name__}{f' ({told})' if told else ''}"
    except TimeoutError:
        holds, saw = False, f"not judged: no end within {SECONDS_MAX:.0f} s"
    except Exception as error:  # noqa: BLE001 - one check's accident must not take the others' results away
        holds, saw = False, f"not judged: {type(error).__name__} in the check itself"
    finally:
        seconds = room.clock.now() - began
        await _clean_up(room)
    return Result(check, holds, saw, seconds)


async def _clean_up(room: Room) -> None:
    with contextlib.suppress(Unjudged, TimeoutError):
        async with asyncio.timeout(CLEAN_UP_SECONDS_MAX):
            await room.wire.force_release(room.key)
