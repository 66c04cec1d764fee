"""A day in the life of a project, for the screenshots: made through the API of a server whose clock is moved."""

import contextlib
import random
import threading
import uuid
from typing import Final

import httpx2 as httpx

from volcano_locks_server.testing import ManualClock

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
TTL_SECONDS: Final = 900
RENEW_EVERY_MS: Final = 4 * MINUTE_MS
HOLDERS: Final = ("web-1:4211", "web-2:380", "batch-7:9902", "batch-8:7115", "cron-3:1207")
CLIENT: Final = "volcano-locks-python/0.1.0"
WAITERS: Final = {"billing": 3, "search-index:eu": 1, "scheduler": 6}
HELD_NOW: Final = (
    ("backup:primary", 300), ("cache-warmer", 60), ("daily-rollup", 60), ("gc", 60), ("invoices:2026-12", 300),
    ("migrations", 60), ("report.weekly", 60), ("scheduler", 60), ("search-index:eu", 60), ("search-index:us", 60),
)  # fmt: skip


class DayOfLocks:
    """Workers of one project, all in this process, on a server with `clock`."""

    def __init__(self, url: str, service_key: str, clock: ManualClock) -> None:
        headers = {"Authorization": f"Bearer {service_key}", "User-Agent": CLIENT}
        self._client: Final = httpx.Client(base_url=url, headers=headers)
        self._url: Final = url
        self._clock: Final = clock
        self._random: Final = random.Random(7)
        self._held: Final[dict[str, tuple[str, str, int]]] = {}
        self._waiting: Final[list[threading.Thread]] = []

    def live_through(self) -> None:
        """The day until now, and what is held and waited for at its end. Takes some seconds."""
        end_ms = self._clock.now_ms() + DAY_MS
        self._busy_lock("billing", end_ms - 25 * MINUTE_MS, lost={9: "expired", 17: "forced"})
        billing = self._acquire("billing", "batch-7:9902")
        for _ in range(6):
            self._short_hold("payroll")
        self._acquire("newsletter", "cron-3:1207", ttl_seconds=1_800)  # and never renewed
        long = self._acquire("payroll", "web-2:380", ttl_seconds=60)
        while self._clock.now_ms() < end_ms - 20_000:
            self._clock.advance(20_000)
            self._renew("payroll", long, "web-2:380", 60)
            self._renew("billing", billing, "batch-7:9902", TTL_SECONDS)
            self._handle_queue()
        for key, ttl_seconds in HELD_NOW:
            holder = self._random.choice(HOLDERS)
            self._held[key] = self._acquire(key, holder, ttl_seconds=ttl_seconds), holder, ttl_seconds
        self._held["payroll"] = long, "web-2:380", 60
        self._held["billing"] = billing, "batch-7:9902", TTL_SECONDS
        for key, waiters in WAITERS.items():
            for number in range(waiters):
                self._wait(key, f"web-{number + 3}:{4_100 + number}")
        self.go_on()

    def go_on(self) -> None:
        """A few seconds later: every worker has renewed but the one that is stuck, some of them just now."""
        for key in sorted(self._held):
            self._clock.advance(700)
            self._renew(key, *self._held[key])
        self._clock.advance(1_500)

    def close(self) -> None:
        self._client.close()

    def _busy_lock(self, key: str, end_ms: int, lost: dict[int, str]) -> None:
        number = 0
        while self._clock.now_ms() < end_ms:
            holder = self._random.choice(HOLDERS)
            token = self._acquire(key, holder)
            for _ in range(self._random.choice((1, 2, 3, 6, 9))):
                self._clock.advance(RENEW_EVERY_MS)
                self._renew(key, token, holder, TTL_SECONDS)
            number += 1
            if lost.get(number) == "expired":
                self._clock.advance((TTL_SECONDS + 5) * 1_000)
            elif lost.get(number) == "forced":
                reason = {"X-Volcano-Reason": "stuck%20since%20the%20deploy%2C%20ticket%204711"}
                self._client.delete(f"/locks/{key}", headers=reason).raise_for_status()
            else:
                self._release(key, token)
            self._clock.advance(self._random.choice((2, 9, 25, 50)) * MINUTE_MS)

    def _handle_queue(self) -> None:
        """Some jobs from a queue, each under a lock of its own; some are handled by another worker already."""
        for number in range(self._random.choice((1, 2, 2, 3, 5))):
            key = f"job:{number}"
            token = self._acquire(key, self._random.choice(HOLDERS))
            if self._random.random() < 0.4:
                headers = {"X-Volcano-Lock-Token": str(uuid.uuid4())}
                self._client.post(f"/locks/{key}/lease", json={"ttl_seconds": TTL_SECONDS}, headers=headers)
            self._release(key, token)

    def _short_hold(self, key: str) -> None:
        token = self._acquire(key, "web-1:4211")
        self._clock.advance(self._random.choice((8, 12, 20)) * 1_000)
        self._release(key, token)

    def _acquire(self, key: str, holder: str, ttl_seconds: int = TTL_SECONDS) -> str:
        token = str(uuid.uuid4())
        headers = {"X-Volcano-Lock-Token": token, "X-Volcano-Lock-Holder": holder}
        self._client.post(f"/locks/{key}/lease", json={"ttl_seconds": ttl_seconds}, headers=headers).raise_for_status()
        return token

    def _renew(self, key: str, token: str, holder: str, ttl_seconds: int) -> None:
        headers = {"X-Volcano-Lock-Token": token, "X-Volcano-Lock-Holder": holder}
        body = {"ttl_seconds": ttl_seconds}
        self._client.patch(f"/locks/{key}/lease", json=body, headers=headers).raise_for_status()

    def _release(self, key: str, token: str) -> None:
        self._client.delete(f"/locks/{key}/lease", headers={"X-Volcano-Lock-Token": token}).raise_for_status()

    def _wait(self, key: str, holder: str) -> None:
        """Wait in a thread, which ends with the server."""
        headers = {**self._client.headers, "X-Volcano-Lock-Token": str(uuid.uuid4()), "X-Volcano-Lock-Holder": holder}

        def wait() -> None:
            body = {"ttl_seconds": 60, "wait_seconds": 60}
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(f"{self._url}/locks/{key}/lease", json=body, headers=headers, timeout=600)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self._waiting.append(thread)
