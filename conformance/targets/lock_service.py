"""The target that calls the lock service directly. Lists and rows are read from the store and the wait queues."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from testsupport.server_ports import FaultyStore
from testsupport.service_requests import Reply, perform

from volcano_locks_server.ports.lock_store import HistoryQuery, LockQuery, LockStore, RecordKey
from volcano_locks_server.rules.errors import LockError
from volcano_locks_server.rules.lease import (
    Acquire,
    Command,
    ForceRelease,
    Granted,
    Held,
    LockRecord,
    Read,
    Refused,
    Release,
    Renew,
    State,
    blocks_others,
)
from volcano_locks_server.rules.quota import Admission
from volcano_locks_server.rules.shares import Budgets
from volcano_locks_server.rules.values import (
    LIST_LIMIT_DEFAULT,
    LockKey,
    parse_owner_token,
    parse_ttl_seconds,
    parse_wait_ms,
)
from volcano_locks_server.service.lock_service import LockService
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock

from ..scenario.parser import Quota
from .advance_clock import advance
from .arguments import fault_count, holder_label
from .request_target import RequestTarget
from .results import failure, hold_text
from .store_failures import store_failures
from .store_search import search, stored_bytes
from .target import Result

PROJECT_ID: Final = "00000000-0000-4000-8000-000000000001"
PURGE_LIMIT: Final = 1_000
VERBS: Final = frozenset(
    {
        *("race", "wait", "waited", "hang_up", "outage", "outage_ends", "restart", "purge", "search_store"),
        *("view", "list", "history"),
    }
)
HELD_BY_STATE: Final = {"held": True, "free": False, "all": None}


class LockServiceTarget(RequestTarget):
    """A service over the store of `store_url`. `between` can wrap the store in another one."""

    def __init__(
        self,
        quota: Quota,
        store_url: str,
        folder: Path,
        between: Callable[[LockStore], LockStore] = lambda store: store,
    ) -> None:
        super().__init__()
        self._quota: Final = quota
        self._store_url: Final = store_url
        self._folder: Final = folder
        self._between: Final = between
        self._clock = ManualClock()
        self._runner: Final = asyncio.Runner()
        self._store: OpenStore | None = None
        self._runner.run(self._start())

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        try:
            return self._runner.run(self._do(verb, args))
        except LockError as error:
            return failure(error.code, error.retry_after_seconds)

    def advance(self, ms: int) -> None:
        self._runner.run(advance(self._clock, ms, self._is_idle))

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        for wait in self._waits.values():
            wait.cancel()
        self._runner.run(self._stop())
        self._runner.close()

    async def _start(self) -> None:
        self._store = await open_store(self._store_url, self._clock)
        self._faults = FaultyStore(self._between(self._store.locks))
        self._service = LockService(
            self._faults,
            self._clock,
            owner_reserve=self._quota.owner_reserve,
            budgets=Budgets(self._quota.budgets),
        )

    async def _stop(self) -> None:
        if self._store is not None:
            await self._service.close()
            await self._store.close()
            self._store = None

    async def _do(self, verb: str, args: Mapping[str, object]) -> Result:
        if verb in VERBS:
            return await getattr(self, f"_{verb}")(args)  # type: ignore[no-any-return]
        return await self._perform_and_wait(verb, args)

    async def _outage(self, args: Mapping[str, object]) -> Result:
        self._faults.recover()
        self._faults.fail_updates(store_failures(str(args["kind"]), fault_count(args)))
        return {}

    async def _outage_ends(self, _args: Mapping[str, object]) -> Result:
        self._faults.recover()
        return {}

    async def _restart(self, args: Mapping[str, object]) -> Result:
        await self._stop()
        self._clock = ManualClock(self._clock.now_ms() - int(str(args.get("clock_behind_ms", 0))))
        await self._start()
        return {}

    async def _purge(self, _args: Mapping[str, object]) -> Result:
        return {"purged": await self._faults.purge(limit=PURGE_LIMIT)}

    async def _search_store(self, args: Mapping[str, object]) -> Result:
        assert self._store is not None
        return search(str(args["text"]), stored_bytes(self._store, self._folder))

    async def _view(self, args: Mapping[str, object]) -> Result:
        key = LockKey.parse(str(args["key"]))
        page = await self._faults.list_locks(LockQuery(PROJECT_ID, 1, prefix=key))
        record = next((record for found, record in page.records if found == key), None)
        return {**_row(record, page.now_ms), "waiters": self._service.queues.count(RecordKey(PROJECT_ID, key))}

    async def _list(self, args: Mapping[str, object]) -> Result:
        """All pages."""
        held, limit = HELD_BY_STATE[str(args["state"])], int(str(args.get("limit", LIST_LIMIT_DEFAULT)))
        keys: list[str] = []
        after: str | None = ""
        while after is not None:
            query = LockQuery(PROJECT_ID, limit, prefix=str(args["prefix"]), after=after, held=held)
            page = await self._faults.list_locks(query)
            assert len(page.records) <= limit
            keys += [str(key) for key, _record in page.records]
            after = page.next_after
        return {"keys": keys}

    async def _history(self, args: Mapping[str, object]) -> Result:
        query = HistoryQuery(PROJECT_ID, LIST_LIMIT_DEFAULT, key=LockKey.parse(str(args["key"])))
        page = await self._faults.history_page(query)
        return {"holds": [hold_text(entry.holder, entry.ended) for _key, entry in page.entries]}

    async def _perform(self, verb: str, args: Mapping[str, object]) -> Result:
        key, command = LockKey.parse(str(args["key"])), _command(verb, args)
        wait_ms = parse_wait_ms(args.get("wait_seconds", 0))
        per_minute = self._quota.requests_per_minute
        reply = await perform(self._service, PROJECT_ID, per_minute, key, command, wait_ms=wait_ms)
        return {**_result(reply), **_quota_result(reply.admission)}

    def _server_clock(self) -> ManualClock:
        return self._clock

    def _is_idle(self) -> bool:
        return self._service.is_idle


def _row(record: LockRecord | None, now_ms: int) -> Result:
    token = None if record is None else record.fencing_token
    if not isinstance(record, Held) or not blocks_others(record, now_ms):
        return {"held": False, "fencing_token": token, "holder": None, "ttl_seconds": None}
    return {
        "held": True,
        "fencing_token": token,
        "holder": record.holder,
        "acquired_at_ms": record.acquired_at_ms,
        "renewed_at_ms": record.renewed_at_ms,
        "expires_at_ms": record.expires_at_ms,
        "ttl_seconds": record.ttl_seconds,
    }


def _command(verb: str, args: Mapping[str, object]) -> Command:
    """The command behind a verb, parsed as the HTTP layer parses it. Raises LockError."""
    match verb:
        case "acquire":
            return Acquire(_digest(args), parse_ttl_seconds(args["ttl_seconds"]), holder_label(args))
        case "renew":
            return Renew(_digest(args), parse_ttl_seconds(args["ttl_seconds"]), holder_label(args))
        case "release":
            return Release(_digest(args))
        case "get":
            return Read()
        case "force_release":
            fencing_token, reason = args.get("fencing_token"), args.get("reason")
            return ForceRelease(
                None if fencing_token is None else int(str(fencing_token)), None if reason is None else str(reason)
            )
        case _:
            raise NotImplementedError(f"this target does not know the verb {verb}")


def _digest(args: Mapping[str, object]) -> bytes:
    return parse_owner_token(str(args["token"]).encode())


def _result(reply: Reply) -> Result:
    match reply.outcome:
        case LockError() as denied:
            return failure(denied.code, denied.retry_after_seconds)
        case Refused() as refused:
            return {**failure(refused.code), **_holder_result(refused)}
        case Granted() as granted:
            return {"expires_at_ms": granted.expires_at_ms, "fencing_token": granted.fencing_token}
        case State(lease=None):
            return {"held": False}
        case State(lease=lease):
            assert lease is not None
            return {"held": True, "expires_at_ms": lease.expires_at_ms, "fencing_token": lease.fencing_token}
        case _:
            return {}


def _holder_result(refused: Refused) -> Result:
    """The lease that holds the lock, if that is why (HTTP-28)."""
    lease = refused.lease
    if refused.code != "lock_held":
        return {}
    if lease is None:
        return {"holder": None, "expires_at_ms": None, "fencing_token": None}
    return {"holder": lease.holder, "expires_at_ms": lease.expires_at_ms, "fencing_token": lease.fencing_token}


def _quota_result(admission: Admission) -> Result:
    if admission.limit == 0:
        return {}
    return {
        "quota_limit": admission.limit,
        "quota_remaining": admission.remaining,
        "quota_reset_at_seconds": admission.reset_at_seconds,
    }
