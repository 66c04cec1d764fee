"""The faces by name: how each is opened, and what it can do beside the five verbs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from testsupport.engines import etcd, postgres

from ..scenario.parser import Quota, Scenario
from .adapter_process import Adapter, ProcessFace
from .http import HttpFace
from .python import FakeBackend, RealBackend
from .python_async import PythonAsyncFace
from .python_sync import PythonSyncFace
from .server_harness import House
from .service import ServiceFace
from .target import Face


@dataclass(frozen=True)
class Entrance:
    """A face by name. `open` takes the project's quota and an empty folder for the store's files.

    `side` is server or clients; `able` names what it can do beside the five verbs: `Scenario.needs`.
    """

    name: str
    side: str
    able: frozenset[str]
    open: Callable[[Quota, Path], Face]

    def plays(self, scenario: Scenario) -> bool:
        """Whether the scenario is for this side, and asks for nothing that this face cannot do."""
        return scenario.faces in ("all", self.side) and scenario.needs <= self.able


def in_file(folder: Path) -> str:
    """The URL of a SQLite store in `folder`."""
    return f"sqlite:///{folder / 'locks.db'}"


@cache
def _database() -> str:
    return postgres.shared().new_database()


def in_postgres() -> str:
    """The URL of a PostgreSQL database that is empty again: to empty one is quicker than to make one."""
    postgres.shared().execute("DROP SCHEMA IF EXISTS volcano_locks CASCADE", _database())
    return postgres.shared().url(_database())


IN_MEMORY: Final = "memory://"
SERVER: Final = frozenset({"purge", "pages", "quota"})
SERVICE: Final = SERVER | {"store_outage", "search_store"}
CLIENT: Final = frozenset({"client", "purge", "quota"})
RESTART: Final = frozenset({"restart"})


ADAPTERS: Final = (
    Adapter("javascript", ("node", "sdks/javascript/conformance-adapter.mjs"), able=frozenset({"body_stops"})),
    Adapter("ruby", ("ruby", "sdks/ruby/conformance-adapter.rb")),
)
"""The clients in other languages, one line each."""


def entrances_of(adapter: Adapter) -> tuple[Entrance, Entrance]:
    """A client in another language over a real server, and over the fake it ships."""
    return (
        Entrance(
            f"{adapter.name}-sqlite",
            "clients",
            CLIENT | RESTART | adapter.able,
            lambda quota, folder: ProcessFace(adapter, House(quota, in_file(folder), folder)),
        ),
        Entrance(
            f"{adapter.name}-fake",
            "clients",
            frozenset({"client"}) | adapter.able,
            lambda _quota, _folder: ProcessFace(adapter, None),
        ),
    )


ENTRANCES: Final = (
    Entrance("service-memory", "server", SERVICE, lambda quota, folder: ServiceFace(quota, IN_MEMORY, folder)),
    Entrance(
        "service-sqlite", "server", SERVICE | RESTART, lambda quota, folder: ServiceFace(quota, in_file(folder), folder)
    ),
    Entrance(
        "service-etcd",
        "server",
        SERVER | {"store_outage"} | RESTART,
        lambda quota, folder: ServiceFace(quota, etcd.shared().url(), folder),
    ),
    Entrance(
        "service-postgres",
        "server",
        SERVER | {"store_outage"} | RESTART,
        lambda quota, folder: ServiceFace(quota, in_postgres(), folder),
    ),
    Entrance(
        "http-app-memory",
        "server",
        SERVICE,
        lambda quota, folder: HttpFace(House(quota, IN_MEMORY, folder, listening=False)),
    ),
    Entrance(
        "http-sqlite",
        "server",
        SERVER | {"search_store", "streams"} | RESTART,
        lambda quota, folder: HttpFace(House(quota, in_file(folder), folder)),
    ),
    Entrance(
        "http-postgres",
        "server",
        SERVER | {"streams"} | RESTART,
        lambda quota, folder: HttpFace(House(quota, in_postgres(), folder)),
    ),
    Entrance(
        "python-sqlite",
        "clients",
        CLIENT | RESTART,
        lambda quota, folder: PythonSyncFace(RealBackend(House(quota, in_file(folder), folder))),
    ),
    Entrance(
        "python-async-memory",
        "clients",
        CLIENT | {"body_stops"},
        lambda quota, folder: PythonAsyncFace(RealBackend(House(quota, IN_MEMORY, folder))),
    ),
    Entrance("python-fake", "clients", frozenset({"client"}), lambda _quota, _folder: PythonSyncFace(FakeBackend())),
    *(entrance for adapter in ADAPTERS for entrance in entrances_of(adapter)),
)
