"""The date of the database's machine, or of the nodes' machines, is set while clients hold leases."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from testsupport.engines import etcd, postgres
from testsupport.engines.postgres import Postgres
from testsupport.faked_date import FakedDate
from testsupport.lease_holders import TTL_SECONDS, hold_all, request, take_all_over
from testsupport.server_process import ServerExitedError, ServerProcess

AHEAD_SECONDS = [5, 60, 3_600]
NewNodes = Callable[..., list[ServerProcess]]
pytestmark = [pytest.mark.real_time, pytest.mark.engines]


@pytest.fixture
def database() -> Iterator[Postgres]:
    """A PostgreSQL server of the test's own."""
    with postgres.primary(fsync=False) as server:
        yield server


@pytest.fixture
def date(database: Postgres) -> FakedDate:
    """The date of that server, which runs with it from here on."""
    date = FakedDate(database.folder / "date")
    database.stop()
    database.environment = date.environment
    database.start()
    return date


def ready(node: ServerProcess) -> httpx2.Response:
    return httpx2.get(f"{node.url}/readyz", timeout=15)


@pytest.mark.parametrize("seconds", AHEAD_SECONDS)
def test_a_step_of_the_databases_date_ends_no_lease(
    database: Postgres, date: FakedDate, new_nodes: NewNodes, seconds: int
) -> None:
    """LEASE-17, case 67: on nodes that were running, idle or not, and on one that starts afterwards."""
    store = database.url(database.new_database())
    busy, idle = new_nodes(store, store)
    service_key = busy.new_service_key()
    held = hold_all(busy.url, service_key)
    date.step(seconds)
    assert request("POST", busy.url, "a", service_key, body={"ttl_seconds": 5}).status_code == 409
    held_until = ready(busy).json()["takeovers_held"]
    assert 0 < held_until["seconds"] <= TTL_SECONDS + 1
    (fresh,) = new_nodes(store)
    assert ready(fresh).json()["takeovers_held"]["until"] == held_until["until"]
    for node, key in ((idle, "b"), (fresh, "c")):
        assert request("POST", node.url, key, service_key, body={"ttl_seconds": 5}).status_code == 409
    take_all_over(fresh.url, service_key, held, within_seconds=TTL_SECONDS + 10)


@pytest.mark.parametrize("seconds", [0, *AHEAD_SECONDS])
def test_a_node_on_a_fresh_machine_ends_no_lease(
    database: Postgres, date: FakedDate, new_nodes: NewNodes, seconds: int
) -> None:
    """LEASE-17, case 67: all nodes stopped, the date was set, and the first node that starts is on another machine."""
    name = database.new_database()
    (node,) = new_nodes(database.url(name))
    service_key = node.new_service_key()
    held = hold_all(node.url, service_key)
    node.terminate()
    database.execute("UPDATE volcano_locks.newest_instant SET boot_id = 'another', is_synchronised = false", name)
    date.step(seconds)
    (fresh,) = new_nodes(database.url(name))
    take_all_over(fresh.url, service_key, held, within_seconds=2 * TTL_SECONDS + 10)


def test_a_date_that_goes_back_is_waited_for(database: Postgres, date: FakedDate, new_nodes: NewNodes) -> None:
    """LEASE-1, LEASE-17, case 67: an hour back is an hour of 503, or until the date is right again."""
    (node,) = new_nodes(database.url(database.new_database()))
    service_key = node.new_service_key()
    held = hold_all(node.url, service_key)
    date.step(-3_600)
    refused = ready(node)
    assert refused.status_code == 503
    assert "clock_behind" in refused.text
    date.step(0)
    take_all_over(node.url, service_key, held, within_seconds=TTL_SECONDS + 10)


@pytest.mark.parametrize("seconds", AHEAD_SECONDS)
def test_the_only_node_over_etcd_ends_no_lease_after_a_restart(
    tmp_path: Path, new_nodes: NewNodes, seconds: int
) -> None:
    """LEASE-17, case 67: and a node with the right date then finds that its clock differs."""
    date, store = FakedDate(tmp_path / "date"), etcd.shared().url()
    (node,) = new_nodes(store, environment=date.environment)
    service_key = node.new_service_key()
    held = hold_all(node.url, service_key)
    date.step(seconds)
    assert request("POST", node.url, "a", service_key, body={"ttl_seconds": 5}).status_code == 409
    node.terminate()
    node.start()
    assert 0 < ready(node).json()["takeovers_held"]["seconds"] <= TTL_SECONDS + 1
    take_all_over(node.url, service_key, held, within_seconds=2 * TTL_SECONDS + 10)


def test_the_only_node_over_etcd_does_not_start_an_hour_back(tmp_path: Path, new_nodes: NewNodes) -> None:
    """LEASE-1, case 67: it goes on when the date is right again, and has ended no lease."""
    date, store = FakedDate(tmp_path / "date"), etcd.shared().url()
    (node,) = new_nodes(store, environment=date.environment)
    service_key = node.new_service_key()
    held = hold_all(node.url, service_key)
    date.step(-3_600)
    node.terminate()
    with pytest.raises(ServerExitedError, match="set the machine's clock right"):
        node.start()
    date.step(0)
    node.start()
    take_all_over(node.url, service_key, held, within_seconds=2 * TTL_SECONDS + 10)
