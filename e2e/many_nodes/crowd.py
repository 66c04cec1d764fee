"""The crowd of e2e/one_node over several nodes: each request goes to another one, also those for one lease."""

import asyncio
import random
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import httpx2
from conformance.history.checker import Event, Operation
from e2e.one_node.crowd import Crowd, now
from testsupport.engines.processes import BUSY_SECONDS

ANSWER_SECONDS_MAX = 3.0  # who asks a node that hangs turns to another one then
PAUSE_SECONDS = 0.05
PROMISED_SECONDS = 10.0  # what each recovery took is told at the end


class Grant(NamedTuple):
    """A lease that a node acknowledged, or renewed."""

    url: str
    sent_at: float
    answered_at: float


class NodesCrowd(Crowd):
    """`grants` are all acknowledged ones, by the node that answered.

    Nobody is known to have come first: what was sent to a node that hangs is read in any order when it goes on. It does
    not notice before that who has hung up, either.
    """

    arrival_seconds = inf
    notice_seconds = 20.0
    wait_seconds = 1.5

    def __init__(self, urls: Sequence[str], service_key: str) -> None:
        super().__init__(urls[0], service_key, timeout_seconds=ANSWER_SECONDS_MAX)
        self.grants: list[Grant] = []
        self._urls = list(urls)
        self._dice = random.Random(7)

    def _node(self) -> str:
        return self._dice.choice(self._urls)

    async def call(self, operation: Operation, key: str, owner: str = "", wait_seconds: float = 0.0) -> Event:
        """Whoever hears of no success waits for a moment."""
        event = await super().call(operation, key, owner, wait_seconds)
        if event.outcome == "unknown":
            await asyncio.sleep(PAUSE_SECONDS)
        return event

    def grants_by_the_laziest(self) -> int:
        """How many leases the node acknowledged, or renewed, that did so least often."""
        return min(sum(grant.url == url for grant in self.grants) for url in self._urls)

    def turn_from(self, url: str) -> None:
        """Ask that node no more."""
        self._urls.remove(url)

    async def seconds_to_a_grant(self, since: float, *urls: str) -> float:
        """From `since` to the first answer with a lease that was asked for after it, by any node or one of these."""
        seen = 0
        while now() < since + PROMISED_SECONDS + BUSY_SECONDS:
            for url, sent_at, answered_at in self.grants[seen:]:
                seen += 1
                if sent_at >= since and (not urls or url in urls):
                    return answered_at - since
            self.complain()
            await asyncio.sleep(0.02)
        raise AssertionError(f"no grant within {PROMISED_SECONDS + BUSY_SECONDS:g} s")

    async def _requested(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, float] | None
    ) -> httpx2.Response:
        sent_at = now()
        answer = await super()._requested(method, path, headers, body)
        if method != "GET" and answer.status_code in (200, 201):
            self.grants.append(Grant(path.partition("/locks/")[0], sent_at, now()))
        return answer
