"""Nodes over a shared engine."""

from collections.abc import Callable, Iterator

import pytest
from e2e.recovery_times import RECOVERY
from testsupport.engines import etcd, postgres
from testsupport.server_process import ServerProcess


@pytest.fixture
def new_nodes() -> Iterator[Callable[..., list[ServerProcess]]]:
    """Starts one node over each of the stores passed, all at once. They are killed after the test."""
    created: list[ServerProcess] = []

    def new(*stores: str, environment: dict[str, str] | None = None) -> list[ServerProcess]:
        nodes = [ServerProcess(store, environment=environment) for store in stores]
        created.extend(nodes)
        for node in nodes:
            node.begin()
        for node in nodes:
            node.wait_until_it_listens()
        return nodes

    yield new
    for node in created:
        node.close()


@pytest.fixture(params=["postgresql", "etcd"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store on an engine without faults."""
    if request.param == "etcd":
        return etcd.shared().url()
    server = postgres.shared()
    return server.url(server.new_database())


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, float], None]:
    """Records how many seconds a recovery took, for the summary at the end of the run."""
    return lambda fault, seconds: record_property(RECOVERY, (fault, seconds))
