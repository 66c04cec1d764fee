"""The service as it stands on the wire: one request, one answer, and between which instants it was served.

The client would retry, check and interpret. A check needs the bare answer.
"""

import json
import re
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from volcano_locks.clock import Clock
from volcano_locks.errors import ServerError
from volcano_locks.protocol.effects import lease_path, lock_path
from volcano_locks.protocol.lease import Lease, LockState
from volcano_locks.protocol.messages import Response as PlainAnswer
from volcano_locks.protocol.messages import parse_lease, parse_state

if TYPE_CHECKING:
    import httpx2

ANSWER_BYTES_MAX: Final = 65_536
KEEP_ALIVE_SECONDS: Final = 60.0
REQUEST_SECONDS_MAX: Final = 5.0

_CODE: Final = re.compile(r"[a-z_]{1,40}")

Headers = Mapping[str, str | None]


class Broken(Exception):  # noqa: N818 - a finding
    """A promise that does not hold; the text says what was seen."""


class Unjudged(Exception):  # noqa: N818 - a finding
    """Whether the promise holds could not be told; the text says why."""


class Answer(NamedTuple):
    """One answer, and the instants on this side's clock between which its request was served."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_at: float
    received_at: float

    @property
    def json(self) -> Any:
        """The body read as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def code(self) -> str | None:
        """The machine code of a refusal, if there is one that looks like one."""
        body = self.json
        code = body.get("code") if isinstance(body, dict) else None
        return code if isinstance(code, str) and _CODE.fullmatch(code) else None

    def __str__(self) -> str:
        """`409 lock_held`: nothing that the server could have put a secret into."""
        return f"{self.status} {self.code}" if self.code else str(self.status)

    def expect(self, status: int, code: str | None = None, *, to: str) -> Self:
        """This answer if it has that status (and code), else Broken with `to` as what was asked for."""
        if self.status != status or (code is not None and self.code != code):
            raise Broken(f"{to}: expected {status}{f' {code}' if code else ''}, got {self}")
        return self


class Wire:
    """Sends requests with the service key. Use as an asynchronous context manager."""

    def __init__(
        self, api_url: str, service_key: str, clock: Clock, transport: "httpx2.AsyncBaseTransport | None" = None
    ) -> None:
        import httpx2  # noqa: PLC0415 - the other commands must not pay for it

        self.clock = clock
        self.requests = 0
        self._api_url = api_url.rstrip("/")
        self._credential = f"Bearer {service_key}"
        # A question about a second's band must not begin with a handshake: connections outlive the leases.
        self._client = httpx2.AsyncClient(
            transport=transport,
            follow_redirects=False,
            timeout=REQUEST_SECONDS_MAX,
            limits=httpx2.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        body: object = None,
        headers: Headers | None = None,
    ) -> Answer:
        """One request; `headers` replace the usual ones, None leaves one out.

        Raises Unjudged where there is no answer, or one that says nothing of the promise: 429 and 5xx.
        """
        import httpx2  # noqa: PLC0415 - see __init__

        usual: Headers = {
            "Authorization": self._credential,
            "X-Volcano-Request-Id": str(uuid.uuid4()),
            "X-Volcano-Lock-Token": token,
            "Content-Type": None if body is None else "application/json",
        }
        fields = {name: value for name, value in {**usual, **(headers or {})}.items() if value is not None}
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        self.requests += 1
        sent_at = self.clock.now()
        try:
            response = await self._client.request(method, self._api_url + path, headers=fields, content=content)
        except httpx2.HTTPError as error:
            raise Unjudged(f"no answer to {method}: {type(error).__name__}") from None
        received_at = self.clock.now()
        seen = {name.lower(): value for name, value in response.headers.items()}
        answer = Answer(response.status_code, seen, response.content[:ANSWER_BYTES_MAX], sent_at, received_at)
        if answer.status == 429:
            raise Unjudged(f"{answer}: the project's quota is spent, try again in a minute")
        if answer.status >= 500:
            raise Unjudged(f"{method} was answered {answer}")
        return answer

    async def acquire(self, key: str, token: str, ttl_seconds: int) -> Answer:
        """Ask for the lock."""
        return await self.send("POST", lease_path(key), token=token, body={"ttl_seconds": ttl_seconds})

    async def renew(self, key: str, token: str, ttl_seconds: int) -> Answer:
        """Ask for more time."""
        return await self.send("PATCH", lease_path(key), token=token, body={"ttl_seconds": ttl_seconds})

    async def release(self, key: str, token: str) -> Answer:
        """Give the lock back."""
        return await self.send("DELETE", lease_path(key), token=token)

    async def read(self, key: str) -> Answer:
        """Look at the lock."""
        return await self.send("GET", lock_path(key))

    async def force_release(self, key: str) -> Answer:
        """Free the lock whoever holds it."""
        return await self.send("DELETE", lock_path(key))


def lease_of(answer: Answer, key: str, token: str, ttl_seconds: int, status: int, *, to: str) -> Lease:
    """The lease an answer grants; Broken where it grants none, or not in the wire's form."""
    answer.expect(status, to=to)
    deadline = answer.sent_at + ttl_seconds
    try:
        return parse_lease(
            _plain(answer), key=key, token=token, ttl_seconds=ttl_seconds, deadline=deadline, request_id=""
        )
    except ServerError as error:
        raise Broken(f"{to}: {error}") from None


def state_of(answer: Answer) -> LockState:
    """The state a read tells; Broken where it tells none in the wire's form."""
    answer.expect(200, to="a read")
    try:
        return parse_state(_plain(answer), request_id="")
    except ServerError as error:
        raise Broken(f"a read: {error}") from None


def _plain(answer: Answer) -> PlainAnswer:
    return PlainAnswer(answer.status, answer.headers, answer.body)
