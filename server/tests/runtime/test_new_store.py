"""A server that creates the schema of a shared store says so in the log (OPS-8)."""

import io

import pytest
from testsupport.engines import etcd, postgres

from volcano_locks_server.runtime.server import Server
from volcano_locks_server.runtime.settings import Settings


@pytest.mark.parametrize("engine", ["postgresql", "etcd"])
async def test_a_new_schema_is_logged_once(engine: str) -> None:
    """OPS-8."""
    server = postgres.shared() if engine == "postgresql" else None
    url = etcd.shared().url() if server is None else server.url(server.new_database())
    logs = []
    for _ in range(2):
        log = io.StringIO()
        node = Server(Settings(store=url, port=0, admin_token="an-admin-token-for-tests"), log_stream=log)
        await node.open()
        await node.close()
        logs.append(log.getvalue())
    assert ["store_created" in text for text in logs] == [True, False]
