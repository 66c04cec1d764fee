"""The plain verbs of the threaded and the asyncio client against the fake, over a network that fails by script."""

import asyncio
from datetime import timedelta

import pytest

from volcano_locks import (
    AsyncClient,
    Lease,
    LockHeldError,
    LockOwnershipLostError,
    LockState,
    RateLimitedError,
    ServerError,
    TransportError,
    UnavailableError,
    VolcanoError,
)
from volcano_locks.testing import (
    Answers,
    DropAfterSend,
    DropBeforeSend,
    Duplicate,
    FakeLocks,
    Fault,
    FlakyTransport,
    Hang,
    ManualClock,
    Reset,
    Takes,
)

from .conftest import Face


async def test_a_lease_is_acquired_renewed_read_and_released(face: Face, clock: ManualClock) -> None:
    lease = await face.acquire("k", ttl=30)
    assert lease.expires_at == clock.utc_now() + timedelta(seconds=30)
    assert await face.get("k") == LockState(True, lease.expires_at, lease.fencing_token)
    clock.jump(10)
    renewed = await face.renew("k", lease, ttl=60)
    assert renewed.expires_at == lease.expires_at + timedelta(seconds=40)
    assert renewed.fencing_token == lease.fencing_token
    await face.release("k", renewed)
    assert await face.get("k") == LockState(False)


async def test_contention_is_an_error_and_the_next_holder_has_a_higher_fencing_token(face: Face) -> None:
    """SDK-9: `LockHeldError`."""
    lease = await face.acquire("k", ttl=30)
    with pytest.raises(LockHeldError) as held:
        await face.acquire("k", ttl=30)
    assert (held.value.status, held.value.code) == (409, "lock_held")
    await face.force_release("k")
    assert (await face.acquire("k", ttl=30)).fencing_token > lease.fencing_token
    with pytest.raises(LockOwnershipLostError):
        await face.renew("k", lease)


async def test_an_old_lease_object_still_releases(face: Face) -> None:
    """case 22: by its token."""
    old = await face.acquire("k", ttl=30)
    await face.renew("k", old)
    await face.release("k", old)
    assert not (await face.get("k")).held


async def test_a_stored_lease_is_renewed_and_released_elsewhere(face: Face, rival: AsyncClient) -> None:
    lease = await face.acquire("k", ttl=30)
    stored = Lease.from_record(lease.to_record())
    renewed = await rival.locks.renew("k", stored)
    await rival.locks.release("k", renewed)
    assert not (await face.get("k")).held


@pytest.mark.parametrize("fault", [DropBeforeSend(), Reset(), DropAfterSend(), Duplicate()])
async def test_one_fault_on_acquire_costs_nothing(face: Face, net: FlakyTransport, fault: Fault) -> None:
    """SDK-1, SDK-2, case 13, case 32: the retry has the same ids, and gets the same lease."""
    net.script.append(fault)
    lease = await face.acquire("k", ttl=30)
    await face.renew("k", lease)
    posts = [seen for seen in net.seen if seen.method == "POST"]
    assert len({(seen.token, seen.request_id) for seen in posts}) == 1
    assert (await face.get("k")).fencing_token == lease.fencing_token


async def test_an_acquire_with_unknown_outcome_leaves_the_lock_free(face: Face, net: FlakyTransport) -> None:
    """SDK-2, case 13: granted twice over, both answers lost; nobody waits for a TTL."""
    net.script.extend([DropAfterSend(), DropAfterSend()])
    with pytest.raises(TransportError):
        await face.acquire("k", ttl=30)
    assert not (await face.get("k")).held
    assert await face.acquire("k", ttl=30)


async def test_a_block_with_the_callers_ids_is_recovered_if_it_could_not_be_given_back(
    face: Face, net: FlakyTransport
) -> None:
    """SDK-1: granted, and the network gone for good; later the same token gets the same lease."""
    ids = {"token": "11111111-2222-4333-8444-555555555555", "request_id": "AAAAAAAA-2222-4333-8444-555555555555"}
    net.script.extend([DropAfterSend(), DropBeforeSend(), DropBeforeSend()])
    with pytest.raises(TransportError) as failed:
        await face.hold("k", **ids).__aenter__()
    assert "giving it back failed too" in failed.value.__notes__[-1]
    assert {one.request_id for one in net.seen if one.method == "POST"} == {ids["request_id"]}
    fencing_token = (await face.get("k")).fencing_token
    assert (await face.acquire("k", ttl=30, **ids)).fencing_token == fencing_token


async def test_a_grant_later_than_its_ttl_is_no_lease(face: Face, net: FlakyTransport) -> None:
    """case 14: it is released, and the caller is told of a failure."""
    net.script.append(Takes(30))
    with pytest.raises(TransportError):
        await face.acquire("k", ttl=30)
    assert [seen.method for seen in net.seen if seen.method != "POST"] == ["DELETE"]
    assert not (await face.get("k")).held


async def test_a_server_that_answers_nothing_is_given_up_on_the_clients_clock(
    face: Face, net: FlakyTransport, clock: ManualClock
) -> None:
    """SDK-2, case 6: two attempts of ten seconds, a release of two."""
    net.otherwise = Hang()
    acquiring = asyncio.ensure_future(face.acquire("k", ttl=30))
    await until(lambda: len(net.seen) == 1)
    for seconds, requests in ((10, 2), (10, 3)):
        clock.jump(seconds)
        await until(lambda n=requests: len(net.seen) == n)
    clock.jump(2)
    with pytest.raises(TransportError, match="no answer within 10 seconds"):
        await acquiring
    assert clock.now() == 1022
    assert [seen.method for seen in net.seen] == ["POST", "POST", "DELETE"]


async def test_a_503_is_retried_after_its_pause(face: Face, net: FlakyTransport, clock: ManualClock) -> None:
    """SDK-2."""
    net.script.append(Answers(503, b'{"error": "e", "code": "lock_service_unavailable"}', {"retry-after": "1"}))
    await face.acquire("k", ttl=30)
    assert clock.now() == 1001
    net.otherwise = Answers(503, b'{"error": "e", "code": "lock_service_unavailable"}', {"retry-after": "1"})
    with pytest.raises(UnavailableError) as failed:
        await face.acquire("other", ttl=30)
    assert (failed.value.retry_after, failed.value.code) == (1.0, "lock_service_unavailable")


async def test_a_spent_quota_is_told_and_not_retried(face: Face, net: FlakyTransport) -> None:
    net.script.append(Answers(429, b'{"error": "e", "code": "lock_rate_limited"}', {"retry-after": "17"}))
    with pytest.raises(RateLimitedError) as limited:
        await face.acquire("k", ttl=30)
    assert limited.value.retry_after == 17
    assert len(net.seen) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Answers(200, b"<html>Log in</html>", {"content-type": "text/html"}),
        Answers(201, b"<html>Log in</html>", {"content-type": "text/html"}),
        Answers(301, b"", {"location": "http://elsewhere.invalid/"}),
        Answers(201, b'{"expires_at": "2026-01-01T00:00:00Z", "fencing_token": 9007199254740993}'),
    ],
)
async def test_something_in_between_is_never_taken_for_the_service(
    face: Face, net: FlakyTransport, fault: Answers
) -> None:
    """A redirect is not followed (the key goes nowhere else), a page is no lease; case 34: nor is a rounded token."""
    net.script.extend([fault, fault])
    with pytest.raises((ServerError, TransportError)):
        await face.acquire("k", ttl=30)
    assert net.seen[-1].method == "DELETE"


async def test_an_answer_has_a_longest_length(face: Face, net: FlakyTransport) -> None:
    """Nobody fills this process's memory."""
    net.otherwise = Answers(200, b'{"held": false}' + b" " * 65_536)
    with pytest.raises(TransportError, match="answer longer than 65536 bytes"):
        await face.get("k")


async def test_secrets_echoed_by_something_in_between_are_hidden(face: Face, net: FlakyTransport) -> None:
    """SDK-8: not even a server that repeats headers puts them into an error."""
    token = "aaaaaaaa-2222-4333-8444-555555555555"
    echo = f'{{"error": "sk-fake, {token} and {token.upper()} are wrong", "code": "invalid_request"}}'
    net.script.append(Answers(400, echo.encode()))
    with pytest.raises(Exception, match=r"^\[hidden\], \[hidden\] and \[hidden\] are wrong"):
        await face.acquire("k", ttl=30, token=token)


async def test_every_request_says_who_asks(face: Face, net: FlakyTransport) -> None:
    """The holder's label, an id for the logs, the bearer key; a token only where a lease is meant."""
    await face.release("k", await face.acquire("k", ttl=30))
    await face.get("k")
    acquire, release, get = net.seen
    assert {seen.headers["Authorization"] for seen in net.seen} == {"Bearer sk-fake"}
    assert len({seen.request_id for seen in net.seen}) == 3
    assert "/" in acquire.headers["X-Volcano-Lock-Holder"]
    assert acquire.token == release.token
    assert get.token is None
    assert (acquire.path, get.path) == ("/locks/k/lease", "/locks/k")


async def test_an_address_may_have_a_path(server: FakeLocks, clock: ManualClock) -> None:
    net = FlakyTransport(server, clock, otherwise=Answers(200, b'{"held": false}'))
    async with AsyncClient("http://gateway/locks-service/v1/", "sk-x", clock=clock, transport=net) as client:
        await client.locks.get("a:b")
    assert net.seen[0].path == "/locks-service/v1/locks/a:b"


async def test_a_closed_client_refuses_every_verb_and_sends_nothing(face: Face, net: FlakyTransport) -> None:
    """SDK-6: a connection opened after `close` would be closed by nobody."""
    lease = await face.acquire("k", ttl=30)
    await face.close()
    await face.close()
    verbs = (
        lambda: face.acquire("k", ttl=30),
        lambda: face.renew("k", lease),
        lambda: face.release("k", lease),
        lambda: face.get("k"),
        lambda: face.force_release("k"),
        lambda: face.hold("k").__aenter__(),
    )
    for verb in verbs:
        with pytest.raises(VolcanoError, match="this client is closed"):
            await verb()
    assert len(net.seen) == 1


async def until(true: object, tries: int = 10_000) -> None:
    """Let the other tasks and threads run until it is so."""
    for _ in range(tries):
        if true():  # type: ignore[operator]
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")
