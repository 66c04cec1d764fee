"""One browser, and one server with the dashboard, for all tests here."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from .prepared_server import PreparedServer, Worker, prepared_server
from .watched_page import CHROMIUM, FLAGS, WatchedPage

Open = Callable[..., WatchedPage]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreparedServer]:
    with prepared_server(tmp_path_factory.mktemp("dashboard")) as server:
        yield server


@pytest.fixture(scope="module")
def browser(server: PreparedServer) -> Iterator[Browser]:  # started after the server, whose start runs an event loop
    """A browser with a new directory for its data."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, server: PreparedServer) -> Iterator[Open]:
    """Opens a page, signed in with `secret` if it is given. Fails if anything happened in it that must not."""
    pages: list[WatchedPage] = []

    def open_page(secret: str | None = None, **options: object) -> WatchedPage:
        page = WatchedPage(browser, server.url, **options)  # type: ignore[arg-type]
        pages.append(page)
        if secret is not None:
            page.sign_in(secret)
        return page

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture
def worker(server: PreparedServer) -> Iterator[Worker]:
    worker = server.worker()
    yield worker
    worker.close()
