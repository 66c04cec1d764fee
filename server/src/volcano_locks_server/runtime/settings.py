"""The settings of the server, from flags, the environment and defaults, in this order.

Nothing else in the server reads the environment. The command line and the documentation are generated from the table
`SETTINGS`. The message about an invalid value names the setting, its flag, its variable and the value.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from ..rules.values import shown

PORT_DEFAULT: Final = 7420
ADMIN_TOKEN_LENGTH_MIN: Final = 16
ADMIN_TOKEN_LENGTH_MAX: Final = 256
WORKERS_MAX: Final = 64
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

_ONE_PROCESS: Final = frozenset({"sqlite", "memory"})
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})
_ADMIN_TOKEN: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+", re.ASCII)


class SettingsError(ValueError):
    """A setting cannot be used. The message names it, its flag, its variable and the reason."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Name and description of a setting. `metavar` is the kind of its value, also for the help; a FILE is a path.
    `numbers` are the lowest and the highest allowed number. The value of a secret is never shown.
    """

    name: str
    what: str
    metavar: str = "TEXT"
    numbers: tuple[int, int] | None = None
    secret: bool = False
    switch: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "VOLCANO_LOCKS_" + self.name.upper()


SETTINGS: Final = (
    Setting(
        "store",
        "URL of the store: sqlite:///relative.db, sqlite:////absolute.db, postgresql://…, etcd://… or memory://",
        "URL",
    ),
    Setting("host", "address to listen on; one that other machines reach needs TLS or --behind-proxy", "ADDRESS"),
    Setting("port", "port to listen on; 0 chooses a free one", "NUMBER", numbers=(0, 65_535)),
    Setting(
        "admin_token",
        "credential of the admin API; if unset, one is generated and stored beside a SQLite file",
        secret=True,
    ),
    Setting("tls_certificate", "PEM file of the certificate chain; needs --tls-key", "FILE"),
    Setting("tls_key", "PEM file of the certificate's private key; needs --tls-certificate", "FILE"),
    Setting("behind_proxy", "allow plain HTTP beyond this machine, because a proxy in front handles TLS", switch=True),
    Setting("owner_reserve", "let owners renew and release after their project's quota is spent", switch=True),
    Setting(
        "workers",
        "number of processes that serve the port; more than 1 needs postgresql:// or etcd://",
        "NUMBER",
        numbers=(1, WORKERS_MAX),
    ),
    Setting("log_level", "lowest level that is logged: debug, info, warning or error", "LEVEL"),
)
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one server. Raises SettingsError for values that are invalid, alone or together."""

    store: str = field(default="sqlite:///volcano-locks.db", repr=False)  # may hold a password: stores.shown_url
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    admin_token: str | None = field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    owner_reserve: bool = True
    workers: int = 1
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            number = getattr(self, setting.name)
            if setting.numbers is not None:
                low, high = setting.numbers
                if type(number) is not int or not low <= number <= high:
                    raise _refused(setting.name, f"must be a whole number from {low} to {high}", number)
        if self.workers > 1 and (scheme := self.store.partition("://")[0]) in _ONE_PROCESS:
            needs = f"must be 1: only one process can use a {scheme} store; use postgresql:// or etcd:// for more"
            raise _refused("workers", needs, self.workers)
        if self.log_level not in LOG_LEVELS:
            raise _refused("log_level", f"must be one of {', '.join(LOG_LEVELS)}", self.log_level)
        if self.admin_token is not None:
            _check_admin_token(self.admin_token)
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_certificate"
            raise _refused(missing, "must be given too: a certificate and its key go together", None)
        if self.tls_certificate is None and not self.behind_proxy and not is_loopback(self.host):
            needs = "is not loopback and TLS is off: give --tls-certificate and --tls-key, or --behind-proxy"
            raise _refused("host", needs, self.host)

    @classmethod
    def load(cls, flags: Mapping[str, object], environ: Mapping[str, str]) -> Self:
        """The settings from `flags` (by setting's name; None: not given), `environ` and the defaults, in this order.

        Values may be text, or of the setting's own type. Raises SettingsError.
        """
        values: dict[str, object] = {}
        for setting in SETTINGS:
            value = flags.get(setting.name)
            if value is None:
                value = environ.get(setting.variable) or None
            if value is not None:
                values[setting.name] = _parsed(setting, value)
        return cls(**values)  # type: ignore[arg-type]  # each value went through its setting's parser


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(setting: Setting, value: object) -> object:
    """The value in the setting's type. If a number is expected, other text stays text, and `Settings` refuses it."""
    text = str(value)
    if setting.numbers is not None:
        return int(text) if isinstance(value, str) and text.isascii() and text.isdigit() and len(text) <= 5 else value
    if setting.switch:
        if text.lower() not in _TRUE | _FALSE:
            raise _refused(setting.name, "must be true or false", value)
        return text.lower() in _TRUE
    return Path(text) if setting.metavar == "FILE" else text


def _check_admin_token(token: str) -> None:
    long_enough = ADMIN_TOKEN_LENGTH_MIN <= len(token) <= ADMIN_TOKEN_LENGTH_MAX
    if not long_enough or _ADMIN_TOKEN.fullmatch(token) is None or token.startswith(("sk-", "ak-")):
        limits = f"must be {ADMIN_TOKEN_LENGTH_MIN} to {ADMIN_TOKEN_LENGTH_MAX} visible ASCII characters without commas"
        raise _refused("admin_token", f"{limits}, and must not begin with sk- or ak- like other credentials", token)


def _refused(name: str, why: str, value: object) -> SettingsError:
    setting = _BY_NAME[name]
    received = f"{len(str(value))} characters" if setting.secret else "nothing" if value is None else shown(value)
    source = setting.variable if setting.secret else f"{setting.flag}, {setting.variable}"
    return SettingsError(f"{name} ({source}) {why}; got {received}")
