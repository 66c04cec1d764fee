"""OPS-15: `/metrics` behind a token, and the counters of projects."""

import io
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest

from volcano_locks_server.http.auth import CONFIGURED
from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.telemetry import Metrics, metrics
from volcano_locks_server.testing import running_server_async

from .conftest import HttpHarness, new_token

TOKEN = "a-token-of-the-collector"
ADMIN = "an-admin-token-for-tests"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    return path


@pytest.fixture
async def scrape(token_file: Path) -> AsyncIterator[Callable[..., Any]]:
    settings = Settings(
        store="memory://", port=0, admin_token=ADMIN, metrics_token_file=token_file, metrics_per_project=True
    )
    server = running_server_async(settings, log_stream=io.StringIO())
    async with server as running, httpx2.AsyncClient(base_url=running.url) as client:

        async def ask(credential: str | None, path: str = "/metrics") -> httpx2.Response:
            key = running.service_key if credential == "service key" else credential
            headers: Mapping[str, str] = {} if key is None else {"Authorization": f"Bearer {key}"}
            return await client.get(path, headers=headers)

        yield ask


async def test_the_metrics_need_the_token_or_an_admin_token(scrape: Callable[..., Any]) -> None:
    """And nothing else changes: the other operations stay open (OPS-5)."""
    statuses = {one: (await scrape(one)).status_code for one in (TOKEN, ADMIN, None, TOKEN + "x", "service key")}
    assert statuses == {TOKEN: 200, ADMIN: 200, None: 401, TOKEN + "x": 401, "service key": 403}
    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert (await scrape(None, path)).status_code == 200
    for path in ("/projects", "/locks/a", "/admin-tokens"):
        assert (await scrape(TOKEN, path)).status_code == 401, "the token is for the metrics only"


async def test_responses_are_counted_by_project(scrape: Callable[..., Any]) -> None:
    await scrape("service key", "/locks/a")
    await scrape("service key", "/locks/.bad")
    text = (await scrape(TOKEN)).text
    assert 'volcano_locks_project_requests_total{project="test",outcome="free"} 1.0' in text
    assert 'volcano_locks_project_requests_total{project="test",outcome="invalid_lock_key"} 1.0' in text
    assert ADMIN not in text
    assert CONFIGURED not in text


async def test_without_the_settings_they_are_open_and_name_no_project(harness: HttpHarness) -> None:
    """OPS-3, OPS-5."""
    await harness.acquire("a", new_token())
    text = (await harness.request("GET", "/metrics", key=None)).text
    assert "volcano_locks_requests_total" in text
    assert "volcano_locks_project_requests_total" not in text
    assert "project=" not in text


def test_the_number_of_projects_is_bounded() -> None:
    """All beyond the limit share one label."""
    counts = Metrics(per_project=True)
    for number in range(metrics.PROJECTS_MAX + 5):
        for _ in range(2):
            counts.project_request(f"id-{number}", f"name-{number}", "acquired")
    assert len(counts.project_requests) == metrics.PROJECTS_MAX + 1
    assert counts.project_requests[metrics.OTHER_PROJECTS, "acquired"] == 10


def test_a_name_cannot_break_the_format() -> None:
    """ADMIN-4 forbids such names; a damaged store may have one."""
    counts = Metrics(per_project=True)
    counts.project_request("id", 'a"b\\c\nd', "acquired")
    assert 'project="abcd"' in counts.text(None).decode()
