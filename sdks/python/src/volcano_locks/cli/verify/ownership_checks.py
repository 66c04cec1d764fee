"""Who holds the lock: checks that need no time to pass."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Final

from .check import Room, new_token, refused_as_lost
from .http_client import Broken, lease_of

CONTENDERS: Final = 6
CLOCK_SLACK: Final = timedelta(milliseconds=50)


async def two_holders_one_wins(room: Room) -> str:
    """Of several who ask at once, one is granted the lock and the others are told that it is held."""
    tokens = [new_token() for _ in range(CONTENDERS)]
    answers = await asyncio.gather(*(room.wire.acquire(room.key, token, room.ttl_seconds) for token in tokens))
    granted = [answer for answer in answers if answer.status == 201]
    if len(granted) != 1:
        raise Broken(f"{CONTENDERS} asked at once, {len(granted)} were granted the lock")
    for answer in answers:
        if answer is not granted[0]:
            answer.expect(409, "lock_held", to="an acquire of the held lock")
    return f"{CONTENDERS} asked at once: 1 granted, {CONTENDERS - 1} lock_held"


async def the_same_token_is_the_same_lease(room: Room) -> str:
    """An acquire sent again is no second acquisition and no refusal."""
    first = await room.hold()
    again = await room.wire.acquire(room.key, first.token, room.ttl_seconds)
    second = lease_of(again, room.key, first.token, room.ttl_seconds, 201, to="the same acquire again")
    if second.fencing_token != first.fencing_token:
        raise Broken("the same acquire again gave another fencing token")
    if second.expires_at < first.expires_at:
        raise Broken("the same acquire again brought the expiry nearer")
    return "201 again, the same fencing token"


async def a_renewal_sets_the_expiry(room: Room) -> str:
    """A renewal counts its TTL from when it is served, longer or shorter, and keeps the fencing token."""
    token, longer = new_token(), room.ttl_seconds * 2
    before = await room.wire.acquire(room.key, token, room.ttl_seconds)
    lease = lease_of(before, room.key, token, room.ttl_seconds, 201, to="an acquire of the free lock")
    for ttl_seconds in (longer, room.ttl_seconds):
        after = await room.wire.renew(room.key, token, ttl_seconds)
        renewed = lease_of(after, room.key, token, ttl_seconds, 200, to=f"a renewal to {ttl_seconds} s")
        if renewed.fencing_token != lease.fencing_token:
            raise Broken("a renewal changed the fencing token")
        moved = renewed.expires_at - lease.expires_at
        least = after.sent_at + ttl_seconds - (before.received_at + lease.ttl_seconds)
        most = after.received_at + ttl_seconds - (before.sent_at + lease.ttl_seconds)
        if not timedelta(seconds=least) - CLOCK_SLACK <= moved <= timedelta(seconds=most) + CLOCK_SLACK:
            raise Broken(
                f"renewed from {lease.ttl_seconds} s to {ttl_seconds} s, the expiry moved by "
                f"{moved.total_seconds():.3f} s instead of about {(least + most) / 2:.3f} s"
            )
        before, lease = after, renewed
    return f"to {longer} s and back to {room.ttl_seconds} s, the fencing token kept"


async def a_release_frees(room: Room) -> str:
    """After the owner's release anybody may have the lock at once."""
    lease = await room.hold()
    (await room.wire.release(room.key, lease.token)).expect(204, to="a release by the owner")
    await room.expect_free("its release")
    await room.hold()
    return "204, then free, then granted to another"


async def only_the_owner_may(room: Room) -> str:
    """Neither a renewal nor a release with another token touches the lease."""
    lease, stranger = await room.hold(), new_token()
    refused_as_lost(await room.wire.renew(room.key, stranger, room.ttl_seconds), "a renewal with another token")
    refused_as_lost(await room.wire.release(room.key, stranger), "a release with another token")
    await room.expect_held(lease, "a stranger's release")
    return "another token's renewal and release: lock_ownership_lost"


async def a_late_renewal_creates_nothing(room: Room) -> str:
    """A renewal that arrives after the release is refused and leaves the lock free."""
    lease = await room.hold()
    (await room.wire.release(room.key, lease.token)).expect(204, to="a release by the owner")
    refused_as_lost(await room.wire.renew(room.key, lease.token, room.ttl_seconds), "a renewal after the release")
    await room.expect_free("a renewal that came after the release")
    return "lock_ownership_lost, and the lock stays free"


async def the_fence_rises_over_a_release(room: Room) -> str:
    """The next holder after a release has the higher fencing token."""
    first = await room.hold()
    (await room.wire.release(room.key, first.token)).expect(204, to="a release by the owner")
    return risen(first.fencing_token, (await room.hold()).fencing_token, "a release")


async def the_fence_rises_over_a_force_release(room: Room) -> str:
    """A force release frees the lock, and the next holder has the higher fencing token."""
    first = await room.hold()
    (await room.wire.force_release(room.key)).expect(204, to="a force release")
    await room.expect_free("a force release")
    refused_as_lost(await room.wire.renew(room.key, first.token, room.ttl_seconds), "a renewal by who was forced out")
    return risen(first.fencing_token, (await room.hold()).fencing_token, "a force release")


async def a_lower_fence_is_refused(room: Room) -> str:
    """A row that keeps the highest fencing token it has seen refuses the write of a displaced holder."""
    first = await room.hold()
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT, fencing_token INTEGER NOT NULL)")
        database.execute("INSERT INTO report VALUES (1, '', 0)")

        def write(text: str, fencing_token: int) -> bool:
            guarded = "UPDATE report SET text = ?, fencing_token = ? WHERE id = 1 AND fencing_token <= ?"
            return database.execute(guarded, (text, fencing_token, fencing_token)).rowcount == 1

        written = write("first", first.fencing_token)
        (await room.wire.force_release(room.key)).expect(204, to="a force release")
        second = await room.hold()
        written = written and write("second", second.fencing_token)
        if not written:
            raise Broken("the write of a holder was refused although it was the newest")
        if write("late", first.fencing_token):
            raise Broken("the late write of the displaced holder was not refused")
    return "a guarded UPDATE took the new holder's write and refused the old one's"


async def a_free_lock_may_be_forced(room: Room) -> str:
    """A force release of a lock that nobody holds succeeds."""
    (await room.wire.force_release(room.key)).expect(204, to="a force release of a free lock")
    return "204"


async def a_release_may_be_repeated(room: Room) -> str:
    """A release whose answer was lost can be sent again, also where nothing was ever held."""
    (await room.wire.release(room.key, new_token())).expect(204, to="a release of a lock nobody has used")
    lease = await room.hold()
    for which in ("a release by the owner", "the same release again"):
        (await room.wire.release(room.key, lease.token)).expect(204, to=which)
    return "204 each time"


async def a_retired_token_stays_out(room: Room) -> str:
    """A token that was released or forced out cannot bring its lease back, also if its acquire arrives late."""
    overtaken = new_token()
    (await room.wire.release(room.key, overtaken)).expect(204, to="a release that overtakes its acquire")
    late = await room.wire.acquire(room.key, overtaken, room.ttl_seconds)
    refused_as_lost(late, "an acquire that arrives after its release")
    released = await room.hold()
    (await room.wire.release(room.key, released.token)).expect(204, to="a release by the owner")
    again = await room.wire.acquire(room.key, released.token, room.ttl_seconds)
    refused_as_lost(again, "an acquire with a released token")
    forced = await room.hold()
    (await room.wire.force_release(room.key)).expect(204, to="a force release")
    again = await room.wire.acquire(room.key, forced.token, room.ttl_seconds)
    refused_as_lost(again, "an acquire with a token that was forced out")
    return "released, forced out, overtaken: lock_ownership_lost"


def risen(before: int, after: int, over: str) -> str:
    """What was seen of two fencing tokens; Broken unless the second is higher."""
    if after <= before:
        raise Broken(f"over {over} the fencing token went from {before} to {after}")
    return f"{before} then {after}"
