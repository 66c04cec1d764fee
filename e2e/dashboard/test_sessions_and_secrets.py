"""What the dashboard keeps and shows beyond one page: the frame, sessions that follow each other, a new secret."""

import re

import pytest
from playwright.sync_api import expect

from .conftest import Open
from .prepared_server import PreparedServer, Worker
from .watched_page import PHONE, WIDE, WatchedPage

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


def sign_out(tab: WatchedPage) -> None:
    tab.page.get_by_role("button", name="Sign out").click()
    expect(tab.page.get_by_label("Service key or admin token")).to_be_visible()


def test_the_next_session_starts_at_its_own_start(open_page: Open, server: PreparedServer, worker: Worker) -> None:
    """Nothing of the session before is left: neither its page, its filter nor what was announced."""
    worker.acquire("after-sign-out", holder="web-1:1")
    tab = open_page(server.operator)
    page = tab.page
    page.get_by_label("Text in key or holder").fill("of the session before")
    page.get_by_role("button", name="All", exact=True).click()
    tab.go("locks", "after-sign-out")
    expect(page.get_by_text("web-1:1").first).to_be_visible()
    expect(page.locator("[aria-live]")).to_have_text("Live.")
    sign_out(tab)
    expect(page.locator("[aria-live]")).to_have_text("")
    assert page.title() == "volcano-locks"
    tab.sign_in_again(server.running.admin_token)
    expect(page.get_by_role("heading", name="Projects & keys")).to_be_visible()
    tab.go("projects", server.running.project_id)
    expect(page.get_by_role("heading", name="test")).to_be_visible()
    sign_out(tab)
    tab.sign_in_again(server.operator)
    expect(page.get_by_role("heading", name="Locks")).to_be_visible()
    expect(page.get_by_label("Text in key or holder")).to_have_value("")
    expect(page.get_by_role("button", name=re.compile(r"^Held\d*$"))).to_have_attribute("aria-pressed", "true")


def test_the_end_of_a_session_leaves_nothing_for_the_next(open_page: Open, server: PreparedServer) -> None:
    with server.admin() as admin:
        path = f"/projects/{server.running.project_id}/service-keys"
        made = admin.post(path, json={"name": "ends-soon"}).json()
        tab = open_page(made["key_value"])
        expect(tab.page.get_by_text("Live ·")).to_be_visible()
        admin.delete(f"{path}/{made['id']}").raise_for_status()
    tab.go("locks", "anything")
    expect(tab.page.get_by_text("Your session has ended.")).to_be_visible()
    tab.sign_in_again(server.running.admin_token)
    expect(tab.page.get_by_role("heading", name="Projects & keys")).to_be_visible()


def test_a_new_secret_stays_until_it_is_confirmed(open_page: Open, server: PreparedServer) -> None:
    """Neither Escape, however often, nor a click outside closes the only place that shows it."""
    tab = open_page(server.running.admin_token)
    page, dialog = tab.page, tab.page.get_by_role("dialog")
    tab.go("projects", server.running.project_id)
    page.get_by_role("button", name="New key").click()
    dialog.get_by_label("Name").fill("kept-open")
    dialog.get_by_role("button", name="Create").click()
    secret = dialog.locator("code").inner_text()
    for _ in range(3):
        page.keyboard.press("Escape")
    page.mouse.click(5, 5)
    page.keyboard.press("Escape")
    page.wait_for_timeout(200)
    assert dialog.locator("code").inner_text() == secret
    dialog.get_by_role("button", name="I have stored it").click()
    expect(dialog).to_have_count(0)
    expect(page.locator("dialog")).to_have_count(0)
