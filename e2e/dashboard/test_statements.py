"""What the dashboard states is what it knows: no green without news, no "no one" without history, no old numbers."""

import re
import time
from datetime import datetime

import httpx2 as httpx
import pytest
from playwright.sync_api import expect

from .conftest import Open
from .prepared_server import PreparedServer, Worker
from .test_dashboard import keys, row

pytestmark = pytest.mark.real_time


def test_a_silent_stream_is_not_shown_as_live(open_page: Open, server: PreparedServer, worker: Worker) -> None:
    """As of a server that hangs: its connections are open, and nothing comes."""
    worker.acquire("silent")
    tab = open_page()
    page = tab.page
    page.clock.install()
    tab.sign_in(server.operator)
    tab.go("locks", "silent")
    expect(page.get_by_text("Live ·")).to_be_visible()
    worker.renew("silent")
    expect(page.get_by_text("once", exact=True)).to_be_visible()  # by the stream of this page
    page.route("**/events*", lambda route: route.abort())
    page.clock.fast_forward(17_000)
    expect(page.get_by_text(re.compile("Live · 1[789] s ago"))).to_be_visible()
    page.clock.fast_forward(6_000)
    state = page.get_by_text(re.compile("^Nothing for 2[3-9] s$"))
    expect(state).to_be_visible()
    expect(page.locator(".live-quiet")).to_be_visible()
    expect(page.locator("[aria-live]")).to_have_text("The server has sent nothing for 20 s. What is shown may be old.")
    page.clock.fast_forward(20_000)
    expect(page.get_by_text("Connection lost")).to_be_visible()


def test_the_count_of_renewals_moves_with_their_time(open_page: Open, server: PreparedServer, worker: Worker) -> None:
    worker.acquire("renewed-often")
    tab = open_page(server.operator)
    tab.go("locks", "renewed-often")
    expect(tab.page.get_by_text("Live ·")).to_be_visible()
    expect(tab.page.get_by_role("region", name="Holds")).to_be_visible()
    for words in ("once", "2 times", "3 times"):
        worker.renew("renewed-often")
        expect(tab.page.get_by_text(words, exact=True)).to_be_visible()


def test_what_is_usual_needs_five_holds(open_page: Open, server: PreparedServer, worker: Worker) -> None:
    tab = open_page(server.operator)
    for holds, shown in ((4, 0), (1, 1)):
        for _ in range(holds):
            worker.acquire("five-times")
            worker.release("five-times")
        tab.go("locks", "five-times")
        tab.page.reload()
        expect(tab.page.get_by_role("region", name="Holds")).to_be_visible()
        expect(tab.page.get_by_text("Usually held")).to_have_count(shown)


def test_an_instant_that_the_history_does_not_know_is_not_called_free(
    open_page: Open, server: PreparedServer, worker: Worker
) -> None:
    worker.acquire("searched", holder="web-1:1")
    worker.release("searched")
    tab = open_page(server.operator)
    tab.go("locks", "searched")
    field, answer = tab.page.get_by_label("Who held it at"), tab.page.locator(".holder-at [role=status]")
    field.fill("2026-01-01T03:12")
    expect(answer).to_contain_text("The history has no entry of this lock from 1 Jan 2026, 03:12, or before.")
    expect(answer).to_contain_text("Entries are kept for 7 days")
    field.fill("2099-01-01T03:12")
    expect(answer).to_have_text("1 Jan 2099, 03:12 is in the future.")
    time.sleep(1.1)
    field.fill(datetime.now().strftime("%Y-%m-%dT%H:%M:%S"))  # noqa: DTZ005 # the browser's local time
    expect(answer).to_have_text(re.compile(r"^No one held it on \d+ \w+ \d{4}, \d\d:\d\d\.$"))


def test_a_lock_that_is_not_renewed_stands_out(open_page: Open, server: PreparedServer, worker: Worker) -> None:
    worker.acquire("a-good-one")
    worker.acquire("z-stuck", ttl_seconds=12)
    tab = open_page(server.operator)
    expect(row(tab, "z-stuck").get_by_text("not renewing")).to_be_visible(timeout=11_000)
    assert keys(tab)[0] == "z-stuck"
    held, flagged = (
        row(tab, key).locator(".state").evaluate("(dot) => getComputedStyle(dot).backgroundColor")
        for key in ("a-good-one", "z-stuck")
    )
    assert held != flagged
    chip = tab.page.get_by_role("button", name=re.compile("^Not renewing"))
    expect(chip).to_have_text("Not renewing1")
    counts = chip.locator(".choice-count"), tab.page.get_by_role("button", name="Contended").locator(".choice-count")
    flagged, plain = (one.evaluate("(one) => getComputedStyle(one).color") for one in counts)
    assert flagged != plain
    assert tab.violations() == []


def test_contention_of_all_projects_is_not_called_none(open_page: Open, server: PreparedServer, worker: Worker) -> None:
    worker.acquire("wanted")
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        worker.acquire("wanted")
    tab = open_page(server.running.admin_token)
    tab.go("activity")
    expect(tab.page.get_by_text("Shown per project: sign in with a service key of the project.")).to_be_visible()
    expect(tab.page.get_by_text("No request found its lock held.")).to_have_count(0)
