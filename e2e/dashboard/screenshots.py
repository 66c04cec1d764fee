"""Writes a picture of every page of the dashboard: light and dark, wide and on a phone (`make screenshots`)."""

import os
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import httpx2 as httpx
from playwright.sync_api import Browser, Page, sync_playwright

from volcano_locks_server.runtime.settings import Settings
from volcano_locks_server.testing import ManualClock, RunningServer, running_server

from .day_of_locks import DAY_MS, DayOfLocks
from .watched_page import CHROMIUM, FLAGS, PHONE, WatchedPage

BYTES_MAX: Final = 150_000
OPERATOR_PAGES: Final = {
    "locks": "locks",
    "lock": "locks/billing",
    "force-release": "locks/billing",
    "activity": "activity",
    "nodes": "nodes",
}


class Look(NamedTuple):
    scheme: str
    width: str
    size: tuple[int, int]


LOOKS: Final = [
    Look(scheme, *window) for scheme in ("light", "dark") for window in (("wide", (1280, 720)), ("phone", PHONE))
]
OTHER_LOOKS: Final = [LOOKS[0], LOOKS[-1]]
IN_EVERY_LOOK: Final = ("locks", "lock")
ALL: Final = "ALL" in os.environ
"""Every page in every look: to look at them, not for the repository."""
ADMIN_PAGES: Final = {"projects": "projects", "project": "projects/{project}", "audit": "audit"}


def main(directory: Path) -> None:
    """Write the pictures into `directory`. Raises SystemExit if one is too large."""
    directory.mkdir(parents=True, exist_ok=True)
    clock = ManualClock(int(time.time() * 1_000) - DAY_MS)
    settings = Settings(store="memory://", port=0, log_level="error", dashboard=True)
    with running_server(settings, clock=clock) as running, sync_playwright() as playwright:
        _prepare_project(running)
        day = DayOfLocks(running.url, running.service_key, clock)
        day.live_through()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for look in LOOKS:
            _shoot_all(browser, running, day, directory, look)
        browser.close()
        day.close()
    large = [one.name for one in directory.glob("*.png") if one.stat().st_size > BYTES_MAX]
    if large:
        raise SystemExit(f"larger than {BYTES_MAX} bytes: {', '.join(large)}")


def _prepare_project(running: RunningServer) -> None:
    headers = {"Authorization": f"Bearer {running.admin_token}"}
    with httpx.Client(base_url=running.url, headers=headers) as admin:
        body = {"name": "shop", "requests_per_minute": 0}
        admin.patch(f"/projects/{running.project_id}", json=body).raise_for_status()
        keys = f"/projects/{running.project_id}/service-keys"
        for name, permission in (("nightly-rollup", "locks.manage"), ("on-call", "locks.read")):
            admin.post(keys, json={"name": name, "permissions": [permission]}).raise_for_status()
        for name in ("reports", "search"):
            admin.post("/projects", json={"name": name}).raise_for_status()


def _shoot_all(browser: Browser, running: RunningServer, day: DayOfLocks, directory: Path, look: Look) -> None:
    def shoot(page: Page, name: str) -> None:
        if name in IN_EVERY_LOOK or look in OTHER_LOOKS or ALL:
            page.screenshot(path=directory / f"{name}-{look.scheme}-{look.width}.png")

    for secret, pages in ((running.service_key, OPERATOR_PAGES), (running.admin_token, ADMIN_PAGES)):
        day.go_on()  # also because requests without a session are slowed down, by this clock (HTTP-35)
        tab = WatchedPage(browser, running.url, size=look.size, scheme=look.scheme, reduced=True)
        tab.page.set_default_timeout(30_000)
        if pages is OPERATOR_PAGES:
            tab.page.goto(f"{running.url}/ui")
            tab.page.get_by_label("Service key or admin token").wait_for()
            shoot(tab.page, "sign-in")
        tab.sign_in(secret)
        for name, path in pages.items():
            tab.go(path.format(project=running.project_id))
            _settle(tab.page)
            if name == "force-release":
                tab.page.get_by_role("button", name="Force release").click()
            shoot(tab.page, name)
        tab.close()


def _settle(page: Page) -> None:
    """Wait until the page has loaded, and for its clock, which runs once a second."""
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_timeout(1_200)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
