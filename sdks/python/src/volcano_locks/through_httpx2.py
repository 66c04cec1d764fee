"""The same exchanges through httpx2: over a transport that the caller gave, or through a proxy that is set."""

import httpx2

from volcano_locks.answers import ANSWER_BYTES_MAX, BrokenAnswerError, Fields, Received, check_whose
from volcano_locks.connections import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_SECONDS,
    LONG_CONNECTIONS_MAX,
    NotConnectedError,
    Rooms,
)


class ThroughHttpx2:
    """A client of httpx2 for one event loop. It sets no limit of time: whoever asks does."""

    def __init__(self, api_url: str, transport: httpx2.AsyncBaseTransport | None) -> None:
        self._api_url = api_url
        self._rooms = Rooms()
        self._client = httpx2.AsyncClient(
            transport=transport,
            follow_redirects=False,
            timeout=None,
            limits=httpx2.Limits(
                max_connections=CONNECTIONS_MAX + LONG_CONNECTIONS_MAX,
                max_keepalive_connections=CONNECTIONS_MAX,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            ),
        )

    async def exchange(self, method: str, path: str, headers: Fields, body: bytes, *, long: bool = False) -> Received:
        """See `Connections.exchange`."""
        try:
            async with (
                self._rooms.room(long=long),
                self._client.stream(
                    method, self._api_url + path, headers=list(headers), content=body or None
                ) as response,
            ):
                answered = _lowered(response.headers)
                check_whose(answered, b" ".join([value for _, value in headers]))
                return Received(response.status_code, answered, await _body(response))
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            raise NotConnectedError(f"{type(error).__name__}: {error}") from error
        except httpx2.HTTPError as error:
            raise BrokenAnswerError(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """End all connections."""
        await self._client.aclose()


async def _body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise BrokenAnswerError(f"answer longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _lowered(headers: httpx2.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
