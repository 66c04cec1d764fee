"""Checks around the expiry, which last as long as a lease.

A lease requested at `sent_at` and granted at `received_at` expires between `sent_at + ttl` and `received_at + ttl`. A
request about an interval is sent once the interval has surely begun, and counts only if its response arrived before the
interval can have ended.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from .check import Checks, ScratchLock, expect_lost, new_token
from .http_client import BrokenPromise, Inconclusive, TimedResponse, parse_lease, parse_state
from .ownership_checks import expect_higher_token

CHECKS: Final = Checks()
MARGIN_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 1.0
INTO_INTERVAL_SECONDS: Final = 0.15


@CHECKS.add("no extension in the margin", "public", "LEASE-5", "LEASE-8", waits=True)
async def no_extension_in_the_margin(lock: ScratchLock) -> str:
    """In the last second before expiry neither a renewal nor a repeated acquire extends the lease."""
    token = new_token()
    granted = await _granted(lock, token)
    await lock.sleep_until(granted.received_at + lock.ttl_seconds - MARGIN_SECONDS + INTO_INTERVAL_SECONDS)
    renewal, repeat = await asyncio.gather(
        lock.http.renew(lock.key, token, lock.ttl_seconds),
        lock.http.acquire(lock.key, token, lock.ttl_seconds),
    )
    expect_lost(renewal, "a renewal in the last second before expiry")
    _in_time((renewal, repeat), granted.sent_at + lock.ttl_seconds)  # served after its grace, a repeat may win
    expect_lost(repeat, "a repeated acquire in the last second before expiry")
    return "renewal and repeated acquire in the last second: lock_ownership_lost"


@CHECKS.add("no takeover in the grace", "public", "LEASE-6", "LEASE-12", waits=True)
async def no_takeover_in_the_grace(lock: ScratchLock) -> str:
    """In the second after expiry the lock cannot be taken over, and a read returns held."""
    granted = await _granted(lock, new_token())
    await lock.sleep_until(granted.received_at + lock.ttl_seconds + INTO_INTERVAL_SECONDS)
    early, read = await asyncio.gather(
        lock.http.acquire(lock.key, new_token(), lock.ttl_seconds), lock.http.read(lock.key)
    )
    _in_time((early, read), granted.sent_at + lock.ttl_seconds + GRACE_SECONDS)
    early.expect(409, "lock_held", to="another's acquire within a second after expiry")
    if not parse_state(read).held:
        raise BrokenPromise("a read within a second after expiry does not return held")
    return "another's acquire in the second after expiry: lock_held; a read: held"


@CHECKS.add("a takeover after the grace", "public", "LEASE-3", "LEASE-7", waits=True)
async def a_takeover_after_the_grace(lock: ScratchLock) -> str:
    """A second after expiry the lock is free, gets a higher fencing token, and the old holder has lost it."""
    token = new_token()
    granted = await _granted(lock, token)
    before = parse_lease(granted, lock.key, token, lock.ttl_seconds, 201, to="an acquire of the free lock")
    await lock.sleep_until(granted.received_at + lock.ttl_seconds + GRACE_SECONDS + INTO_INTERVAL_SECONDS)
    await lock.expect_free("its expiry and grace")
    after = await lock.hold()
    tokens = expect_higher_token(before.fencing_token, after.fencing_token, "a takeover")
    expect_lost(await lock.http.renew(lock.key, token, lock.ttl_seconds), "a renewal by the old holder")
    expect_lost(await lock.http.release(lock.key, token), "a release by the old holder")
    await lock.expect_held(after, "the old holder's late release")
    return f"taken over at expiry + {GRACE_SECONDS:.0f} s, {tokens}, the old holder has lost it"


async def _granted(lock: ScratchLock, token: str) -> TimedResponse:
    response = await lock.http.acquire(lock.key, token, lock.ttl_seconds)
    return response.expect(201, to="an acquire of the free lock")


def _in_time(responses: Iterable[TimedResponse], end: float) -> None:
    late = [response for response in responses if response.received_at >= end]
    if late:
        seconds = max(response.received_at - response.sent_at for response in late)
        raise Inconclusive(f"responses came too late for a verdict (one took {seconds:.2f} s): try again")
