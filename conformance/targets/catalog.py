"""The list of all targets, `TARGETS`: how each is opened and which optional abilities it has."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from testsupport.engines import etcd, postgres

from ..scenario.parser import Quota, Scenario
from .adapter_process import Adapter, AdapterFakeTarget, AdapterTarget
from .lock_service import LockServiceTarget
from .proxied_server import ProxiedServer
from .python_async_client import PythonAsyncTarget
from .python_backends import FakeBackend, ServerBackend
from .python_sync_client import PythonSyncTarget
from .raw_http import RawHttpTarget
from .server_harness import ServerHarness
from .target import Target


@dataclass(frozen=True)
class TargetSpec:
    """A target by name. `open` takes the project's quota and an empty folder for the store's files.

    `side` is server or clients. `abilities` names what the target can do beyond the five basic verbs, in the words of
    `Scenario.needs`.
    """

    name: str
    side: str
    abilities: frozenset[str]
    open: Callable[[Quota, Path], Target]

    def supports(self, scenario: Scenario) -> bool:
        """Whether the scenario is for this side and needs only abilities that this target has."""
        return scenario.targets in ("all", self.side) and scenario.needs <= self.abilities


def sqlite_url(folder: Path) -> str:
    """The URL of a SQLite store in `folder`."""
    return f"sqlite:///{folder / 'locks.db'}"


@cache
def _database() -> str:
    return postgres.shared().new_database()


def postgres_url() -> str:
    """The URL of an empty PostgreSQL database. Dropping the schema is faster than creating a database."""
    postgres.shared().execute("DROP SCHEMA IF EXISTS volcano_locks CASCADE", _database())
    return postgres.shared().url(_database())


MEMORY_URL: Final = "memory://"
SERVER_ABILITIES: Final = frozenset({"purge", "pages", "quota"})
SERVICE_ABILITIES: Final = SERVER_ABILITIES | {"store_faults", "search_store"}
CLIENT_ABILITIES: Final = frozenset({"client", "network", "purge", "quota"})
RESTART: Final = frozenset({"restart"})


ADAPTERS: Final = (
    Adapter("javascript", ("node", "sdks/javascript/conformance-adapter.mjs"), abilities=frozenset({"body_stops"})),
    Adapter("ruby", ("ruby", "sdks/ruby/conformance-adapter.rb")),
)
"""The clients in other languages, one entry each."""


def adapter_targets(adapter: Adapter) -> tuple[TargetSpec, TargetSpec]:
    """A client in another language, over a real server and over the fake that it ships."""
    return (
        TargetSpec(
            f"{adapter.name}-sqlite",
            "clients",
            CLIENT_ABILITIES | RESTART | adapter.abilities,
            lambda quota, folder: AdapterTarget(
                adapter, ProxiedServer(ServerHarness(quota, sqlite_url(folder), folder))
            ),
        ),
        TargetSpec(
            f"{adapter.name}-fake",
            "clients",
            frozenset({"client"}) | adapter.abilities,
            lambda _quota, _folder: AdapterFakeTarget(adapter),
        ),
    )


TARGETS: Final = (
    TargetSpec(
        "service-memory",
        "server",
        SERVICE_ABILITIES,
        lambda quota, folder: LockServiceTarget(quota, MEMORY_URL, folder),
    ),
    TargetSpec(
        "service-sqlite",
        "server",
        SERVICE_ABILITIES | RESTART,
        lambda quota, folder: LockServiceTarget(quota, sqlite_url(folder), folder),
    ),
    TargetSpec(
        "service-etcd",
        "server",
        SERVER_ABILITIES | {"store_faults"} | RESTART,
        lambda quota, folder: LockServiceTarget(quota, etcd.shared().url(), folder),
    ),
    TargetSpec(
        "service-postgres",
        "server",
        SERVER_ABILITIES | {"store_faults"} | RESTART,
        lambda quota, folder: LockServiceTarget(quota, postgres_url(), folder),
    ),
    TargetSpec(
        "http-app-memory",
        "server",
        SERVICE_ABILITIES,
        lambda quota, folder: RawHttpTarget(ServerHarness(quota, MEMORY_URL, folder, listening=False)),
    ),
    TargetSpec(
        "http-sqlite",
        "server",
        SERVER_ABILITIES | {"search_store", "streams"} | RESTART,
        lambda quota, folder: RawHttpTarget(ServerHarness(quota, sqlite_url(folder), folder)),
    ),
    TargetSpec(
        "http-postgres",
        "server",
        SERVER_ABILITIES | {"streams"} | RESTART,
        lambda quota, folder: RawHttpTarget(ServerHarness(quota, postgres_url(), folder)),
    ),
    TargetSpec(
        "python-sqlite",
        "clients",
        CLIENT_ABILITIES | RESTART,
        lambda quota, folder: PythonSyncTarget(ServerBackend(ServerHarness(quota, sqlite_url(folder), folder))),
    ),
    TargetSpec(
        "python-async-memory",
        "clients",
        CLIENT_ABILITIES | {"body_stops"},
        lambda quota, folder: PythonAsyncTarget(ServerBackend(ServerHarness(quota, MEMORY_URL, folder))),
    ),
    TargetSpec(
        "python-fake", "clients", frozenset({"client"}), lambda _quota, _folder: PythonSyncTarget(FakeBackend())
    ),
    *(spec for adapter in ADAPTERS for spec in adapter_targets(adapter)),
)
