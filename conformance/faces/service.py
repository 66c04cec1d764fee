"""The face of `LockService.perform`, directly on a store."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from volcano_locks_server.errors import LockError
from volcano_locks_server.lease import Acquire, Command, ForceRelease, Granted, Read, Refused, Release, Renew, State
from volcano_locks_server.limits import LockKey, OwnerToken, parse_ttl_seconds
from volcano_locks_server.quota import Admission
from volcano_locks_server.service import Denied, LockService, Reply
from volcano_locks_server.store import LockStore
from volcano_locks_server.stores import OpenStore, open_store
from volcano_locks_server.testing import ManualClock

from ..grammar import Quota
from .face import Answer
from .failures import failure, race_told
from .faulty_store import ENDLESS, FaultyStore
from .search import kept_by, search

PROJECT_ID: Final = "00000000-0000-4000-8000-000000000001"
PURGE_LIMIT: Final = 1_000


class ServiceFace:
    """A service over the store of `store_url`; `between` may put another store in front of it."""

    makes_tokens = False

    def __init__(
        self,
        quota: Quota,
        store_url: str,
        folder: Path,
        between: Callable[[LockStore], LockStore] = lambda store: store,
    ) -> None:
        self._quota: Final = quota
        self._store_url: Final = store_url
        self._folder: Final = folder
        self._between: Final = between
        self._clock = ManualClock()
        self._runner: Final = asyncio.Runner()
        self._store: OpenStore | None = None
        self._runner.run(self._start())

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        try:
            return self._runner.run(self._do(verb, args))
        except LockError as error:
            return failure(error.code, error.retry_after_seconds)

    def advance(self, ms: int) -> None:
        self._clock.advance(ms)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        self._runner.run(self._stop())
        self._runner.close()

    async def _start(self) -> None:
        self._store = await open_store(self._store_url, self._clock)
        self._faults = FaultyStore(self._between(self._store.locks))
        self._service = LockService(self._faults, self._clock, owner_reserve=self._quota.owner_reserve)

    async def _stop(self) -> None:
        if self._store is not None:
            await self._service.close()
            await self._store.close()
            self._store = None

    async def _do(self, verb: str, args: Mapping[str, object]) -> Answer:
        match verb:
            case "race":
                racers = ({**args, "token": token} for token in tokens_of(args))
                return race_told(await asyncio.gather(*(self._perform("acquire", racer) for racer in racers)))
            case "outage" | "outage_ends":
                self._faults.fail(str(args.get("kind", "")), count_of(args) if verb == "outage" else 0)
            case "restart":
                await self._stop()
                self._clock = ManualClock(self._clock.now_ms() - int(str(args.get("clock_behind_ms", 0))))
                await self._start()
            case "purge":
                return {"purged": await self._faults.purge(limit=PURGE_LIMIT)}
            case "search_store":
                assert self._store is not None
                return search(str(args["text"]), kept_by(self._store, self._folder))
            case _:
                return await self._perform(verb, args)
        return {}

    async def _perform(self, verb: str, args: Mapping[str, object]) -> Answer:
        key, command = LockKey.parse(str(args["key"])), _command(verb, args)
        reply = await self._service.perform(PROJECT_ID, self._quota.requests_per_minute, key, command)
        return {**_told(reply), **_quota_told(reply.admission)}


def tokens_of(args: Mapping[str, object]) -> list[str]:
    """The racers' owner tokens."""
    tokens = args["tokens"]
    assert isinstance(tokens, list)
    return tokens


def count_of(args: Mapping[str, object]) -> int:
    """How often an outage strikes: ENDLESS where it is not told."""
    return int(str(args.get("count", ENDLESS)))


def _command(verb: str, args: Mapping[str, object]) -> Command:
    """The command behind a verb, parsed as a door parses it. Raises LockError."""
    match verb:
        case "acquire":
            return Acquire(_digest(args), parse_ttl_seconds(args["ttl_seconds"]))
        case "renew":
            return Renew(_digest(args), parse_ttl_seconds(args["ttl_seconds"]))
        case "release":
            return Release(_digest(args))
        case "get":
            return Read()
        case "force_release":
            return ForceRelease()
        case _:
            raise NotImplementedError(f"this face does not know the verb {verb}")


def _digest(args: Mapping[str, object]) -> bytes:
    return OwnerToken.parse(str(args["token"])).digest


def _told(reply: Reply) -> Answer:
    match reply.outcome:
        case Denied() as denied:
            return failure(denied.code, denied.retry_after_seconds)
        case Refused() as refused:
            return failure(refused.code)
        case Granted() as granted:
            return {"expires_at_ms": granted.expires_at_ms, "fencing_token": granted.fencing_token}
        case State(lease=None):
            return {"held": False}
        case State(lease=lease):
            assert lease is not None
            return {"held": True, "expires_at_ms": lease.expires_at_ms, "fencing_token": lease.fencing_token}
        case _:
            return {}


def _quota_told(admission: Admission) -> Answer:
    if admission.limit == 0:
        return {}
    return {
        "quota_limit": admission.limit,
        "quota_remaining": admission.remaining,
        "quota_reset_at_seconds": admission.reset_at_seconds,
    }
