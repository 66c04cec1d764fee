"""The face of `LockService.perform`, directly on a store."""

import asyncio
from collections.abc import Callable, Mapping
from hashlib import sha256
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
from .faulty_store import ENDLESS, FaultyStore

PROJECT_ID: Final = "00000000-0000-4000-8000-000000000001"
PURGE_LIMIT: Final = 1_000


class ServiceFace:
    """A service over the store of `store_url`; `broken` may put another store in between, to see it found out."""

    makes_tokens: Final = False

    def __init__(
        self, quota: Quota, store_url: str, folder: Path, broken: Callable[[LockStore], LockStore] | None = None
    ) -> None:
        self._quota: Final = quota
        self._store_url: Final = store_url
        self._folder: Final = folder
        self._broken: Final = broken
        self._clock = ManualClock()
        self._runner: Final = asyncio.Runner()
        self._store: OpenStore | None = None
        self._runner.run(self._start())

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        return self._runner.run(self._do(verb, args))

    def advance(self, ms: int) -> None:
        self._clock.advance(ms)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def close(self) -> None:
        self._runner.run(self._stop())
        self._runner.close()

    async def _start(self) -> None:
        self._store = await open_store(self._store_url, self._clock)
        locks = self._store.locks if self._broken is None else self._broken(self._store.locks)
        self._faults = FaultyStore(locks)
        self._service = LockService(self._faults, self._clock, owner_reserve=self._quota.owner_reserve)

    async def _stop(self) -> None:
        if self._store is not None:
            await self._service.close()
            await self._store.close()
            self._store = None

    async def _do(self, verb: str, args: Mapping[str, object]) -> Answer:
        try:
            match verb:
                case "race":
                    return await self._race(args)
                case "restart":
                    return await self._restart(args)
                case "outage":
                    self._faults.fail(str(args["kind"]), int(str(args.get("count", ENDLESS))))
                    return {}
                case "outage_ends":
                    self._faults.fail("", 0)
                    return {}
                case "purge":
                    return {"purged": await self._faults.purge(limit=PURGE_LIMIT)}
                case "search_store":
                    return await self._search(str(args["text"]))
                case _:
                    return await self._perform(args, _command(verb, args))
        except LockError as error:
            return _failure(error.code, error.retry_after_seconds)

    async def _perform(self, args: Mapping[str, object], command: Command) -> Answer:
        key = LockKey.parse(str(args["key"]))
        if self._store is None:
            return _failure("lock_unavailable", None)
        reply = await self._service.perform(PROJECT_ID, self._quota.requests_per_minute, key, command)
        return {**_told(reply), **_quota_told(reply.admission)}

    async def _race(self, args: Mapping[str, object]) -> Answer:
        tokens = args["tokens"]
        assert isinstance(tokens, list)
        entries = [{"key": args["key"], "ttl_seconds": args["ttl_seconds"], "token": token} for token in tokens]
        return race_told(await asyncio.gather(*(self._perform(one, _command("acquire", one)) for one in entries)))

    async def _restart(self, args: Mapping[str, object]) -> Answer:
        await self._stop()
        self._clock = ManualClock(self._clock.now_ms() - int(str(args.get("clock_behind_ms", 0))))
        await self._start()
        return {}

    async def _search(self, text: str) -> Answer:
        """Whether a token, or its digest, stands anywhere in what the store keeps: its files, or its objects."""
        assert self._store is not None
        kept = [repr(getattr(self._store.locks, "records", "")).encode()]
        kept += [path.read_bytes() for path in self._folder.rglob("*") if path.is_file()]
        raw = bytes.fromhex(text.replace("-", ""))
        return {
            "found": any(_stands_in(one, text.encode()) or _stands_in(one, raw) for one in kept),
            "digest_found": any(_stands_in(one, sha256(text.encode()).digest()) for one in kept),
        }


def _stands_in(kept: bytes, sought: bytes) -> bool:
    """As it is, in hex, or as Python shows it."""
    return any(form in kept for form in (sought, sought.hex().encode(), repr(sought)[2:-1].encode()))


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
            return _failure(denied.code, denied.retry_after_seconds)
        case Refused() as refused:
            return _failure(refused.code, None)
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


def _failure(code: str, retry_after_seconds: int | None) -> Answer:
    return (
        {"error": code} if retry_after_seconds is None else {"error": code, "retry_after_seconds": retry_after_seconds}
    )


def race_told(answers: list[Answer]) -> Answer:
    """How a race ended: how many were granted, how many refused with which code, and what a winner was told."""
    granted = [one for one in answers if "error" not in one]
    codes = [str(one["error"]) for one in answers if "error" in one]
    told: dict[str, object] = {
        "granted": len(granted),
        "refused": {code: codes.count(code) for code in sorted(set(codes))},
    }
    if granted:
        told |= {word: granted[0][word] for word in ("fencing_token", "expires_at_ms")}
    return told
