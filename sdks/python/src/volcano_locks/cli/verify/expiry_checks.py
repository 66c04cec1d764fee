"""What happens around the expiry: checks that live through a lease.

A lease that was asked for at `sent_at` and granted at `received_at` expires between `sent_at + ttl` and
`received_at + ttl`. A question about a band of time is sent once the band has surely begun, and judged only if
its answer came before the band can have ended.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from .check import Room, new_token, refused_as_lost
from .http_client import Answer, Broken, Unjudged, lease_of, state_of
from .ownership_checks import risen

MARGIN_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 1.0
INTO_THE_BAND_SECONDS: Final = 0.15


async def no_extension_in_the_margin(room: Room) -> str:
    """In the last second before expiry neither a renewal nor a repeated acquire extends the lease."""
    token = new_token()
    granted = await _granted(room, token)
    await room.rest_until(granted.received_at + room.ttl_seconds - MARGIN_SECONDS + INTO_THE_BAND_SECONDS)
    renewal, repeat = await asyncio.gather(
        room.wire.renew(room.key, token, room.ttl_seconds), room.wire.acquire(room.key, token, room.ttl_seconds)
    )
    refused_as_lost(renewal, "a renewal in the last second before expiry")
    _in_time((renewal, repeat), granted.sent_at + room.ttl_seconds)  # served after its grace, a repeat may win
    refused_as_lost(repeat, "a repeated acquire in the last second before expiry")
    return "renewal and repeated acquire in the last second: lock_ownership_lost"


async def no_takeover_in_the_grace(room: Room) -> str:
    """In the second after expiry nobody may take the lock over, and a read says that it is held."""
    granted = await _granted(room, new_token())
    await room.rest_until(granted.received_at + room.ttl_seconds + INTO_THE_BAND_SECONDS)
    early, read = await asyncio.gather(
        room.wire.acquire(room.key, new_token(), room.ttl_seconds), room.wire.read(room.key)
    )
    _in_time((early, read), granted.sent_at + room.ttl_seconds + GRACE_SECONDS)
    early.expect(409, "lock_held", to="another's acquire within a second after expiry")
    if not state_of(read).held:
        raise Broken("a read within a second after expiry does not say held")
    return "another's acquire in the second after expiry: lock_held; a read: held"


async def a_takeover_after_the_grace(room: Room) -> str:
    """A second after expiry the lock is free for all, with a higher fencing token, and the old holder is out."""
    token = new_token()
    granted = await _granted(room, token)
    before = lease_of(granted, room.key, token, room.ttl_seconds, 201, to="an acquire of the free lock")
    await room.rest_until(granted.received_at + room.ttl_seconds + GRACE_SECONDS + INTO_THE_BAND_SECONDS)
    await room.expect_free("its expiry and grace")
    after = await room.hold()
    seen = risen(before.fencing_token, after.fencing_token, "a takeover")
    refused_as_lost(await room.wire.renew(room.key, token, room.ttl_seconds), "a renewal by the old holder")
    refused_as_lost(await room.wire.release(room.key, token), "a release by the old holder")
    await room.expect_held(after, "the old holder's late release")
    return f"taken over at expiry + {GRACE_SECONDS:.0f} s, {seen}, the old holder is out"


async def _granted(room: Room, token: str) -> Answer:
    answer = await room.wire.acquire(room.key, token, room.ttl_seconds)
    return answer.expect(201, to="an acquire of the free lock")


def _in_time(answers: Iterable[Answer], end: float) -> None:
    late = [answer for answer in answers if answer.received_at >= end]
    if late:
        seconds = max(answer.received_at - answer.sent_at for answer in late)
        raise Unjudged(f"answers came too late to tell (one took {seconds:.2f} s): try again on a quieter line")
