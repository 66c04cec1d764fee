"""Exchanges through httpx2: over a transport that the caller passed, or through a proxy."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import httpx2

from volcano_locks.http.pool import (
    CONNECTIONS_MAX,
    KEEP_ALIVE_SECONDS,
    LONG_CONNECTIONS_MAX,
    ConnectionLimits,
    NotConnectedError,
)
from volcano_locks.http.response_reader import RESPONSE_BYTES_MAX, BrokenResponseError, Headers, check_request_id
from volcano_locks.protocol.messages import Response


class Httpx2Pool:
    """A `ConnectionPool` on an httpx2 client for one event loop. It sets no time limits; `transport` does."""

    def __init__(self, api_url: str, transport: httpx2.AsyncBaseTransport | None) -> None:
        self._api_url = api_url
        self._limits = ConnectionLimits()
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

    async def exchange(self, method: str, path: str, headers: Headers, body: bytes, *, long: bool = False) -> Response:
        with _translated_errors():
            async with (
                self._limits.limit(long=long),
                self._client.stream(
                    method, self._api_url + path, headers=list(headers), content=body or None
                ) as response,
            ):
                received_headers = _lower_case_names(response.headers)
                check_request_id(received_headers, b" ".join([value for _, value in headers]))
                return Response(response.status_code, received_headers, await _read_body(response))

    @asynccontextmanager
    async def open_stream(self, path: str, headers: Headers) -> AsyncIterator["_Httpx2Stream"]:
        request = self._client.build_request("GET", self._api_url + path, headers=list(headers))
        async with self._limits.limit(long=True):
            stream = _Httpx2Stream(self._client, request, b" ".join([value for _, value in headers]))
            try:
                yield stream
            finally:
                await stream.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


class _Httpx2Stream:
    """A `ResponseStream` of httpx2."""

    def __init__(self, client: httpx2.AsyncClient, request: httpx2.Request, sent: bytes) -> None:
        self._client = client
        self._request = request
        self._sent = sent
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    async def head(self) -> tuple[int, Mapping[str, str]]:
        with _translated_errors():
            self._response = await self._client.send(self._request, stream=True)
        self._chunks = self._response.aiter_bytes()
        headers = _lower_case_names(self._response.headers)
        check_request_id(headers, self._sent)
        return self._response.status_code, headers

    async def read(self) -> bytes:
        assert self._chunks is not None
        with _translated_errors():
            return await anext(self._chunks, b"")

    async def aclose(self) -> None:
        if self._response is not None:
            await self._response.aclose()


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise NotConnectedError(f"{type(error).__name__}: {error}") from error
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        raise BrokenResponseError(f"{type(error).__name__}: {error}") from error


async def _read_body(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > RESPONSE_BYTES_MAX:
            raise BrokenResponseError(f"response longer than {RESPONSE_BYTES_MAX} bytes")
    return bytes(body)


def _lower_case_names(headers: httpx2.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
