"""What the dashboard keeps and shows beyond one page: the frame, sessions that follow each other, a new secret."""

import pytest
from playwright.sync_api import expect

from .conftest import Open
from .prepared_server import PreparedServer, Worker
from .watched_page import PHONE, WIDE

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("size", [WIDE, (1440, 900), PHONE], ids=str)
def test_only_the_content_scrolls(
    open_page: Open, server: PreparedServer, worker: Worker, size: tuple[int, int]
) -> None:
    worker.acquire("billing")
    operator = open_page(server.operator, size=size)
    admin = open_page(server.running.admin_token, size=size)
    project = f"projects/{server.running.project_id}"
    for tab, path in ((operator, "locks"), (operator, "locks/billing"), (admin, project), (admin, "audit")):
        tab.go(path)
        expect(tab.page.get_by_role("heading", level=1)).to_be_visible()
        expect(tab.page.get_by_text("Loading")).to_have_count(0)
        assert tab.page.evaluate("document.documentElement.scrollHeight") == size[1], path
