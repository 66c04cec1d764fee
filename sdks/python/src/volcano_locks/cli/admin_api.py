"""The admin API, for the commands `project` and `key`: one request at a time, nothing sent twice.

Answers and refusals are read with the client's own rules (`messages`), so an error says the same here as there.
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx2

from volcano_locks import __version__, errors
from volcano_locks.config import TIMEOUT_SECONDS, Config
from volcano_locks.protocol import arguments, messages

from . import exit_codes
from .connection import Connection
from .error_messages import explained

PAGE_LIMIT: Final = 100

Thing = dict[str, Any]


class Admin:
    """Requests with the admin token."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        **query: str | int,
    ) -> Thing:
        """The answer's object, empty when it has none; a VolcanoError for a refusal or no answer."""
        answer, request_id = self._answer(method, path, body, query, timeout_seconds)
        try:
            found = json.loads(answer.body) if answer.body else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise messages.malformed_response(answer, "its body is not an object", request_id)
        return found

    def fetch(self, path: str, **query: str | int) -> bytes:
        """The answer's bytes; a VolcanoError for a refusal or no answer."""
        return self._answer("GET", path, None, query, TIMEOUT_SECONDS)[0].body

    def _answer(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str | int],
        timeout_seconds: float,
    ) -> tuple[messages.Response, str]:
        """A successful answer, and the request's id."""
        request_id = arguments.new_uuid()
        try:
            response = self._http.request(
                method,
                path,
                json=body,
                params=query,
                headers={"X-Volcano-Request-Id": request_id},
                timeout=timeout_seconds,
            )
        except httpx2.HTTPError as error:
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            told = f"{type(error).__name__}: {error}"
            raise errors.TransportError(told, request_sent=sent, request_id=request_id) from error
        headers = {name.lower(): value for name, value in response.headers.items()}
        answer = messages.Response(response.status_code, headers, response.content)
        if not response.is_success:
            raise messages.error_from_response(answer, request_id=request_id)
        return answer, request_id

    def everything(self, path: str) -> list[Thing]:
        """All items of a list, page by page."""
        items: list[Thing] = []
        page = self.ask("GET", path, limit=PAGE_LIMIT)
        items += page["items"]
        while page.get("next_cursor"):
            page = self.ask("GET", path, limit=PAGE_LIMIT, cursor=page["next_cursor"])
            items += page["items"]
        return items

    def project(self, name_or_id: str) -> Thing:
        """The project of that id, else of that name; Stop 64 when there is none."""
        return _named(self.everything("/projects"), name_or_id, "project")

    def service_key(self, project_id: str, name_or_id: str) -> Thing:
        """The project's service key of that id, else of that name; Stop 64 when there is none."""
        return _named(self.everything(keys_path(project_id)), name_or_id, "service key")


def keys_path(project_id: str, key_id: str | None = None) -> str:
    """The address of a project's service keys, or of one of them."""
    path = f"/projects/{project_id}/service-keys"
    return path if key_id is None else f"{path}/{key_id}"


@contextmanager
def admin_of(connection: Connection) -> Iterator[Admin]:
    """Requests to `connection`; inside, failures end the command with an explanation."""
    with explained(connection):
        config = Config.resolve(connection.api_url, connection.secret, TIMEOUT_SECONDS, None)
        plain = config.api_url.startswith("http://")
        with httpx2.Client(
            base_url=config.api_url,
            # Reading the certificate store takes tens of milliseconds, which a plain address need not pay.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
            timeout=config.timeout_seconds,
            headers={
                "Authorization": f"Bearer {config.service_key}",
                "User-Agent": f"volcano-locks-python/{__version__}",
            },
        ) as http:
            yield Admin(http)


def _named(things: list[Thing], name_or_id: str, what: str) -> Thing:
    by_id = [thing for thing in things if thing["id"] == name_or_id]
    by_name = [thing for thing in things if thing["name"] == name_or_id]
    found = by_id or by_name
    if not found:
        known = ", ".join(sorted(str(thing["name"]) for thing in things)[:10]) or "none"
        raise exit_codes.Stop(f"no {what} has the id or name {name_or_id!r}; there are: {known}", exit_codes.USAGE)
    return found[0]
