"""The client's address behind real proxies: what they append to X-Forwarded-For, not what the client wrote."""

import io
import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import httpx
import pytest
from testsupport.engines import proxies

from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import running_server

CLIENT = "127.0.0.2"


@pytest.mark.parametrize("proxy", [proxies.nginx, proxies.haproxy], ids=["nginx", "haproxy"])
def test_the_log_names_the_client(proxy: Callable[[str], AbstractContextManager[str]]) -> None:
    """HTTP-30: the client's own X-Forwarded-For has no effect."""
    log = io.StringIO()
    settings = Settings(store="memory://", port=0, trusted_proxies="127.0.0.1")
    with (
        running_server(settings, log_stream=log) as running,
        proxy(running.url.removeprefix("http://")) as address,
        httpx.Client(transport=httpx.HTTPTransport(local_address=CLIENT)) as client,
    ):
        made_up = {"X-Forwarded-For": "198.51.100.1"}
        assert client.get(f"http://{address}/locks/a", headers=made_up).status_code == 401
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["address"] for line in lines if line["event"] == "refused"] == [CLIENT]
