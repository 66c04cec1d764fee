"""The client's settings, from arguments first, then from `VOLCANO_API_URL` and `VOLCANO_SERVICE_KEY`."""

import os
import re
import socket
from typing import NamedTuple, Self
from urllib.parse import urlsplit

API_URL_DEFAULT = "http://127.0.0.1:7420"
API_URL_VARIABLE = "VOLCANO_API_URL"
SERVICE_KEY_VARIABLE = "VOLCANO_SERVICE_KEY"
INSIDE_RUN_VARIABLE = "VOLCANO_LOCK_FENCING_TOKEN"  # set by `volcano-locks run`
INSIDE_RUN_MESSAGE = (
    "`volcano-locks run` does not pass the service key to its command unless it is called with --pass-service-key"
)
HOLDER_CHARACTERS_MAX = 128
TIMEOUT_SECONDS = 10.0

_VISIBLE = re.compile(r"[!-~]+")


class Config(NamedTuple):
    """The checked settings of one client. `repr` never shows the service key (SDK-8)."""

    api_url: str
    service_key: str
    timeout_seconds: float = TIMEOUT_SECONDS
    holder: str | None = None
    ca_file: str | None = None

    @classmethod
    def resolve(
        cls,
        api_url: str | None,
        service_key: str | None,
        timeout_seconds: float,
        holder: str | None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Resolve the settings. `TypeError` or `ValueError` names the argument or variable that is missing or wrong."""
        name, url = _argument_or_variable("api_url", api_url, API_URL_VARIABLE, API_URL_DEFAULT)
        return cls(
            checked_url(name, url),
            checked_service_key(*_argument_or_variable("service_key", service_key, SERVICE_KEY_VARIABLE)),
            _checked_timeout(timeout_seconds),
            None if holder is None else _checked_holder(holder),
            None if ca_file is None else os.fspath(ca_file),
        )

    def __repr__(self) -> str:
        return f"Config({self.api_url!r})"

    def holder_label(self) -> str:
        """The holder's label for people: as passed, else `host/pid` of the current process."""
        return self.holder or default_holder()


def default_holder() -> str:
    """`host/pid` in visible characters, short enough for the header."""
    tail = f"/{os.getpid()}"
    host = "".join(c if _VISIBLE.fullmatch(c) else "-" for c in socket.gethostname()) or "unknown"
    return host[: HOLDER_CHARACTERS_MAX - len(tail)] + tail


def _argument_or_variable(name: str, value: str | None, variable: str, default: str = "") -> tuple[str, str]:
    """Return the name of the value's source and the value."""
    resolved = value if value is not None else os.environ.get(variable) or default
    if resolved == "":
        raise ValueError(f"{name} is missing: pass {name}=… or set the environment variable {variable}{_why_missing()}")
    if not isinstance(resolved, str):
        raise TypeError(f"{name} must be a str, got {type(resolved).__name__}")
    return name if value is not None else variable, resolved


def _why_missing() -> str:
    """The reason if this process runs under `volcano-locks run` (case 64)."""
    return f"; {INSIDE_RUN_MESSAGE}" if INSIDE_RUN_VARIABLE in os.environ else ""


def checked_url(name: str, url: str) -> str:
    """Return `url` without trailing slashes; a `ValueError` begins with `name`."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"{name} is not a URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{name} must not contain a user name or password")
    if parts.scheme not in ("http", "https") or not parts.hostname or not _VISIBLE.fullmatch(url):
        raise ValueError(f"{name} must be like https://locks.example.com, got {url!r}")
    if parts.query or parts.fragment:
        raise ValueError(f"{name} must end with its path: no query and no fragment")
    return url.rstrip("/?#")


def checked_service_key(name: str, service_key: str) -> str:
    """Return `service_key` if it can be sent; a `ValueError` begins with `name` and does not show it (SDK-8)."""
    if _VISIBLE.fullmatch(service_key) is None:
        raise ValueError(f"{name} must be visible ASCII characters without spaces or line ends")
    return service_key


def _checked_timeout(seconds: float) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"timeout_seconds must be a number, got {type(seconds).__name__}")
    if not 0 < seconds < float("inf"):
        raise ValueError(f"timeout_seconds must be above 0 and finite, got {seconds}")
    return float(seconds)


def _checked_holder(holder: str) -> str:
    if not isinstance(holder, str):
        raise TypeError(f"holder must be a str, got {type(holder).__name__}")
    if len(holder) > HOLDER_CHARACTERS_MAX or _VISIBLE.fullmatch(holder) is None:
        raise ValueError(f"holder must be 1 to {HOLDER_CHARACTERS_MAX} visible ASCII characters, got {holder!r:.200}")
    return holder
