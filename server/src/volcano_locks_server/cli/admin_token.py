"""`volcano-locks admin-token …`: manages named admin tokens, over the admin API or in the store itself (CLI-36).

The store is for the first token of a store that no server with an admin token serves: PostgreSQL or etcd, or a SQLite
file while its server is stopped. A token is printed once, by the command that created it.
"""

import os
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from volcano_locks.cli.confirm import confirm
from volcano_locks.cli.connection import ADMIN_TOKEN, API_URL_DEFAULT, API_URL_VARIABLE, Connection
from volcano_locks.cli.exit_codes import USAGE, Exit
from volcano_locks.cli.group import Group
from volcano_locks.cli.output import message, print_json, print_line, print_table

from .command_line_act import command_line_act
from .startup import StoreOptions, run_on_store, store_options

if TYPE_CHECKING:
    from ..ports.admin_tokens import AdminTokens
    from ..ports.registry import Listed

R = TypeVar("R")
T = TypeVar("T")
JsonObject = dict[str, Any]

PATH: Final = "/admin-tokens"


class _Where:
    """Where the tokens are managed: a running server, or a store."""

    def __init__(
        self, store: StoreOptions, api_url: str | None, admin_token_file: Path | None, *, offline: bool
    ) -> None:
        self._offline: Final = offline or store.is_given
        if self._offline and (api_url is not None or admin_token_file is not None):
            raise Exit("use --api-url for a running server, or --offline or --store for a store, not both", USAGE)
        self._store: Final = store
        self._api_url: Final = api_url
        self._admin_token_file: Final = admin_token_file

    def create(self, name: str) -> JsonObject:
        """The new token, with its secret in `token_value`."""
        if self._offline:
            return self._in_store(lambda tokens: _add(tokens, name))
        return self._request("POST", PATH, {"name": name})

    def list_all(self) -> list[JsonObject]:
        if self._offline:
            return self._in_store(_all)
        from volcano_locks.cli.admin_api import admin_client  # noqa: PLC0415

        with admin_client(self._connection()) as admin:
            return admin.list_all(PATH)

    def revoke(self, token_id: str) -> None:
        if self._offline:
            self._in_store(lambda tokens: _delete(tokens, token_id))
        else:
            self._request("DELETE", f"{PATH}/{token_id}")

    def _request(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        from volcano_locks.cli.admin_api import admin_client  # noqa: PLC0415

        with admin_client(self._connection()) as admin:
            return admin.request(method, path, body)

    def _connection(self) -> Connection:
        url = self._api_url or os.environ.get(API_URL_VARIABLE) or API_URL_DEFAULT
        return Connection.with_secret(ADMIN_TOKEN, url, self._admin_token_file)

    def _in_store(self, work: "Callable[[AdminTokens], Coroutine[Any, Any, T]]") -> T:
        return run_on_store(self._store, lambda url: _on_tokens_of(url, work))[1]


def _options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds the options that name a server or a store; the command gets them as `where`."""

    @wraps(command)
    def with_where(
        store: StoreOptions, api_url: str | None, admin_token_file: Path | None, offline: bool, **parameters: Any
    ) -> R:
        return command(where=_Where(store, api_url, admin_token_file, offline=offline), **parameters)

    for option in (
        click.option("--offline", is_flag=True, help="Work on the store of the variables. --store implies it."),
        click.option(
            "--admin-token-file",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="PATH",
            help="A file with the admin token. Default: VOLCANO_LOCKS_ADMIN_TOKEN.",
        ),
        click.option(
            "--api-url", metavar="URL", help=f"The running server. Default: {API_URL_VARIABLE}, else {API_URL_DEFAULT}."
        ),
    ):
        with_where = option(with_where)
    return store_options(with_where)


@click.group("admin-token", cls=Group, short_help="Manage admin tokens.")
def admin_token() -> None:
    """Manage named admin tokens, one for each operator or program.

    Each command asks a running server, with an admin token. With --offline,
    --store or --store-url-file it works on the store itself and needs none: so
    the first token is made. Stop the server of a SQLite store for that.

    The token in VOLCANO_LOCKS_ADMIN_TOKEN or beside a SQLite file goes on
    working. It is in no list; change it where it is set.

    \b
    Examples:
      volcano-locks admin-token create ann
      volcano-locks admin-token list
      volcano-locks admin-token revoke ann
      volcano-locks admin-token create first --offline
    """


@admin_token.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_options
def create(*, name: str, as_json: bool, where: _Where) -> None:
    """Create the admin token NAME and print it, once.

    \b
    Example:
      (umask 077; volcano-locks admin-token create ann > ann.admin-token)
    """
    item = where.create(name)
    if as_json:
        print_json(item)
    else:
        print_line(item["token_value"])
    message(
        f"the admin token {item['name']} is shown only this once: store it now, and pass it in "
        f"{ADMIN_TOKEN.variable} or in a file"
    )


@admin_token.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_options
def list_(*, as_json: bool, where: _Where) -> None:
    """List the named admin tokens, without the tokens themselves.

    \b
    Example:
      volcano-locks admin-token list
    """
    items = where.list_all()
    if as_json:
        print_json({"items": items})
        return
    rows = [(one["name"], one["token_prefix"], _day(one["created_at"]), _day(one["last_used_at"])) for one in items]
    print_table(("NAME", "BEGINS", "CREATED", "LAST USED"), rows)


@admin_token.command()
@click.argument("name_or_id", metavar="TOKEN")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_options
def revoke(*, name_or_id: str, yes: bool, where: _Where) -> None:
    """Revoke an admin token, by its name or id: it stops working within seconds. Asks first.

    \b
    Example:
      volcano-locks admin-token revoke ann
    """
    from volcano_locks.cli.admin_api import find  # noqa: PLC0415

    found = find(where.list_all(), name_or_id, "admin token")
    confirm(f"Revoke the admin token {found['name']} ({found['token_prefix']}…)?", yes)
    where.revoke(found["id"])
    message(f"admin token {found['name']} is revoked")


def _day(instant: str | None) -> str:
    return "never" if instant is None else instant[:10]


async def _on_tokens_of(url: str, work: "Callable[[AdminTokens], Coroutine[Any, Any, T]]") -> T:
    """The result of `work` on the tokens of a store that exists. Raises ValueError and StoreUnavailableError."""
    from ..ports.clock import SystemClock  # noqa: PLC0415
    from ..rules.errors import LockError, StoreUnavailableError  # noqa: PLC0415
    from ..stores import open_store, sqlite_path  # noqa: PLC0415

    if url == "memory://":
        raise ValueError("store memory:// keeps nothing: name serve's store")
    path = sqlite_path(url)
    if path is not None and not path.exists():
        raise Exit(f"--store: there is no file {path}; volcano-locks migrate or serve creates it", USAGE)
    opened = await open_store(url, SystemClock())
    try:
        return await work(opened.admin_tokens)
    except StoreUnavailableError:
        raise
    except LockError as error:
        raise Exit(error.message, USAGE) from None
    finally:
        await opened.close()


async def _add(tokens: "AdminTokens", name: str) -> JsonObject:
    from ..http.admin_token_routes import new_admin_token  # noqa: PLC0415
    from ..http.auth import secret_digest  # noqa: PLC0415
    from ..ports.clock import SystemClock  # noqa: PLC0415
    from ..rules.values import parse_name  # noqa: PLC0415

    token, secret = new_admin_token(parse_name(name), SystemClock().now_ms())
    await tokens.add(token, secret_digest(secret), by=command_line_act())
    return _item(token) | {"token_value": secret}


async def _delete(tokens: "AdminTokens", token_id: str) -> None:
    await tokens.delete(token_id, by=command_line_act())


async def _all(tokens: "AdminTokens") -> list[JsonObject]:
    from ..rules.values import PAGE_LIMIT_MAX  # noqa: PLC0415

    items: list[JsonObject] = []
    cursor: str | None = None
    while True:
        page = await tokens.page(limit=PAGE_LIMIT_MAX, cursor=cursor)
        items += map(_item, page.items)
        cursor = page.next_cursor
        if cursor is None:
            return items


def _item(token: "Listed") -> JsonObject:
    from ..http.admin_routes import entry_of  # noqa: PLC0415

    return entry_of(token)
