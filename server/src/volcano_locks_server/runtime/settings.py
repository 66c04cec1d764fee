"""The settings of the server, from flags, the environment and defaults, in this order.

Nothing else in the server reads settings from the environment. The command line and the documentation are generated
from the table `SETTINGS`. The message about an invalid value names the setting, its flag, its variable and the value.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from ..http.dashboard_access import DashboardAccess
from ..http.server.client_address import TrustedProxies
from ..rules.history import HISTORY_DAYS_DEFAULT, HISTORY_DAYS_MAX
from ..rules.values import shown
from .secret_file import SecretFileError, read_secret
from .store_setting import URL_VARIABLE, StoreRefusedError, chosen_store, refuse_plaintext

PORT_DEFAULT: Final = 7420
ADMIN_TOKEN_LENGTH_MIN: Final = 16
ADMIN_TOKEN_LENGTH_MAX: Final = 256
CONNECTIONS_PER_ADDRESS_MAX: Final = 10_000
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
    Setting("store_url_file", "file with the URL of the store, for a URL with a password", "FILE"),
    Setting(
        "allow_plaintext_store",
        "connect to a database beyond this machine without TLS, because the network in between is trusted",
        switch=True,
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
    Setting(
        "trusted_proxies",
        "addresses or networks of the proxies whose X-Forwarded-For names the client, such as 10.0.0.0/8,192.0.2.7",
        "CIDR,…",
    ),
    Setting(
        "connections_per_address",
        "connections that one client address, except a trusted proxy, may have at each process; 0 means no limit",
        "NUMBER",
        numbers=(0, CONNECTIONS_PER_ADDRESS_MAX),
    ),
    Setting("dashboard", "serve the dashboard at /ui", switch=True),
    Setting(
        "dashboard_hosts",
        "names under which browsers reach the dashboard, besides loopback and the address to listen on",
        "NAME,…",
    ),
    Setting("metrics_token_file", "file with a token; /metrics then needs it, or an admin token", "FILE"),
    Setting("metrics_per_project", "count the responses of each project in /metrics, by its name", switch=True),
    Setting("owner_reserve", "let owners renew and release after their project's quota is spent", switch=True),
    Setting(
        "history_days",
        "days for which the history of holds is kept; 0 keeps none",
        "NUMBER",
        numbers=(0, HISTORY_DAYS_MAX),
    ),
    Setting(
        "workers",
        "number of processes that serve the port; more than 1 needs postgresql:// or etcd://",
        "NUMBER",
        numbers=(1, WORKERS_MAX),
    ),
    Setting("log_level", "lowest level that is logged: debug, info, warning or error", "LEVEL"),
    Setting("log_grants", "log each grant and release, with its holder, at level info instead of debug", switch=True),
)
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one server. Raises SettingsError for values that are invalid, alone or together."""

    store: str = field(default="sqlite:///volcano-locks.db", repr=False)  # may hold a password: stores.shown_url
    store_url_file: Path | None = None
    allow_plaintext_store: bool = False
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    admin_token: str | None = field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    behind_proxy: bool = False
    trusted_proxies: str | None = None
    connections_per_address: int = 0
    dashboard: bool = False
    dashboard_hosts: str | None = None
    metrics_token_file: Path | None = None
    metrics_per_project: bool = False
    owner_reserve: bool = True
    history_days: int = HISTORY_DAYS_DEFAULT
    workers: int = 1
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_grants: bool = False

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
        if self.admin_token is not None and (fault := _token_fault(self.admin_token)) is not None:
            raise _refused("admin_token", fault, self.admin_token)
        if self.trusted_proxies is not None:
            try:
                TrustedProxies(self.trusted_proxies)
            except ValueError as error:
                raise _refused(
                    "trusted_proxies", f"has an entry that cannot be used: {error}", self.trusted_proxies
                ) from None
        if self.dashboard_hosts is not None:
            try:
                DashboardAccess(self.dashboard_hosts)
            except ValueError as error:
                refused = f"has an entry that cannot be used: {error}"
                raise _refused("dashboard_hosts", refused, self.dashboard_hosts) from None
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
        try:
            if (store := chosen_store(flags, environ)) is not None:
                values["store"] = store
                if not values.get("allow_plaintext_store"):
                    refuse_plaintext(store, f"store (--store, {URL_VARIABLE})", environ)
        except StoreRefusedError as error:
            raise SettingsError(str(error)) from None
        return cls(**values)  # type: ignore[arg-type]  # each value went through its setting's parser


def read_token(name: str, file: Path) -> str:
    """The token in the file that this setting names. Raises SettingsError."""
    try:
        token = read_secret(file)
    except SecretFileError as error:
        setting = _BY_NAME[name]
        raise SettingsError(f"{name} ({setting.flag}, {setting.variable}) {error}") from None
    if (needs := _token_fault(token)) is not None:
        raise _refused(name, f"names a file whose token {needs}", str(file))
    return token


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


def _token_fault(token: str) -> str | None:
    """What a token must be, if it is not."""
    long_enough = ADMIN_TOKEN_LENGTH_MIN <= len(token) <= ADMIN_TOKEN_LENGTH_MAX
    if long_enough and _ADMIN_TOKEN.fullmatch(token) is not None and not token.startswith(("sk-", "ak-")):
        return None
    limits = f"must be {ADMIN_TOKEN_LENGTH_MIN} to {ADMIN_TOKEN_LENGTH_MAX} visible ASCII characters without commas"
    return f"{limits}, and must not begin with sk- or ak- like other credentials"


def _refused(name: str, why: str, value: object) -> SettingsError:
    setting = _BY_NAME[name]
    received = f"{len(str(value))} characters" if setting.secret else "nothing" if value is None else shown(value)
    source = setting.variable if setting.secret else f"{setting.flag}, {setting.variable}"
    return SettingsError(f"{name} ({source}) {why}; got {received}")
