"""The load clients over several nodes: each request goes to a random node, even requests for one lease."""

import asyncio
import random
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import httpx2
from conformance.history.checker import OperationName, RequestRecord
from e2e.load_clients import LoadClients, now
from testsupport.engines.processes import BUSY_SECONDS

RESPONSE_SECONDS_MAX = 3.0  # if a node hangs, a client tries another one after this
PAUSE_SECONDS = 0.05
PROMISED_SECONDS = 10.0


class AcknowledgedLease(NamedTuple):
    """A lease that a node granted or renewed."""

    url: str
    sent_at: float
    responded_at: float


class MultiNodeLoadClients(LoadClients):
    """`grants` are all acknowledged leases, with the node that acknowledged them.

    The order of arrival is unknown: a node that hung reads its requests in any order when it resumes, and notices
    disconnects only then.
    """

    arrival_seconds = inf
    disconnect_seconds = 20.0
    wait_seconds = 1.5

    def __init__(self, urls: Sequence[str], service_key: str) -> None:
        super().__init__(urls[0], service_key, timeout_seconds=RESPONSE_SECONDS_MAX)
        self.grants: list[AcknowledgedLease] = []
        self._urls = list(urls)
        self._random = random.Random(7)

    def _node(self) -> str:
        return self._random.choice(self._urls)

    async def call(
        self, operation: OperationName, key: str, owner: str = "", wait_seconds: float = 0.0
    ) -> RequestRecord:
        """Pause after a request with an unknown outcome."""
        record = await super().call(operation, key, owner, wait_seconds)
        if record.outcome == "unknown":
            await asyncio.sleep(PAUSE_SECONDS)
        return record

    def fewest_grants_of_a_node(self) -> int:
        """The number of acknowledged leases of the node that has the fewest."""
        return min(sum(grant.url == url for grant in self.grants) for url in self._urls)

    def stop_using(self, url: str) -> None:
        """Send no more requests to that node."""
        self._urls.remove(url)

    async def seconds_to_a_grant(self, since: float, *urls: str) -> float:
        """Seconds from `since` to the first lease requested after it, acknowledged by any node or by one of `urls`."""
        seen = 0
        while now() < since + PROMISED_SECONDS + BUSY_SECONDS:
            for url, sent_at, responded_at in self.grants[seen:]:
                seen += 1
                if sent_at >= since and (not urls or url in urls):
                    return responded_at - since
            self.raise_failures()
            await asyncio.sleep(0.02)
        raise AssertionError(f"no grant within {PROMISED_SECONDS + BUSY_SECONDS:g} s")

    async def _request(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, float] | None
    ) -> httpx2.Response:
        sent_at = now()
        response = await super()._request(method, path, headers, body)
        if method != "GET" and response.status_code in (200, 201):
            self.grants.append(AcknowledgedLease(path.partition("/locks/")[0], sent_at, now()))
        return response
