"""Where the server is and what opens it, for one command (CLI-2).

Secrets come from the environment or from a file, never from an argument: everybody on the machine can read
arguments. A connection remembers where its secret came from, so that a refusal can say what to look at.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from volcano_locks.config import TIMEOUT_SECONDS

from . import exits

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
    """A server's address, a secret, and the words for where the secret came from."""

    api_url: str
    secret: str = field(repr=False)
    secret_origin: str

    @classmethod
    def for_work(cls, api_url: str, service_key_file: Path | None) -> "Connection":
        """With the service key; Stop 77 when there is none."""
        return cls(api_url, *_secret("service key", SERVICE_KEY_VARIABLE, "--service-key-file", service_key_file))

    @classmethod
    def for_admin(cls, api_url: str, admin_token_file: Path | None) -> "Connection":
        """With the admin token; Stop 77 when there is none."""
        try:
            return cls(api_url, *_secret("admin token", ADMIN_TOKEN_VARIABLE, "--admin-token-file", admin_token_file))
        except exits.Stop as stop:
            place = "`serve` says at its start where the token is kept, `dev` shows it"
            raise exits.Stop(f"{stop.message}\n{place}", stop.exit_code) from None

    def client(self, timeout_seconds: float = TIMEOUT_SECONDS) -> "Client":
        """The client for it; Stop 64 when the address or the key cannot be used."""
        from volcano_locks import Client  # noqa: PLC0415 (brings the HTTP library)

        try:
            return Client(self.api_url, self.secret, timeout_seconds=timeout_seconds)
        except (TypeError, ValueError) as error:
            raise exits.Stop(str(error), exits.USAGE) from None


def service_options(command: Callable[..., R]) -> Callable[..., R]:
    """--api-url and --service-key-file; `command` gets them as its argument `connection`."""
    return _connected(command, Connection.for_work, "--service-key-file", SERVICE_KEY_VARIABLE)


def admin_options(command: Callable[..., R]) -> Callable[..., R]:
    """--api-url and --admin-token-file; `command` gets them as its argument `connection`."""
    return _connected(command, Connection.for_admin, "--admin-token-file", ADMIN_TOKEN_VARIABLE)


def _connected(
    command: Callable[..., R], connect: Callable[[str, Path | None], Connection], option: str, variable: str
) -> Callable[..., R]:
    @wraps(command)
    def connected(*, api_url: str, secret_file: Path | None, **arguments: Any) -> R:
        return command(connection=connect(api_url, secret_file), **arguments)

    url_help = f"The server; else {API_URL_VARIABLE}, else {API_URL_DEFAULT}."
    url = click.option("--api-url", metavar="URL", envvar=API_URL_VARIABLE, default=API_URL_DEFAULT, help=url_help)
    file_type = click.Path(dir_okay=False, path_type=Path)
    file_help = f"A file with the secret, instead of {variable}."
    file = click.option(option, "secret_file", type=file_type, metavar="PATH", help=file_help)
    return url(file(connected))


def _secret(what: str, variable: str, option: str, file: Path | None) -> tuple[str, str]:
    if file is None:
        text, origin = os.environ.get(variable, ""), variable
    else:
        text, origin = _read(file), str(file)
    text = text.strip()
    if not text:
        raise exits.Stop(f"no {what}: set {variable} or pass {option} PATH", exits.CREDENTIALS)
    return text, origin


def _read(file: Path) -> str:
    try:
        with file.open("rb") as source:
            return source.read(_SECRET_BYTES_MAX).decode("ascii")
    except OSError as error:
        raise exits.Stop(f"cannot read {file}: {error.strerror}", exits.CREDENTIALS) from None
    except UnicodeDecodeError:
        raise exits.Stop(f"{file} holds no key: it is not ASCII text", exits.CREDENTIALS) from None
