"""The face of the wire: requests as any HTTP client sends them, answers held to spec/http.md and spec/errors.yaml.

What a scenario does not ask about is checked at each answer all the same: the status that belongs to the verb or to
the code, exactly the documented fields, the echoed request id, and the form of instants and fencing tokens.
"""

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx2
import yaml

from .event_stream import EventStream
from .failures import failure, race_told
from .quiescence import come_to_rest, go_on, go_on_until
from .server_harness import House
from .service import count_of, holder_of, place_of, tokens_of
from .target import Answer

REQUESTS: Final = {
    "acquire": ("POST", "/lease", 201),
    "renew": ("PATCH", "/lease", 200),
    "release": ("DELETE", "/lease", 204),
    "get": ("GET", "", 200),
    "view": ("GET", "", 200),
    "force_release": ("DELETE", "", 204),
}
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FENCING_TOKEN_MAX: Final = 2**53 - 1
ROW: Final = (
    "key", "held", "holder", "acquired_at", "renewed_at", "expires_at", "ttl_seconds", "fencing_token", "waiters",
)  # fmt: skip
OF_A_LEASE: Final = ("holder", "acquired_at", "renewed_at", "expires_at", "ttl_seconds")
REAL_SECONDS_MAX: Final = 60.0
LAST: Final = "last"
EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")


def statuses() -> dict[str, int]:
    """The status of each code, as spec/errors.yaml says."""
    table = yaml.safe_load((Path(__file__).parents[2] / "spec" / "errors.yaml").read_text("utf-8"))
    return {code: row["status"] for code, row in table.items()}


class HttpFace:
    """Raw HTTP to a house. The requests run in the house's loop."""

    makes_tokens = False

    def __init__(self, house: House) -> None:
        self._house: Final = house
        self._statuses: Final = statuses()
        self._under_way = 0
        self._waits: Final[dict[tuple[str, str], asyncio.Task[Answer]]] = {}
        self._streams: Final[dict[str, EventStream]] = {}
        self._client = self._new_client()

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        match verb:
            case "race" | "wait" | "waited" | "hang_up" | "list" | "hear" | "heard":
                return self._house.loop.run(getattr(self, f"_{verb}")(args))
            case "outage" | "outage_ends":
                self._house.fail(str(args.get("kind", "")), count_of(args) if verb == "outage" else 0)
                return {}
            case "restart":
                return self._restart(int(str(args.get("clock_behind_ms", 0))))
            case "purge":
                return self._house.purge()
            case "search_store":
                return self._house.search(str(args["text"]))
            case _:
                return self._house.loop.run(self._ask_and_wait(verb, args))

    def advance(self, ms: int) -> None:
        self._house.loop.run(go_on(self._house.clock, ms, self._is_at_rest))

    def now_ms(self) -> int:
        return self._house.clock.now_ms()

    def close(self) -> None:
        for wait in self._waits.values():
            self._house.loop.loop.call_soon_threadsafe(wait.cancel)
        for stream in self._streams.values():
            self._house.loop.run(stream.end())
        self._house.loop.run(self._client.aclose())
        self._house.close()

    def _new_client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {self._house.service_key}"}
        return httpx2.AsyncClient(
            base_url=self._house.url,
            headers=headers,
            transport=self._house.transport(),
            timeout=REAL_SECONDS_MAX,
            limits=httpx2.Limits(max_connections=None),
        )

    def _restart(self, clock_behind_ms: int) -> Answer:
        answer = self._house.restart(clock_behind_ms)
        if "error" not in answer:
            self._house.settle(lambda: self._under_way)
        self._house.loop.run(self._client.aclose())
        self._client = self._new_client()
        return answer

    async def _race(self, args: Mapping[str, object]) -> Answer:
        racers = ({**args, "token": token} for token in tokens_of(args))
        race = asyncio.gather(*(self._ask("acquire", racer) for racer in racers))
        if args.get("wait_seconds"):
            await go_on_until(self._house.clock, race.done, self._is_at_rest)
        return race_told(await race)

    async def _wait(self, args: Mapping[str, object]) -> Answer:
        self._waits[place_of(args)] = asyncio.create_task(self._ask("acquire", args))
        await come_to_rest(self._is_at_rest)
        return {}

    async def _waited(self, args: Mapping[str, object]) -> Answer:
        await come_to_rest(self._is_at_rest)
        wait = self._waits[place_of(args)]
        return wait.result() if wait.done() else {"pending": True}

    async def _hang_up(self, args: Mapping[str, object]) -> Answer:
        self._waits[place_of(args)].cancel()
        await come_to_rest(self._is_at_rest)
        return {}

    async def _ask_and_wait(self, verb: str, args: Mapping[str, object]) -> Answer:
        asking = asyncio.create_task(self._ask(verb, args))
        if args.get("wait_seconds"):
            await go_on_until(self._house.clock, asking.done, self._is_at_rest)
        return await asking

    async def _hear(self, args: Mapping[str, object]) -> Answer:
        """A stream in place of the actor's last one; `after` is the id to go on from, or `last`: that one's."""
        actor, before = str(args["actor"]), self._streams.pop(str(args["actor"]), None)
        if before is not None:
            await before.end()
        headers = {}
        if "after" in args:
            after = str(args["after"])
            headers["Last-Event-ID"] = before.last_id if before is not None and after == LAST else after
        alone = f"/locks/{quote(str(args['key']), safe='')}/events" if "key" in args else "/locks/events"
        query = {"prefix": str(args["prefix"])} if "prefix" in args else None
        request = self._client.build_request("GET", alone, headers=headers, params=query)
        response = await self._client.send(request, stream=True)
        if response.is_error:
            await response.aread()
            return {**self._failed(response), **_quota_told(response.headers)}
        stream = self._streams[actor] = EventStream(response)
        await stream.begun()
        return _quota_told(response.headers)

    async def _heard(self, args: Mapping[str, object]) -> Answer:
        await come_to_rest(self._is_at_rest)
        return {"events": await self._streams[str(args["actor"])].take(int(str(args.get("count", 0))))}

    def _is_at_rest(self) -> bool:
        return self._house.is_at_rest(self._under_way)

    async def _list(self, args: Mapping[str, object]) -> Answer:
        """All pages; each row is in the form of a row."""
        asked: dict[str, object] = {word: args[word] for word in ("prefix", "state", "limit") if word in args}
        keys: list[str] = []
        while True:
            answer = await self._client.get("/locks", params=asked)  # type: ignore[arg-type]
            if answer.is_error:
                return {**self._failed(answer), **_quota_told(answer.headers)}
            page = answer.json()
            assert set(page) == {"items", "next_cursor"}, f"fields of a page: {sorted(page)}"
            assert len(page["items"]) <= int(str(args.get("limit", 100)))
            keys += [row["key"] for row in page["items"] if _row_told(row)]
            if page["next_cursor"] is None:
                return {"keys": keys, **_quota_told(answer.headers)}
            asked["cursor"] = page["next_cursor"]

    async def _ask(self, verb: str, args: Mapping[str, object]) -> Answer:
        method, ending, status = REQUESTS[verb]
        headers = {"X-Volcano-Request-Id": str(uuid4()), "X-Volcano-Lock-Holder": holder_of(args)}
        if ending:
            headers["X-Volcano-Lock-Token"] = str(args["token"])
        body = {"ttl_seconds": args["ttl_seconds"]} if verb in ("acquire", "renew") else None
        if body is not None and "wait_seconds" in args:
            body["wait_seconds"] = args["wait_seconds"]
        path = f"/locks/{quote(str(args['key']), safe='')}{ending}"
        query = {"view": "full"} if verb == "view" else None
        self._under_way += 1
        try:
            response = await self._client.request(method, path, headers=headers, json=body, params=query)
        finally:
            self._under_way -= 1
        assert response.headers["x-volcano-request-id"] == headers["X-Volcano-Request-Id"]
        assert headers.get("X-Volcano-Lock-Token", "\0") not in response.text, "an answer repeats the owner token"
        told = self._failed(response) if response.is_error else _succeeded(response, verb, status)
        return {**told, **_quota_told(response.headers)}

    def _failed(self, response: httpx2.Response) -> Answer:
        body = response.json()
        assert set(body) == {"error", "code"}, f"an error is a sentence and a code; got {sorted(body)}"
        assert response.status_code == self._statuses[body["code"]], f"{response.status_code} for {body['code']}"
        wait = response.headers.get("retry-after")
        return failure(body["code"], None if wait is None else int(wait))


def _succeeded(response: httpx2.Response, verb: str, status: int) -> Answer:
    assert response.status_code == status, f"{verb} succeeds with {status}; got {response.status_code}"
    if status == 204:
        assert response.content == b""
        return {}
    body = response.json()
    if verb == "view":
        return _row_told(body)
    if verb == "get" and body == {"held": False}:
        return body  # type: ignore[no-any-return]
    term = {"expires_at", "fencing_token"}
    assert set(body) == (term | {"held"} if verb == "get" else term), f"fields of {verb}: {sorted(body)}"
    assert INSTANT.fullmatch(body["expires_at"]), body["expires_at"]
    assert type(body["fencing_token"]) is int
    assert 1 <= body["fencing_token"] <= FENCING_TOKEN_MAX
    told = {"expires_at_ms": ms_of(datetime.fromisoformat(body["expires_at"])), "fencing_token": body["fencing_token"]}
    return {"held": True, **told} if verb == "get" else told


def _row_told(row: Mapping[str, Any]) -> Answer:
    assert tuple(row) == ROW, f"fields of a row: {list(row)}"
    if not row["held"]:
        assert all(row[field] is None for field in OF_A_LEASE), f"a free row tells of a lease: {row}"
    told = dict(row)
    for field in ("acquired_at", "renewed_at", "expires_at"):
        instant = told.pop(field)
        if instant is not None:
            assert INSTANT.fullmatch(instant), instant
            told[f"{field}_ms"] = ms_of(datetime.fromisoformat(instant))
    return told


def ms_of(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def _quota_told(headers: httpx2.Headers) -> Answer:
    """What the three headers say, which every lock answer carries; nothing where there is no quota."""
    limit, remaining, reset = (int(headers[f"x-ratelimit-{word}"]) for word in ("limit", "remaining", "reset"))
    return {"quota_limit": limit, "quota_remaining": remaining, "quota_reset_at_seconds": reset} if limit else {}
