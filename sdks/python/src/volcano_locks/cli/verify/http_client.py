"""A bare HTTP client for checks: one request, one response, and the interval in which the server handled it.

The project's client would retry, validate and interpret. A check needs the response itself.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from volcano_locks.asyncio.pool import AsyncConnectionPool, AsyncioPool
from volcano_locks.clock import Clock
from volcano_locks.errors import ServerError
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.http.response_reader import BrokenResponseError, NotConnectedError, ResponseReader
from volcano_locks.protocol import messages
from volcano_locks.protocol.effects import lease_path, lock_path
from volcano_locks.protocol.lease import Lease, LockState
from volcano_locks.protocol.messages import Response as ProtocolResponse

REQUEST_SECONDS_MAX: Final = 5.0

_CODE: Final = re.compile(r"[a-z_]{1,40}")

Headers = Mapping[str, str | None]


class BrokenPromise(Exception):  # noqa: N818 - a finding
    """A promise does not hold; the text says what was observed."""


class Inconclusive(Exception):  # noqa: N818 - a finding
    """No verdict about the promise was possible; the text says why."""


class TimedResponse(NamedTuple):
    """One response, with the instants of this machine's clock between which the server handled the request."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_at: float
    received_at: float

    @property
    def json(self) -> Any:
        """The body parsed as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def code(self) -> str | None:
        """The error code of a refusal, if it has a well-formed one."""
        body = self.json
        code = body.get("code") if isinstance(body, dict) else None
        return code if isinstance(code, str) and _CODE.fullmatch(code) else None

    def __str__(self) -> str:
        """Such as `409 lock_held`: no text from the server, which could contain a secret."""
        return f"{self.status} {self.code}" if self.code else str(self.status)

    def expect(self, status: int, code: str | None = None, *, to: str) -> Self:
        """This response if it has that status (and code), else BrokenPromise; `to` describes the request."""
        if self.status != status or (code is not None and self.code != code):
            raise BrokenPromise(f"{to}: expected {status}{f' {code}' if code else ''}, got {self}")
        return self


class HttpClient:
    """Sends requests with the service key. Use as an asynchronous context manager."""

    def __init__(self, api_url: str, service_key: str, clock: Clock, pool: AsyncConnectionPool | None = None) -> None:
        self.clock = clock
        self.requests = 0
        self._credential = f"Bearer {service_key}"
        # A check around an expiry must not begin with a handshake, so the pool keeps connections open.
        address = Address.of(api_url)
        self._pool = pool or AsyncioPool(address, address.tls_context(None), _unchecked_reader)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: object = None,
        headers: Headers | None = None,
    ) -> TimedResponse:
        """Sends one request. `headers` replace the default ones; None omits one.

        Raises Inconclusive if there is no response, or a 429 or 5xx, which is no evidence about the promise.
        """
        defaults: Headers = {
            "Authorization": self._credential,
            "X-Volcano-Request-Id": str(uuid.uuid4()),
            "X-Volcano-Lock-Token": token,
            "Content-Type": None if body is None else "application/json",
        }
        fields = {name: value for name, value in {**defaults, **(headers or {})}.items() if value is not None}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        encoded = [(name.encode(), value.encode()) for name, value in fields.items()]
        self.requests += 1
        sent_at = self.clock.now()
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                raw = await self._pool.exchange(OutgoingRequest(method, path, encoded, content))
        except (NotConnectedError, BrokenResponseError, OSError) as error:
            raise Inconclusive(f"no response to {method}: {error or type(error).__name__}") from None
        response = TimedResponse(raw.status, raw.headers, raw.body, sent_at, self.clock.now())
        if response.status == 429:
            raise Inconclusive(f"{response}: the project's quota is spent, try again in a minute")
        if response.status >= 500:
            raise Inconclusive(f"{method} got {response}")
        return response

    async def acquire(self, key: str, token: str, ttl_seconds: int) -> TimedResponse:
        """Requests the lock."""
        return await self.send("POST", lease_path(key), token=token, body={"ttl_seconds": ttl_seconds})

    async def renew(self, key: str, token: str, ttl_seconds: int) -> TimedResponse:
        """Renews the lease."""
        return await self.send("PATCH", lease_path(key), token=token, body={"ttl_seconds": ttl_seconds})

    async def release(self, key: str, token: str) -> TimedResponse:
        """Releases the lock."""
        return await self.send("DELETE", lease_path(key), token=token)

    async def read(self, key: str) -> TimedResponse:
        """Reads the lock's state."""
        return await self.send("GET", lock_path(key))

    async def force_release(self, key: str) -> TimedResponse:
        """Frees the lock from any holder."""
        return await self.send("DELETE", lock_path(key))


def parse_lease(response: TimedResponse, key: str, token: str, ttl_seconds: int, status: int, *, to: str) -> Lease:
    """The lease that a response grants. BrokenPromise if it grants none or is malformed."""
    response.expect(status, to=to)
    deadline = response.sent_at + ttl_seconds
    try:
        return messages.parse_lease(
            _plain(response), key=key, token=token, ttl_seconds=ttl_seconds, deadline=deadline, request_id=""
        )
    except ServerError as error:
        raise BrokenPromise(f"{to}: {error}") from None


def parse_state(response: TimedResponse) -> LockState:
    """The state that a read returned. BrokenPromise if it is malformed."""
    response.expect(200, to="a read")
    try:
        return messages.parse_state(_plain(response), request_id="")
    except ServerError as error:
        raise BrokenPromise(f"a read: {error}") from None


def _unchecked_reader(request: bytes) -> ResponseReader:
    """Accepts a response with any request id, because a check judges the id."""
    return ResponseReader(request.partition(b"\r\n")[0])


def _plain(response: TimedResponse) -> ProtocolResponse:
    return ProtocolResponse(response.status, response.headers, response.body)
