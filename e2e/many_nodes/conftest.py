"""Nodes that the tests start over an engine, and the times of recovery that they measured, told at the end."""

from collections.abc import Callable, Iterator

import pytest
from e2e.one_node.conftest import ServerProcess
from testsupport.engines import etcd, postgres

_measured: list[tuple[str, float]] = []


@pytest.fixture
def new_nodes() -> Iterator[Callable[..., list[ServerProcess]]]:
    """Starts a node over each of these stores, all at once; they are gone after the test."""
    made: list[ServerProcess] = []

    def new(*stores: str, environment: dict[str, str] | None = None) -> list[ServerProcess]:
        nodes = [ServerProcess(store, environment=environment) for store in stores]
        made.extend(nodes)
        for node in nodes:
            node.begin()
        for node in nodes:
            node.wait_until_it_listens()
        return nodes

    yield new
    for node in made:
        node.close()


@pytest.fixture(params=["postgresql", "etcd"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store on an engine that stays well."""
    if request.param == "etcd":
        return etcd.shared().url()
    server = postgres.shared()
    return server.url(server.new_database())


@pytest.fixture
def measured() -> Callable[[str, float], None]:
    """Keeps how many seconds a recovery took, to be told when all tests are done."""
    return lambda fault, seconds: _measured.append((fault, seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _measured:
        terminalreporter.section("seconds from a fault to the first lease granted after it, at the most")
        for fault in dict.fromkeys(fault for fault, _ in _measured):
            times = [seconds for one, seconds in _measured if one == fault]
            terminalreporter.line(f"{max(times):6.2f} of {len(times)}  {fault}")
