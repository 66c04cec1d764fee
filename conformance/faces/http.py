"""The face of the wire: requests as any HTTP client sends them, answers held to spec/http.md and spec/errors.yaml.

What a scenario does not ask about is checked at each answer all the same: the status that belongs to the verb or to
the code, exactly the documented fields, the echoed request id, and the form of instants and fencing tokens.
"""

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote
from uuid import uuid4

import httpx2
import yaml

from .face import Answer
from .failures import failure, race_told
from .house import House
from .service import count_of, tokens_of

REQUESTS: Final = {
    "acquire": ("POST", "/lease", 201),
    "renew": ("PATCH", "/lease", 200),
    "release": ("DELETE", "/lease", 204),
    "get": ("GET", "", 200),
    "force_release": ("DELETE", "", 204),
}
INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FENCING_TOKEN_MAX: Final = 2**53 - 1
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
        self._client = self._new_client()

    def do(self, verb: str, args: Mapping[str, object]) -> Answer:
        match verb:
            case "race":
                return self._house.loop.run(self._race(args))
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
                return self._house.loop.run(self._ask(verb, args))

    def advance(self, ms: int) -> None:
        self._house.clock.advance(ms)

    def now_ms(self) -> int:
        return self._house.clock.now_ms()

    def close(self) -> None:
        self._house.loop.run(self._client.aclose())
        self._house.close()

    def _new_client(self) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {self._house.service_key}"}
        return httpx2.AsyncClient(base_url=self._house.url, headers=headers, transport=self._house.transport())

    def _restart(self, clock_behind_ms: int) -> Answer:
        self._house.loop.run(self._client.aclose())
        answer = self._house.restart(clock_behind_ms)
        self._client = self._new_client()
        return answer

    async def _race(self, args: Mapping[str, object]) -> Answer:
        racers = ({**args, "token": token} for token in tokens_of(args))
        return race_told(await asyncio.gather(*(self._ask("acquire", racer) for racer in racers)))

    async def _ask(self, verb: str, args: Mapping[str, object]) -> Answer:
        method, ending, status = REQUESTS[verb]
        headers = {"X-Volcano-Request-Id": str(uuid4())}
        if ending:
            headers["X-Volcano-Lock-Token"] = str(args["token"])
        body = {"ttl_seconds": args["ttl_seconds"]} if verb in ("acquire", "renew") else None
        path = f"/locks/{quote(str(args['key']), safe='')}{ending}"
        response = await self._client.request(method, path, headers=headers, json=body)
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
    if verb == "get" and body == {"held": False}:
        return body  # type: ignore[no-any-return]
    term = {"expires_at", "fencing_token"}
    assert set(body) == (term | {"held"} if verb == "get" else term), f"fields of {verb}: {sorted(body)}"
    assert INSTANT.fullmatch(body["expires_at"]), body["expires_at"]
    assert type(body["fencing_token"]) is int
    assert 1 <= body["fencing_token"] <= FENCING_TOKEN_MAX
    told = {"expires_at_ms": ms_of(datetime.fromisoformat(body["expires_at"])), "fencing_token": body["fencing_token"]}
    return {"held": True, **told} if verb == "get" else told


def ms_of(instant: datetime) -> int:
    """Milliseconds since 1970."""
    return (instant - EPOCH) // timedelta(milliseconds=1)


def _quota_told(headers: httpx2.Headers) -> Answer:
    """What the three headers say, which every lock answer carries; nothing where there is no quota."""
    limit, remaining, reset = (int(headers[f"x-ratelimit-{word}"]) for word in ("limit", "remaining", "reset"))
    return {"quota_limit": limit, "quota_remaining": remaining, "quota_reset_at_seconds": reset} if limit else {}
