"""A page in a browser that records what must not happen: violations of the policy, errors, other hosts, secrets."""

import contextlib
import json
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, Response, expect

AXE: Final = Path(__file__).parents[2] / "sdks/javascript/node_modules/axe-core/axe.min.js"
RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CHROMIUM: Final = "/usr/bin/chromium"
FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-lcd-text",  # grey text makes smaller pictures
]
WIDE: Final = (1280, 800)
PHONE: Final = (360, 740)

STORED: Final = """() => JSON.stringify({
  local: { ...localStorage }, session: { ...sessionStorage }, cookie: document.cookie, history: history.state,
  url: location.href, page: document.documentElement.outerHTML,
  typed: [...document.querySelectorAll("input")].map((one) => one.value),
})"""
CHECK: Final = """async (rules) => (await axe.run({ runOnly: rules })).violations.map((one) =>
  `${one.id}: ${one.help}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`)"""


class WatchedPage:
    """One tab in a browser context of its own, at `url`."""

    def __init__(
        self, browser: Browser, url: str, *, size: tuple[int, int] = WIDE, scheme: str = "light", reduced: bool = False
    ) -> None:
        self.url: Final = url
        self.context: Final[BrowserContext] = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if scheme == "dark" else "light",
            reduced_motion="reduce" if reduced else "no-preference",
            locale="en-GB",
        )
        self.secrets: Final[list[str]] = []
        self.faults: Final[list[str]] = []
        self._bodies: Final[list[tuple[str, Response]]] = []
        self.page: Final[Page] = self.open_tab()

    def open_tab(self) -> Page:
        page = self.context.new_page()
        page.set_default_timeout(5_000)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("response", self._on_response)
        return page

    def sign_in(self, secret: str) -> None:
        """Sign in with the form."""
        self.page.goto(f"{self.url}/ui")
        self.sign_in_again(secret)

    def sign_in_again(self, secret: str) -> None:
        """Sign in with the form that the page shows."""
        self.secrets.append(secret)
        self.page.get_by_label("Service key or admin token").fill(secret)
        self.page.get_by_role("button", name="Sign in", exact=True).click()
        expect(self.page.get_by_role("navigation")).to_be_visible()

    def go(self, *parts: str) -> None:
        """Show the page with this path, as a link within the dashboard does."""
        self.page.evaluate("(to) => { location.hash = to }", "#/" + "/".join(parts))

    def violations(self) -> list[str]:
        """What axe-core finds on the page as it is."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        found: list[str] = self.page.evaluate(CHECK, RULES)
        return found

    def places_of_secrets(self) -> list[str]:
        """Where a secret that was used, or one like it, is: storage, addresses, page, scripts or responses."""
        cookies = [one["value"] for one in self.context.cookies() if "volcano_locks_session" in one["name"]]
        secret = re.compile("|".join([r"\bsk-[\w-]{40}", *map(re.escape, [*self.secrets, *cookies])]))
        texts = [("the page and its storage", str(self.page.evaluate(STORED)))]
        texts += [(address, json.dumps(address)) for address, _response in self._bodies]
        for address, response in self._bodies:
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            if not is_stream and response.status not in (204, 304, 308):
                with contextlib.suppress(Error):  # the browser keeps no response of a page that was left
                    texts.append((f"the response of {address}", response.text()))
        return [place for place, text in texts if secret.search(text)]

    def close(self) -> None:
        """Close the tab. Raises AssertionError for what must not have happened."""
        self.context.close()
        assert self.faults == []

    def _on_console(self, message: ConsoleMessage) -> None:
        is_refusal = "Failed to load resource" in message.text  # of a request that a test lets fail
        if message.type == "error" and not is_refusal:
            self.faults.append(message.text)

    def _on_response(self, response: Response) -> None:
        if urlsplit(response.url).netloc != urlsplit(self.url).netloc:
            self.faults.append(f"a request to {response.url}")
        self._bodies.append((response.url, response))
