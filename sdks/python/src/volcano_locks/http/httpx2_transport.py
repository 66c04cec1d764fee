"""The same exchanges through httpx2: over a transport that the caller gave, or through a proxy that is set."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import httpx2

from volcano_locks.http.pool import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_SECONDS,
    LONG_CONNECTIONS_MAX,
    NotConnectedError,
    Rooms,
)
from volcano_locks.http.response_reader import ANSWER_BYTES_MAX, BrokenAnswerError, Fields, Received, check_whose


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
        with _told():
            async with (
                self._rooms.room(long=long),
                self._client.stream(
                    method, self._api_url + path, headers=list(headers), content=body or None
                ) as response,
            ):
                answered = _lowered(response.headers)
                check_whose(answered, b" ".join([value for _, value in headers]))
                return Received(response.status_code, answered, await _body(response))

    @asynccontextmanager
    async def listen(self, path: str, headers: Fields) -> AsyncIterator["_Stream"]:
        """See `Connections.listen`."""
        request = self._client.build_request("GET", self._api_url + path, headers=list(headers))
        async with self._rooms.room(long=True):
            stream = _Stream(self._client, request, b" ".join([value for _, value in headers]))
            try:
                yield stream
            finally:
                await stream.aclose()

    async def aclose(self) -> None:
        """End all connections."""
        await self._client.aclose()


class _Stream:
    """See `streams.Stream`."""

    def __init__(self, client: httpx2.AsyncClient, request: httpx2.Request, asked: bytes) -> None:
        self._client = client
        self._request = request
        self._asked = asked
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def head(self) -> tuple[int, Mapping[str, str]]:
        with _told():
            self._response = await self._client.send(self._request, stream=True)
        self._chunks = self._response.aiter_bytes()
        headers = _lowered(self._response.headers)
        check_whose(headers, self._asked)
        return self._response.status_code, headers

    async def read(self) -> bytes:
        assert self._chunks is not None
        with _told():
            return await anext(self._chunks, b"")

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise NotConnectedError(f"{type(error).__name__}: {error}") from error
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise BrokenAnswerError(f"{type(error).__name__}: {error}") from error


async def _body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise BrokenAnswerError(f"answer longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _lowered(headers: httpx2.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
