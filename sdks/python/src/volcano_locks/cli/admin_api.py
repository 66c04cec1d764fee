"""The admin API client for `project`, `key` and `backup`: one request at a time, never retried.

Responses and errors are parsed by the client's own code (`protocol.messages`), so error messages are the same.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import urlencode

from volcano_locks.clock import SystemClock
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.http.response_reader import BrokenResponseError, NotConnectedError
from volcano_locks.http.transport import USER_AGENT, HttpCodec, timeout_error
from volcano_locks.protocol import arguments, messages
from volcano_locks.protocol.effects import Request
from volcano_locks.sync.call import Call, TimeUp
from volcano_locks.sync.pool import SocketPool

from . import exit_codes
from .connection import Connection
from .error_messages import exit_on_client_error

PAGE_LIMIT: Final = 100
RESPONSE_BYTES_MAX: Final = 2**40  # a backup may be of any size

JsonObject = dict[str, Any]


class AdminClient:
    """Sends requests with the admin token."""

    def __init__(self, config: Config) -> None:
        address = Address.of(config.api_url)
        self._clock = SystemClock()
        self._pool = SocketPool(address, config.ca_file, self._clock)
        self._codec = HttpCodec(config, address.proxy)
        self._credential = f"Bearer {config.service_key}".encode()

    def close(self) -> None:
        """Close its connections."""
        self._pool.close()

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        **query: str | int,
    ) -> JsonObject:
        """The response's JSON object, empty if it has no body. Raises a VolcanoError on a refusal or no response."""
        response, request_id = self._send(method, path, body, query, timeout_seconds)
        try:
            found = json.loads(response.body) if response.body else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise messages.malformed_response(response, "its body is not an object", request_id)
        return found

    def fetch(self, path: str, **query: str | int) -> bytes:
        """The response's bytes. Raises a VolcanoError on a refusal or no response."""
        return self._send("GET", path, None, query, TIMEOUT_SECONDS)[0].body

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str | int],
        timeout_seconds: float,
    ) -> tuple[messages.Response, str]:
        """A successful response, and the request's id."""
        request_id = arguments.new_uuid()
        path += f"?{urlencode(query)}" if query else ""
        headers = [
            (b"Authorization", self._credential),
            (b"User-Agent", USER_AGENT.encode()),
            (b"X-Volcano-Request-Id", request_id.encode()),
        ]
        content = b""
        if body is not None:
            headers.append((b"Content-Type", b"application/json"))
            content = json.dumps(body).encode()
        request = Request(method, path, request_id, timeout_seconds)
        until = self._clock.now() + timeout_seconds
        try:
            outgoing = OutgoingRequest(method, path, headers, content)
            response = self._pool.exchange(outgoing, until, Call(self._clock), bytes_max=RESPONSE_BYTES_MAX)
        except TimeUp:
            raise timeout_error(request, timeout_seconds) from None
        except (NotConnectedError, BrokenResponseError) as error:
            raise self._codec.failure(request, error) from error
        if response.status // 100 != 2:
            raise messages.error_from_response(
                response._replace(url=self._codec.url_of(request)), request_id=request_id
            )
        return response, request_id

    def list_all(self, path: str) -> list[JsonObject]:
        """All items of a list, page by page."""
        items: list[JsonObject] = []
        page = self.request("GET", path, limit=PAGE_LIMIT)
        items += page["items"]
        while page.get("next_cursor"):
            page = self.request("GET", path, limit=PAGE_LIMIT, cursor=page["next_cursor"])
            items += page["items"]
        return items

    def project(self, name_or_id: str) -> JsonObject:
        """The project with that id, else with that name. Exit 64 if there is none."""
        return find(self.list_all("/projects"), name_or_id, "project")

    def service_key(self, project_id: str, name_or_id: str) -> JsonObject:
        """The project's service key with that id, else with that name. Exit 64 if there is none."""
        return find(self.list_all(keys_path(project_id)), name_or_id, "service key")


def keys_path(project_id: str, key_id: str | None = None) -> str:
    """The path of a project's service keys, or of one of them."""
    path = f"/projects/{project_id}/service-keys"
    return path if key_id is None else f"{path}/{key_id}"


@contextmanager
def admin_client(connection: Connection) -> Iterator[AdminClient]:
    """An AdminClient for `connection`. Inside the block, errors end the command with a message."""
    with exit_on_client_error(connection):
        config = Config.resolve(connection.api_url, connection.secret, TIMEOUT_SECONDS, None)
        with closing(AdminClient(config)) as client:
            yield client


def find(items: list[JsonObject], name_or_id: str, what: str) -> JsonObject:
    """The item with that id, else with that name. Exit 64 if there is none."""
    by_id = [item for item in items if item["id"] == name_or_id]
    by_name = [item for item in items if item["name"] == name_or_id]
    found = by_id or by_name
    if not found:
        known = ", ".join(sorted(str(item["name"]) for item in items)[:10]) or "none"
        raise exit_codes.Exit(f"no {what} has the id or name {name_or_id!r}; existing: {known}", exit_codes.USAGE)
    return found[0]
