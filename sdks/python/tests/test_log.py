# ruff: noqa: PT012 - a block is entered, used and left in one statement
"""What the clients log, and that logging decides nothing (SDK-25)."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import pytest

from volcano_locks import AsyncClient, LockHeldError, LockOwnershipLostError, TransportError
from volcano_locks.testing import Answers, DropBeforeSend, FaultyTransport, ManualClock, Pass

from .client_targets import Target

TOKEN = "aaaaaaaa-2222-4333-8444-555555555555"
OTHER_TOKEN = "bbbbbbbb-2222-4333-8444-555555555555"
SECRETS = Answers(500, f'{{"error": "sk-fake, {OTHER_TOKEN}, {OTHER_TOKEN.upper()}", "code": "internal"}}'.encode())


@pytest.fixture(autouse=True)
def jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the first renewal is due at exactly a third of the TTL."""
    monkeypatch.setattr("volcano_locks.holding.block.random_fraction", lambda: 0.5)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and first two words of each line."""
    assert {record.name for record in caplog.records} <= {"volcano_locks"}
    return [(record.levelname, " ".join(record.getMessage().split()[:2])) for record in caplog.records]


async def use(target: Target, network: FaultyTransport, rival: AsyncClient, clock: ManualClock) -> None:
    """Acquire, wait, renew, fail to renew, lose, and release, with secrets in what the server sends."""
    lease = await target.acquire("k", ttl=30, wait=5, token=TOKEN)
    lease = await target.renew("k", lease)
    with pytest.raises(LockHeldError):
        async with target.hold("k"):
            pass
    await target.release("k", lease)
    with pytest.raises(LockOwnershipLostError):
        async with target.hold("k", ttl=30, token=OTHER_TOKEN) as guard:
            network.script.append(SECRETS)
            await clock.advance_async(10.1)
            assert not guard.lost
            await rival.locks.force_release("k")
            with contextlib.suppress(asyncio.CancelledError):
                await clock.advance_async(1)
            assert guard.lost
    async with target.hold("k", ttl=30) as guard:
        network.otherwise = DropBeforeSend()
    network.otherwise = Pass()
    assert isinstance(guard.release_error, TransportError)


async def test_each_step_is_logged_at_its_level_without_secrets(
    target: Target, network: FaultyTransport, rival: AsyncClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK-25, SDK-8: steps at debug; a loss, a failed renewal and a failed release at warning."""
    with caplog.at_level(logging.DEBUG, "volcano_locks"):
        await use(target, network, rival, clock)
    assert lines(caplog) == [
        ("DEBUG", "waiting up"),
        ("DEBUG", "acquired lock"),
        ("DEBUG", "renewed lock"),
        ("DEBUG", "released lock"),
        ("DEBUG", "acquired lock"),
        ("WARNING", "lock k"),
        ("WARNING", "lost lock"),
        ("DEBUG", "acquired lock"),
        ("WARNING", "lock k"),
    ]
    assert all(" k" in record.getMessage() for record in caplog.records), "each line names its lock"
    text = caplog.text.lower()
    assert "sk-fake" not in text
    assert TOKEN not in text
    assert OTHER_TOKEN not in text


async def test_at_the_default_level_only_what_needs_attention_is_logged(
    target: Target, network: FaultyTransport, rival: AsyncClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    await use(target, network, rival, clock)
    assert {level for level, _ in lines(caplog)} == {"WARNING"}


class BrokenHandler(logging.Handler):
    """Raises, as a handler on a full disk might."""

    raised = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.raised += 1
        raise OSError("disk full")


@pytest.fixture
def broken_handler() -> Iterator[BrokenHandler]:
    logger, handler = logging.getLogger("volcano_locks"), BrokenHandler()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


async def test_a_handler_that_raises_changes_nothing(
    target: Target, network: FaultyTransport, rival: AsyncClient, clock: ManualClock, broken_handler: BrokenHandler
) -> None:
    """SDK-25, case 81: every outcome is as without it."""
    await use(target, network, rival, clock)
    assert broken_handler.raised == 9
