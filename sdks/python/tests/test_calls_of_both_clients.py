"""The calls of the threaded and the asyncio client against the fake, over a faulty network."""

import asyncio
from datetime import timedelta

import pytest

from volcano_locks import (
    AsyncClient,
    Lease,
    LockHeldError,
    LockOwnershipLostError,
    LockState,
    ServerError,
    TransportError,
    VolcanoError,
)
from volcano_locks.testing import (
    Answers,
    DropAfterSend,
    DropBeforeSend,
    FaultyTransport,
    Hang,
    ManualClock,
)

from .client_targets import Target
from .helpers import until


async def test_a_lease_is_acquired_renewed_read_and_released(target: Target, clock: ManualClock) -> None:
    lease = await target.acquire("k", ttl=30)
    assert lease.expires_at == clock.utc_now() + timedelta(seconds=30)
    assert await target.get("k") == LockState(True, lease.expires_at, lease.fencing_token)
    clock.jump(10)
    renewed = await target.renew("k", lease, ttl=60)
    assert renewed.expires_at == lease.expires_at + timedelta(seconds=40)
    assert renewed.fencing_token == lease.fencing_token
    await target.release("k", renewed)
    assert await target.get("k") == LockState(False)


async def test_contention_is_an_error_and_the_next_holder_has_a_higher_fencing_token(target: Target) -> None:
    """SDK-9: `LockHeldError`."""
    lease = await target.acquire("k", ttl=30)
    with pytest.raises(LockHeldError) as held:
        await target.acquire("k", ttl=30)
    assert (held.value.status, held.value.code) == (409, "lock_held")
    await target.force_release("k")
    assert (await target.acquire("k", ttl=30)).fencing_token > lease.fencing_token
    with pytest.raises(LockOwnershipLostError):
        await target.renew("k", lease)


async def test_an_old_lease_object_still_releases(target: Target) -> None:
    """case 22: by its token."""
    old = await target.acquire("k", ttl=30)
    await target.renew("k", old)
    await target.release("k", old)
    assert not (await target.get("k")).held


async def test_a_stored_lease_is_renewed_and_released_elsewhere(target: Target, rival: AsyncClient) -> None:
    lease = await target.acquire("k", ttl=30)
    stored = Lease.from_record(lease.to_record())
    renewed = await rival.locks.renew("k", stored)
    await rival.locks.release("k", renewed)
    assert not (await target.get("k")).held


async def test_a_block_with_the_callers_ids_is_recovered_if_it_could_not_be_released(
    target: Target, network: FaultyTransport
) -> None:
    """SDK-1: granted, then the network failed for good; later the same token returns the same lease."""
    ids = {"token": "11111111-2222-4333-8444-555555555555", "request_id": "AAAAAAAA-2222-4333-8444-555555555555"}
    network.script.extend([DropAfterSend(), DropBeforeSend(), DropBeforeSend()])
    with pytest.raises(TransportError) as failed:
        await target.hold("k", **ids).__aenter__()
    assert "releasing it failed too" in failed.value.__notes__[-1]
    assert {one.request_id for one in network.seen if one.method == "POST"} == {ids["request_id"]}
    fencing_token = (await target.get("k")).fencing_token
    assert (await target.acquire("k", ttl=30, **ids)).fencing_token == fencing_token


async def test_a_silent_server_times_out_on_the_clients_clock(
    target: Target, network: FaultyTransport, clock: ManualClock
) -> None:
    """SDK-2, case 6: two attempts of ten seconds, a release of two."""
    network.otherwise = Hang()
    acquiring = asyncio.ensure_future(target.acquire("k", ttl=30))
    await until(lambda: len(network.seen) == 1)
    for seconds, requests in ((10, 2), (10, 3)):
        clock.jump(seconds)
        await until(lambda n=requests: len(network.seen) == n)
    clock.jump(2)
    with pytest.raises(TransportError, match="no response within 10 seconds"):
        await acquiring
    assert clock.now() == 1022
    assert [seen.method for seen in network.seen] == ["POST", "POST", "DELETE"]


@pytest.mark.parametrize(
    "fault",
    [
        Answers(200, b"<html>Log in</html>", {"content-type": "text/html"}),
        Answers(201, b"<html>Log in</html>", {"content-type": "text/html"}),
        Answers(301, b"", {"location": "http://elsewhere.invalid/"}),
        Answers(201, b'{"expires_at": "2026-01-01T00:00:00Z", "fencing_token": 9007199254740993}'),
    ],
)
async def test_an_intermediary_is_never_taken_for_the_service(
    target: Target, network: FaultyTransport, fault: Answers
) -> None:
    """A redirect is not followed, and a page is no lease; case 34: neither is a rounded token."""
    network.script.extend([fault, fault])
    with pytest.raises((ServerError, TransportError)):
        await target.acquire("k", ttl=30)
    assert network.seen[-1].method == "DELETE"


async def test_echoed_secrets_are_redacted(target: Target, network: FaultyTransport) -> None:
    """SDK-8: even if a server echoes its request headers."""
    token = "aaaaaaaa-2222-4333-8444-555555555555"
    echo = f'{{"error": "sk-fake, {token} and {token.upper()} are wrong", "code": "invalid_request"}}'
    network.script.append(Answers(400, echo.encode()))
    with pytest.raises(Exception, match=r"^\[hidden\], \[hidden\] and \[hidden\] are wrong"):
        await target.acquire("k", ttl=30, token=token)


async def test_every_request_identifies_its_sender(target: Target, network: FaultyTransport) -> None:
    """The holder's label, a request id, the service key; a token only for lease requests."""
    await target.release("k", await target.acquire("k", ttl=30))
    await target.get("k")
    acquire, release, get = network.seen
    assert {seen.headers["authorization"] for seen in network.seen} == {"Bearer sk-fake"}
    assert len({seen.request_id for seen in network.seen}) == 3
    assert "/" in acquire.headers["x-volcano-lock-holder"]
    assert acquire.token == release.token
    assert get.token is None
    assert (acquire.path, get.path) == ("/locks/k/lease", "/locks/k")


async def test_a_closed_client_refuses_every_call_and_sends_nothing(target: Target, network: FaultyTransport) -> None:
    """SDK-6: a connection opened after `close` would never be closed."""
    lease = await target.acquire("k", ttl=30)
    await target.close()
    await target.close()
    calls = (
        lambda: target.acquire("k", ttl=30),
        lambda: target.renew("k", lease),
        lambda: target.release("k", lease),
        lambda: target.get("k"),
        lambda: target.force_release("k"),
        lambda: target.hold("k").__aenter__(),
    )
    for call in calls:
        with pytest.raises(VolcanoError, match="this client is closed"):
            await call()
    assert len(network.seen) == 1
