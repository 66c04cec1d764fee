"""The server's address and the secret for it, for one command (CLI-2).

Secrets come from the environment or a file, never from an argument, because every user of the machine can read
arguments. A connection remembers where its secret came from, so that an error message can name it. An invalid address
or secret is refused before any request, with the name of its source.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from volcano_locks.config import (
    INSIDE_RUN_MESSAGE,
    INSIDE_RUN_VARIABLE,
    TIMEOUT_SECONDS,
    checked_service_key,
    checked_url,
)

from . import exit_codes

if TYPE_CHECKING:
    from volcano_locks import Client

API_URL_DEFAULT: Final = "http://127.0.0.1:7420"
API_URL_VARIABLE: Final = "VOLCANO_API_URL"
SERVICE_KEY_VARIABLE: Final = "VOLCANO_SERVICE_KEY"
ADMIN_TOKEN_VARIABLE: Final = "VOLCANO_LOCKS_ADMIN_TOKEN"  # noqa: S105 (the variable's name)
SECRET_VARIABLES: Final = (SERVICE_KEY_VARIABLE, ADMIN_TOKEN_VARIABLE)
_SECRET_BYTES_MAX: Final = 4096

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Connection:
    """A server's address and a secret, with the words for the secret's source and how to get another."""

    api_url: str
    secret: str = field(repr=False)
    secret_origin: str
    remedy: str = ""

    @classmethod
    def with_secret(cls, kind: "SecretKind", api_url: str, file: Path | None) -> "Connection":
        """With the secret in `file`, else in the variable. Exit 77 if there is none, 64 if it is invalid."""
        if file is None:
            text, origin = os.environ.get(kind.variable, ""), kind.variable
        else:
            text, origin = _read(file), str(file)
        secret, secret_origin = text.strip(), f"the {kind.name} in {origin}"
        if not secret:
            why = f"{INSIDE_RUN_MESSAGE}\n" if kind is SERVICE_KEY and INSIDE_RUN_VARIABLE in os.environ else ""
            missing = f"no {kind.name}: set {kind.variable} or pass {kind.option} PATH\n{why}{kind.remedy}"
            raise exit_codes.Exit(missing, exit_codes.CREDENTIALS)
        with _exit_on_invalid_value():
            checked_service_key(secret_origin, secret)
        return cls(api_url, secret, secret_origin, kind.remedy)

    def client(self, timeout_seconds: float = TIMEOUT_SECONDS) -> "Client":
        """A client for this connection."""
        from volcano_locks import Client  # noqa: PLC0415 (imports the HTTP library)

        return Client(self.api_url, self.secret, timeout_seconds=timeout_seconds)


class SecretKind(NamedTuple):
    """A kind of secret: its name for people, its sources, and how to get one."""

    name: str
    variable: str
    option: str
    remedy: str

    def options(self, command: Callable[..., R]) -> Callable[..., R]:
        """Adds --api-url and the option for the secret's file; `command` gets them as its argument `connection`."""

        @wraps(command)
        def connected(*, api_url: str, secret_file: Path | None, **arguments: Any) -> R:
            _check_url(api_url)
            return command(connection=Connection.with_secret(self, api_url, secret_file), **arguments)

        return _url_option(self.file_option("secret_file")(connected))

    def file_option(self, parameter: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
        """Adds the option for the secret's file, as this parameter."""
        file_type = click.Path(dir_okay=False, path_type=Path)
        file_help = f"A file with the {self.name}, instead of {self.variable}."
        return click.option(self.option, parameter, type=file_type, metavar="PATH", help=file_help)


SERVICE_KEY: Final = SecretKind(
    "service key",
    SERVICE_KEY_VARIABLE,
    "--service-key-file",
    "`volcano-locks key create` and `key rotate` make a new one; `dev` prints one.",
)
ADMIN_TOKEN: Final = SecretKind(
    "admin token",
    ADMIN_TOKEN_VARIABLE,
    "--admin-token-file",
    "`serve` prints the path of the token's file at its start; `dev` prints the token.",
)
service_options: Final = SERVICE_KEY.options
admin_options: Final = ADMIN_TOKEN.options


def any_secret_options(command: Callable[..., R]) -> Callable[..., R]:
    """Adds --api-url, the options for both secrets' files, and --admin. `command` gets a connection with the service
    key, or with the admin token if that is asked for or there is no service key.
    """

    @wraps(command)
    def connected(
        *, api_url: str, service_key_file: Path | None, admin_token_file: Path | None, admin: bool, **arguments: Any
    ) -> R:
        _check_url(api_url)
        if service_key_file is not None and (admin or admin_token_file is not None):
            raise click.UsageError(f"use {SERVICE_KEY.option} or the admin token, not both")
        has_key = service_key_file is not None or bool(os.environ.get(SERVICE_KEY.variable, "").strip())
        has_token = admin_token_file is not None or bool(os.environ.get(ADMIN_TOKEN.variable, "").strip())
        if admin or admin_token_file is not None or (has_token and not has_key):
            connection = Connection.with_secret(ADMIN_TOKEN, api_url, admin_token_file)
        else:
            connection = Connection.with_secret(SERVICE_KEY, api_url, service_key_file)
        return command(connection=connection, **arguments)

    admin_flag = click.option("--admin", is_flag=True, help="Use the admin token, although a service key is set too.")
    files = SERVICE_KEY.file_option("service_key_file")(ADMIN_TOKEN.file_option("admin_token_file")(connected))
    return _url_option(admin_flag(files))


def _url_option(command: Callable[..., R]) -> Callable[..., R]:
    url_help = f"The server. Default: {API_URL_VARIABLE}, else {API_URL_DEFAULT}."
    return click.option("--api-url", metavar="URL", envvar=API_URL_VARIABLE, default=API_URL_DEFAULT, help=url_help)(
        command
    )


def _check_url(api_url: str) -> None:
    """Exit 64 if the address is invalid, with the name of its source."""
    source = click.get_current_context().get_parameter_source("api_url")
    name = API_URL_VARIABLE if source is ParameterSource.ENVIRONMENT else "--api-url"
    with _exit_on_invalid_value():
        checked_url(name, api_url)


@contextmanager
def _exit_on_invalid_value() -> Iterator[None]:
    """Inside the block, a ValueError ends the command with Exit 64."""
    try:
        yield
    except ValueError as error:
        raise exit_codes.Exit(str(error), exit_codes.USAGE) from None


def _read(file: Path) -> str:
    try:
        with file.open("rb") as source:
            return source.read(_SECRET_BYTES_MAX).decode("ascii")
    except OSError as error:
        raise exit_codes.Exit(f"cannot read {file}: {error.strerror}", exit_codes.CREDENTIALS) from None
    except UnicodeDecodeError:
        raise exit_codes.Exit(f"{file} contains no secret: it is not ASCII text", exit_codes.CREDENTIALS) from None
