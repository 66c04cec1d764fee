"""Checks of who holds the lock; they need no time to pass."""

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Final

from .check import Checks, ScratchLock, expect_lost, new_token
from .http_client import BrokenPromise, parse_lease

CHECKS: Final = Checks()
CONTENDERS: Final = 6
CLOCK_SLACK: Final = timedelta(milliseconds=50)


@CHECKS.add("one of several acquires wins", "public", "LEASE-6")
async def one_of_several_acquires_wins(lock: ScratchLock) -> str:
    """Of several concurrent acquires one is granted, and the others get lock_held."""
    tokens = [new_token() for _ in range(CONTENDERS)]
    responses = await asyncio.gather(*(lock.http.acquire(lock.key, token, lock.ttl_seconds) for token in tokens))
    granted = [response for response in responses if response.status == 201]
    if len(granted) != 1:
        raise BrokenPromise(f"of {CONTENDERS} concurrent acquires {len(granted)} were granted")
    for response in responses:
        if response is not granted[0]:
            response.expect(409, "lock_held", to="an acquire of the held lock")
    return f"{CONTENDERS} concurrent acquires: 1 granted, {CONTENDERS - 1} lock_held"


@CHECKS.add("a repeated acquire is the same lease", "public", "LEASE-4")
async def the_same_token_is_the_same_lease(lock: ScratchLock) -> str:
    """A repeated acquire returns the same lease."""
    first = await lock.hold()
    again = await lock.http.acquire(lock.key, first.token, lock.ttl_seconds)
    second = parse_lease(again, lock.key, first.token, lock.ttl_seconds, 201, to="a repeated acquire")
    if second.fencing_token != first.fencing_token:
        raise BrokenPromise("a repeated acquire returned another fencing token")
    if second.expires_at < first.expires_at:
        raise BrokenPromise("a repeated acquire moved the expiry back")
    return "201 again, the same fencing token"


@CHECKS.add("a renewal sets a new expiry", "public", "LEASE-8")
async def a_renewal_sets_the_expiry(lock: ScratchLock) -> str:
    """A renewal sets the expiry to its TTL from now, longer or shorter, and keeps the fencing token."""
    token, longer = new_token(), lock.ttl_seconds * 2
    before = await lock.http.acquire(lock.key, token, lock.ttl_seconds)
    lease = parse_lease(before, lock.key, token, lock.ttl_seconds, 201, to="an acquire of the free lock")
    for ttl_seconds in (longer, lock.ttl_seconds):
        after = await lock.http.renew(lock.key, token, ttl_seconds)
        renewed = parse_lease(after, lock.key, token, ttl_seconds, 200, to=f"a renewal to {ttl_seconds} s")
        if renewed.fencing_token != lease.fencing_token:
            raise BrokenPromise("a renewal changed the fencing token")
        moved = renewed.expires_at - lease.expires_at
        least = after.sent_at + ttl_seconds - (before.received_at + lease.ttl_seconds)
        most = after.received_at + ttl_seconds - (before.sent_at + lease.ttl_seconds)
        if not timedelta(seconds=least) - CLOCK_SLACK <= moved <= timedelta(seconds=most) + CLOCK_SLACK:
            raise BrokenPromise(
                f"renewed from {lease.ttl_seconds} s to {ttl_seconds} s, the expiry moved by "
                f"{moved.total_seconds():.3f} s instead of about {(least + most) / 2:.3f} s"
            )
        before, lease = after, renewed
    return f"to {longer} s and back to {lock.ttl_seconds} s, the fencing token kept"


@CHECKS.add("a release frees the lock", "public", "LEASE-9")
async def a_release_frees(lock: ScratchLock) -> str:
    """After the owner's release the lock can be acquired at once."""
    lease = await lock.hold()
    (await lock.http.release(lock.key, lease.token)).expect(204, to="a release by the owner")
    await lock.expect_free("its release")
    await lock.hold()
    return "204, then free, then granted to another"


@CHECKS.add("only the owner renews and releases", "public", "LEASE-8", "LEASE-9")
async def only_the_owner_may(lock: ScratchLock) -> str:
    """A renewal or release with another token does not change the lease."""
    lease, other_token = await lock.hold(), new_token()
    expect_lost(await lock.http.renew(lock.key, other_token, lock.ttl_seconds), "a renewal with another token")
    expect_lost(await lock.http.release(lock.key, other_token), "a release with another token")
    await lock.expect_held(lease, "another client's release")
    return "another token's renewal and release: lock_ownership_lost"


@CHECKS.add("a late renewal creates nothing", "public", "LEASE-8")
async def a_late_renewal_creates_nothing(lock: ScratchLock) -> str:
    """A renewal that arrives after the release is refused and leaves the lock free."""
    lease = await lock.hold()
    (await lock.http.release(lock.key, lease.token)).expect(204, to="a release by the owner")
    expect_lost(await lock.http.renew(lock.key, lease.token, lock.ttl_seconds), "a renewal after the release")
    await lock.expect_free("a renewal that came after the release")
    return "lock_ownership_lost, and the lock stays free"


@CHECKS.add("a free lock may be force released", "public", "LEASE-10")
async def a_free_lock_may_be_forced(lock: ScratchLock) -> str:
    """A force release of a free lock succeeds."""
    (await lock.http.force_release(lock.key)).expect(204, to="a force release of a free lock")
    return "204"


@CHECKS.add("a release may be repeated", "ours", "LEASE-9")
async def a_release_may_be_repeated(lock: ScratchLock) -> str:
    """A release whose response was lost can be sent again, even if the lock was never held."""
    (await lock.http.release(lock.key, new_token())).expect(204, to="a release of an unused lock")
    lease = await lock.hold()
    for which in ("a release by the owner", "the same release again"):
        (await lock.http.release(lock.key, lease.token)).expect(204, to=which)
    return "204 each time"


@CHECKS.add("a retired token cannot acquire", "ours", "LEASE-11")
async def a_retired_token_cannot_acquire(lock: ScratchLock) -> str:
    """A released or forced-out token cannot acquire again, even if its acquire arrives late."""
    overtaken = new_token()
    (await lock.http.release(lock.key, overtaken)).expect(204, to="a release that overtakes its acquire")
    late = await lock.http.acquire(lock.key, overtaken, lock.ttl_seconds)
    expect_lost(late, "an acquire that arrives after its release")
    released = await lock.hold()
    (await lock.http.release(lock.key, released.token)).expect(204, to="a release by the owner")
    again = await lock.http.acquire(lock.key, released.token, lock.ttl_seconds)
    expect_lost(again, "an acquire with a released token")
    forced = await lock.hold()
    (await lock.http.force_release(lock.key)).expect(204, to="a force release")
    again = await lock.http.acquire(lock.key, forced.token, lock.ttl_seconds)
    expect_lost(again, "an acquire with a token that was forced out")
    return "released, forced out, overtaken: lock_ownership_lost"


@CHECKS.add("the fencing token rises after a release", "public", "LEASE-3")
async def the_token_rises_after_a_release(lock: ScratchLock) -> str:
    """After a release the next holder has a higher fencing token."""
    first = await lock.hold()
    (await lock.http.release(lock.key, first.token)).expect(204, to="a release by the owner")
    return expect_higher_token(first.fencing_token, (await lock.hold()).fencing_token, "a release")


@CHECKS.add("the fencing token rises after a force release", "public", "LEASE-3", "LEASE-10")
async def the_token_rises_after_a_force_release(lock: ScratchLock) -> str:
    """A force release frees the lock, and the next holder has a higher fencing token."""
    first = await lock.hold()
    (await lock.http.force_release(lock.key)).expect(204, to="a force release")
    await lock.expect_free("a force release")
    expect_lost(await lock.http.renew(lock.key, first.token, lock.ttl_seconds), "a renewal after a force release")
    return expect_higher_token(first.fencing_token, (await lock.hold()).fencing_token, "a force release")


@CHECKS.add("a lower fencing token is refused", "public", "LEASE-3")
async def a_lower_token_is_refused(lock: ScratchLock) -> str:
    """A row that stores the highest fencing token refuses the write of an earlier holder."""
    first = await lock.hold()
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT, fencing_token INTEGER NOT NULL)")
        database.execute("INSERT INTO report VALUES (1, '', 0)")

        def write(text: str, fencing_token: int) -> bool:
            guarded = "UPDATE report SET text = ?, fencing_token = ? WHERE id = 1 AND fencing_token <= ?"
            return database.execute(guarded, (text, fencing_token, fencing_token)).rowcount == 1

        written = write("first", first.fencing_token)
        (await lock.http.force_release(lock.key)).expect(204, to="a force release")
        second = await lock.hold()
        written = written and write("second", second.fencing_token)
        if not written:
            raise BrokenPromise("the write of the current holder was refused")
        if write("late", first.fencing_token):
            raise BrokenPromise("the late write of the earlier holder was not refused")
    return "a guarded UPDATE accepted the new holder's write and refused the earlier one's"


def expect_higher_token(before: int, after: int, event: str) -> str:
    """The two fencing tokens as text. BrokenPromise unless the second is higher."""
    if after <= before:
        raise BrokenPromise(f"after {event} the fencing token went from {before} to {after}")
    return f"{before} then {after}"
