"""The raw HTTP target: requests as any HTTP client sends them.

Each response is checked against spec/http.md and spec/errors.yaml, beyond what the scenario expects: the status of the
verb or the code, exactly the documented fields, the echoed request id, and the format of instants and fencing tokens.
"""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

import httpx2
import yaml

from volcano_locks_server.testing import ManualClock

from .advance_clock import advance, settle
from .arguments import fault_count, holder_label
from .event_stream_reader import EventStreamReader
from .request_target import RequestTarget
from .results import failure, hold_text
from .server_harness import ServerHarness
from .target import Result

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
HOLDER_FIELDS: Final = ("holder", "expires_at", "fencing_token")
LEASE_FIELDS: Final = ("holder", "acquired_at", "renewed_at", "expires_at", "ttl_seconds")
REAL_SECONDS_MAX: Final = 60.0
LAST: Final = "last"
EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00Z")


def statuses() -> dict[str, int]:
    """The status of each error code in spec/errors.yaml."""
    table = yaml.safe_load((Path(__file__).parents[2] / "spec" / "errors.yaml").read_text("utf-8"))
    return {code: row["status"] for code, row in table.items()}


class RawHttpTarget(RequestTarget):
    """Raw HTTP to a harness. Requests run in the harness's event loop."""

    def __init__(self, harness: ServerHarness) -> None:
        super().__init__()
        self._harness: Final = harness
        self._statuses: Final = statuses()
        self._in_flight = 0
        self._streams: Final[dict[str, EventStreamReader]] = {}
        self._client = self._new_client()

    def do(self, verb: str, args: Mapping[str, object]) -> Result:
        match verb:
            case "race" | "wait" | "waited" | "hang_up" | "list" | "history" | "subscribe" | "events":
                return self._harness.loop.run(getattr(self, f"_{verb}")(args))
            case "outage" | "outage_ends":
                self._harness.fail(str(args.get("kind", "")), fault_count(args) if verb == "outage" else 0)
                return {}
            case "restart":
                return self._restart(int(str(args.get("clock_behind_ms", 0))))
            case "purge":
                return self._harness.purge()
            case "search_store":
                return self._harness.search(str(args["text"]))
            case _:
                return self._harness.loop.run(self._perform_and_wait(verb, args))

    def advance(self, ms: int) -> None:
        self._harness.loop.run(advance(self._harness.clock, ms, self._is_idle))

    def now_ms(self) -> int:
        return self._harness.clock.now_ms()

    def close(self) -> None:
        for wait in self._waits.values():
            self._harness.loop.loop.call_soon_threadsafe(wait.cancel)
        for stream in self._streams.values():
            self._harness.loop.run(stream.end())
        self._harness.loop.run(self._client.aclose())
        self._harness.close()

    def _new_client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {self._harness.service_key}"}
        return httpx2.AsyncClient(
            base_url=self._harness.url,
            headers=headers,
            transport=self._harness.transport(),
            timeout=REAL_SECONDS_MAX,
            limits=httpx2.Limits(max_connections=None),
        )

    def _restart(self, clock_behind_ms: int) -> Result:
        result = self._harness.restart(clock_behind_ms)
        if "error" not in result:
            self._harness.settle(lambda: self._in_flight)
        self._harness.loop.run(self._client.aclose())
        self._client = self._new_client()
        return result

    async def _subscribe(self, args: Mapping[str, object]) -> Result:
        """Replace the actor's stream. `after` is the id to resume from; `last` is the old stream's last id."""
        actor, before = str(args["actor"]), self._streams.pop(str(args["actor"]), None)
        if before is not None:
            await before.end()
        headers = {}
        if "after" in args:
            after = str(args["after"])
            headers["Last-Event-ID"] = before.last_id if before is not None and after == LAST else after
        path = f"/locks/{quote(str(args['key']), safe='')}/events" if "key" in args else "/locks/events"
        query = {"prefix": str(args["prefix"])} if "prefix" in args else None
        request = self._client.build_request("GET", path, headers=headers, params=query)
        response = await self._client.send(request, stream=True)
        if response.is_error:
            await response.aread()
            return {**self._failure(response), **_quota_result(response.headers)}
        stream = self._streams[actor] = EventStreamReader(response)
        await stream.begun()
        return _quota_result(response.headers)

    async def _events(self, args: Mapping[str, object]) -> Result:
        await settle(self._is_idle)
        return {"events": await self._streams[str(args["actor"])].take(int(str(args.get("count", 0))))}

    def _server_clock(self) -> ManualClock:
        return self._harness.clock

    def _is_idle(self) -> bool:
        return self._harness.is_idle(self._in_flight)

    async def _list(self, args: Mapping[str, object]) -> Result:
        """The keys of all pages. The format of each row is checked."""
        params: dict[str, object] = {word: args[word] for word in ("prefix", "state", "limit") if word in args}
        keys: list[str] = []
        while True:
            response = await self._client.get("/locks", params=params)  # type: ignore[arg-type]
            if response.is_error:
                return {**self._failure(response), **_quota_result(response.headers)}
            page = response.json()
            assert set(page) == {"items", "next_cursor"}, f"fields of a page: {sorted(page)}"
            assert len(page["items"]) <= int(str(args.get("limit", 100)))
            keys += [row["key"] for row in page["items"] if _row_result(row)]
            if page["next_cursor"] is None:
                return {"keys": keys, **_quota_result(response.headers)}
            params["cursor"] = page["next_cursor"]

    async def _history(self, args: Mapping[str, object]) -> Result:
        response = await self._client.get(f"/locks/{args['key']}/history")
        if response.is_error:
            return {**self._failure(response), **_quota_result(response.headers)}
        holds = [hold_text(one["holder"], one["ended"]) for one in response.json()["items"]]
        return {"holds": holds, **_quota_result(response.headers)}

    async def _perform(self, verb: str, args: Mapping[str, object]) -> Result:
        method, ending, status = REQUESTS[verb]
        headers = {"X-Volcano-Request-Id": str(uuid4()), "X-Volcano-Lock-Holder": holder_label(args)}
        if ending:
            headers["X-Volcano-Lock-Token"] = str(args["token"])
        body = {"ttl_seconds": args["ttl_seconds"]} if verb in ("acquire", "renew") else None
        if body is not None and "wait_seconds" in args:
            body["wait_seconds"] = args["wait_seconds"]
        path = f"/locks/{quote(str(args['key']), safe='')}{ending}"
        if "fencing_token" in args:
            path += f"/leases/{args['fencing_token']}"
        if "reason" in args:
            headers["X-Volcano-Reason"] = quote(str(args["reason"]))
        query = {"view": "full"} if verb == "view" else None
        self._in_flight += 1
        try:
            response = await self._client.request(method, path, headers=headers, json=body, params=query)
        finally:
            self._in_flight -= 1
        assert response.headers["x-volcano-request-id"] == headers["X-Volcano-Request-Id"]
        assert headers.get("X-Volcano-Lock-Token", "\0") not in response.text, "a response repeats the owner token"
        result = self._failure(response) if response.is_error else _success(response, verb, status)
        return {**result, **_quota_result(response.headers)}

    def _failure(self, response: httpx2.Response) -> Result:
        body = response.json()
        expected = {"error", "code", *(HOLDER_FIELDS if body["code"] == "lock_held" else ())}
        assert set(body) == expected, f"fields of {body['code']}: {sorted(body)}"
        assert response.status_code == self._statuses[body["code"]], f"{response.status_code} for {body['code']}"
        wait = response.headers.get("retry-after")
        result = failure(body["code"], None if wait is None else int(wait))
        return {**result, **_holder_result(body)} if body["code"] == "lock_held" else result


def _holder_result(body: Mapping[str, Any]) -> Result:
    """The lease that holds the lock, whose fields are null if unknown (HTTP-28)."""
    expires_at, fencing_token = body["expires_at"], body["fencing_token"]
    assert expires_at is None or INSTANT.fullmatch(expires_at), expires_at
    assert fencing_token is None or 1 <= fencing_token <= FENCING_TOKEN_MAX
    expires_at_ms = None if expires_at is None else ms_of(datetime.fromisoformat(expires_at))
    return {"holder": body["holder"], "expires_at_ms": expires_at_ms, "fencing_token": fencing_token}


def _success(response: httpx2.Response, verb: str, status: int) -> Result:
    assert response.status_code == status, f"{verb} succeeds with {status}; got {response.status_code}"
    if status == 204:
        assert response.content == b""
        return {}
    body = response.json()
    if verb == "view":
        assert isinstance(body.pop("queue"), list)  # LIST-9
        return _row_result(body)
    if verb == "get" and body == {"held": False}:
        return body  # type: ignore[no-any-return]
    term = {"expires_at", "fencing_token"}
    assert set(body) == (term | {"held"} if verb == "get" else term), f"fields of {verb}: {sorted(body)}"
    assert INSTANT.fullmatch(body["expires_at"]), body["expires_at"]
    assert type(body["fencing_token"]) is int
    assert 1 <= body["fencing_token"] <= FENCING_TOKEN_MAX
    expires_at_ms = ms_of(datetime.fromisoformat(body["expires_at"]))
    lease = {"expires_at_ms": expires_at_ms, "fencing_token": body["fencing_token"]}
    return {"held": True, **lease} if verb == "get" else lease


def _row_result(row: Mapping[str, Any]) -> Result:
    assert tuple(row) == ROW, f"fields of a row: {list(row)}"
    if not row["held"]:
        assert all(row[field] is None for field in LEASE_FIELDS), f"the row of a free lock has fields of a lease: {row}"
    result = dict(row)
    for field in ("acquired_at", "renewed_at", "expires_at"):
        instant = result.pop(field)
        if instant is not None:
            assert INSTANT.fullmatch(instant), instant
            result[f"{field}_ms"] = ms_of(datetime.fromisoformat(instant))
    return result


def ms_of(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def _quota_result(headers: httpx2.Headers) -> Result:
    """The quota headers, which every response about locks carries. Empty if the project has no quota."""
    limit, remaining, reset = (int(headers[f"x-ratelimit-{word}"]) for word in ("limit", "remaining", "reset"))
    return {"quota_limit": limit, "quota_remaining": remaining, "quota_reset_at_seconds": reset} if limit else {}
