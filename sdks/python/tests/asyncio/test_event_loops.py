"""The asyncio client and the loops it runs in: closed ones, several, and connections that open as it closes."""

import asyncio
import contextlib
import gc
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from volcano_locks import AsyncClient, TransportError, VolcanoError
from volcano_locks.asyncio.connection import Connection
from volcano_locks.asyncio.pool import AsyncioPool
from volcano_locks.asyncio.waiting import within
from volcano_locks.http.address import Address, OutgoingRequest
from volcano_locks.testing import ManualClock

from ..helpers import until
from ..socket_server import GRANTED, ServerConnection, socket_server


def grant(connection: ServerConnection, number: int) -> None:
    while connection.request():
        connection.respond(GRANTED)


@pytest.fixture
def unclosed() -> Iterator[None]:
    """A loop that ends without `close` leaves its sockets to the garbage collector, which warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@pytest.mark.real_time
@pytest.mark.usefixtures("dropped_sockets")
@pytest.mark.usefixtures("unclosed")
def test_a_loop_that_was_closed_does_not_prevent_closing() -> None:
    """The tasks of a closed loop never end."""
    arrived = threading.Event()

    def never_respond(connection: ServerConnection, number: int) -> None:
        while connection.request():
            arrived.set()

    with socket_server(never_respond) as url, contextlib.closing(asyncio.new_event_loop()) as loop:
        client = AsyncClient(url, "sk-x")
        waiting = loop.create_task(client.locks.acquire("k", ttl=5, wait=60))
        loop.run_until_complete(until(arrived.is_set))
        loop.close()
        asyncio.run(client.close())
        assert not waiting.done()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]
        del waiting


@pytest.mark.usefixtures("dropped_sockets")
def test_closing_leaves_the_tasks_of_other_loops_alone() -> None:
    """`Task.cancel` is not safe in another thread. Later requests of these tasks are refused."""
    arrived, ended = threading.Event(), threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        connection.request()
        arrived.set()
        ended.wait(20)
        connection.respond(GRANTED)

    with socket_server(serve) as url:
        client = AsyncClient(url, "sk-x")
        keys: list[str] = []
        other = threading.Thread(
            target=lambda: keys.append(asyncio.run(client.locks.acquire("k", ttl=5, wait=60)).key), daemon=True
        )
        other.start()
        assert arrived.wait(20)
        asyncio.run(client.close())
        ended.set()
        other.join(20)
    assert keys == ["k"]


@pytest.mark.usefixtures("dropped_sockets")
@pytest.mark.usefixtures("unclosed")
def test_a_loop_that_ended_without_close_keeps_no_connection() -> None:
    """One client in many `asyncio.run`: each opens a connection, and only the last one may be left."""

    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    with socket_server(grant) as url:
        client = AsyncClient(url, "sk-x")
        asyncio.run(client.locks.acquire("k", ttl=5))
        before = descriptors()
        for _ in range(5):
            asyncio.run(client.locks.acquire("k", ttl=5))
        assert descriptors() <= before + 5 + 2, "the server's ends, and no loop"
        assert len(client.locks._driver._states) == 1
        asyncio.run(client.close())


async def test_a_connection_that_opens_as_the_client_closes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a connection would never be closed, and its request would be sent after `close`."""
    connecting, may_connect = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    create = loop.create_connection

    async def create_late(*args: object, **options: object) -> object:
        connecting.set()
        await may_connect.wait()
        return await create(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "create_connection", create_late, raising=False)
    requests: list[str] = []
    with socket_server(lambda connection, _: requests.append(connection.request())) as url:
        client = AsyncClient(url, "sk-x")
        reading = asyncio.ensure_future(client.locks.get("k"))
        await connecting.wait()
        await client.close()
        may_connect.set()
        with pytest.raises(VolcanoError, match="this client is closed"):
            await reading
        await until(lambda: bool(requests))
    assert requests == [""], "the connection was closed, and nothing sent"


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
async def test_a_proxy_that_never_opens_its_tunnel_keeps_no_connection(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[str] = []
    closed = threading.Event()

    def serve(connection: ServerConnection, number: int) -> None:
        heads.append(connection.request())
        connection.request()
        closed.set()

    with socket_server(serve) as url:
        monkeypatch.setenv("https_proxy", url)
        address = Address.of("https://locks.test")
        pool = AsyncioPool(address, address.tls_context(None))
        sending = asyncio.ensure_future(pool.exchange(OutgoingRequest("GET", "/", [])))
        await until(lambda: bool(heads))
        if ends == "cancelled":
            sending.cancel()
        else:
            await pool.aclose()
        await until(closed.is_set)
        await asyncio.wait((sending,))
        sending.cancelled() or sending.exception()


async def test_a_host_that_cannot_be_a_name_is_a_transport_error() -> None:
    async with AsyncClient("http://a..test", "sk-x") as client:
        with pytest.raises(TransportError, match="cannot connect: ") as failed:
            await client.locks.get("k")
    assert failed.value.request_sent is False


async def test_the_end_of_a_response_is_no_broken_connection() -> None:
    """A response may end with its connection, and its reader may be late."""
    connection = Connection()
    connection.data_received(b"last")
    connection.eof_received()
    connection.connection_lost(None)
    assert await connection.receive() == b"last"
    assert await connection.receive() == b""


async def test_work_that_ends_as_its_time_is_up_leaves_nothing_behind(clock: ManualClock) -> None:
    """The clock wakes the limit of work that has just ended."""
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    async def work() -> str:
        clock.jump(5)
        return "done"

    assert await within(clock, clock.now() + 5, work()) == "done"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not errors
