"""People in a browser, each with a context of their own, in whose pages nothing may go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

from tests.support.page_platform import PagePlatform
from tests.support.servers.requirements import find_program, require
from tests.support.wait import TIMEOUT_S

_STEP_MS = 20
_REPORTER = """
addEventListener("securitypolicyviolation", event => console.error(
  `CSP: ${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""
_RECORDER = """
const notifications = new Map();
window.Notification = class {
  static permission = "granted";
  static requestPermission = async () => "granted";
  constructor(title, {body, tag}) { notifications.set(tag ?? crypto.randomUUID(), [title, body]); }
};
window.listNotifications = () => [...notifications.values()];
"""
"""A script that notes the desktop notifications in place of the browser, which shows none without a desktop.

One takes the place of an earlier one with its tag, as there.
"""
_HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
  Object.defineProperty(document, "visibilityState", {configurable: true, get: () => isHidden ? "hidden" : "visible"});
  document.dispatchEvent(new Event("visibilitychange", {bubbles: true}));
}"""


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Start Debian's Chromium."""
    path = find_program("chromium")
    require("Chromium", path is not None, "`make browser` enables this test")
    expect.set_options(timeout=TIMEOUT_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class People:
    """The people of a platform who use its page. `check` fails if anything has gone wrong in a page of theirs.

    That is an error of a script or in the console, a report of the Content Security Policy, a request to another host, or a
    request that fails: except the first one of a person who is not logged in, those while the platform is down, and those that
    a test expects.
    """

    def __init__(self, browser: Browser, platform: PagePlatform) -> None:
        self._browser = browser
        self._platform = platform
        self._problems: list[str] = []
        self._expected = {(401, "/chat/me")}
        self._loses_requests = False
        self._feeds: dict[Request, Page] = {}
        self._contexts: list[BrowserContext] = []

    def visit(self, address: str, **options: Any) -> Page:
        """Open an address of the platform in a new context with these options of Playwright."""
        context = self._browser.new_context(base_url=self._platform.url, **options)
        self._contexts.append(context)
        context.set_default_timeout(TIMEOUT_S * 1000)
        context.add_init_script(_REPORTER)
        context.on("console", self._read_console)
        context.on("weberror", lambda error: self._problems.append(f"error: {error.error}"))
        context.on("request", self._note_request)
        for event in ("requestfinished", "requestfailed"):
            context.on(event, lambda request: self._feeds.pop(request, None))  # type: ignore[call-overload]  # a name each
        page = context.new_page()
        page.goto(address)
        return page

    def log_in(self, name: str, **options: Any) -> Page:
        """Log a person in by a fresh link, as the guest for "", and return their page."""
        page = self.visit(self._platform.link(name), **options)
        _use_link(page)
        return page

    def log_in_again(self, page: Page, name: str) -> None:
        """Log a person in by a fresh link, in the tab of a session that has ended."""
        page.goto(self._platform.link(name))
        _use_link(page)

    def record_notifications(self, page: Page) -> None:
        """Allow desktop notifications to a person, and note those of all their tabs, which are loaded anew."""
        page.context.grant_permissions(["notifications"], origin=self._platform.url)
        page.context.add_init_script(_RECORDER)
        for each in page.context.pages:
            each.reload()
            expect(each.locator("#agents a")).to_have_count(4)

    def open_tab(self, beside: Page, address: str = "/") -> Page:
        """Open another tab of the person of a page."""
        page = beside.context.new_page()
        page.goto(address)
        expect(page.locator("#agents a")).to_have_count(4)
        return page

    def expect_status(self, status: int, path: str) -> None:
        """Take no offence at this status for this path."""
        self._expected.add((status, path))

    def expect_lost_requests(self) -> None:
        """Take no offence at requests that do not arrive."""
        self._loses_requests = True

    def list_feeds(self) -> list[Page]:
        """List the pages that have a feed, once for each of its requests that is open."""
        return [page for page in self._feeds.values() if not page.is_closed()]

    def check(self) -> None:
        """Close all pages, and fail if anything has gone wrong."""
        for context in self._contexts:
            context.close()
        assert self._problems == []

    def _read_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        path = message.location["url"].removeprefix(self._platform.url)
        status = re.search(r"responded with a status of (\d+)", message.text)
        is_expected = status is not None and (int(status[1]), path) in self._expected
        was_down = self._platform.was_down
        is_lost = (was_down or self._loses_requests) and "net::ERR_" in message.text
        is_early = was_down and status is not None and status[1] == "503"
        if not (is_expected or is_lost or is_early):
            self._problems.append(f"{message.type}: {message.text} ({path})")

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self._platform.url}/", f"blob:{self._platform.url}/", "data:")):
            self._problems.append(f"request: {request.url}")
        if request.url == f"{self._platform.url}/chat/feed":
            self._feeds[request] = request.frame.page


def _use_link(page: Page) -> None:
    page.click("#go")
    expect(page.locator("#agents a")).to_have_count(4)


def wait_for(page: Page, condition: Callable[[], bool], problem: str) -> None:
    """Poll a condition that an expectation of Playwright cannot express, while events of the browser arrive."""
    for _ in range(int(TIMEOUT_S * 1000 / _STEP_MS)):
        if condition():
            return
        page.wait_for_timeout(_STEP_MS)
    raise AssertionError(problem)


def open_conversation(page: Page, platform: PagePlatform, agent: str) -> None:
    """Open the conversation without a thread by the list of agents."""
    link = page.locator(f'#agents a[href="{platform.address(agent)}"]')
    link.click()
    expect(link).to_have_attribute("aria-current", "page")


def write(page: Page, text: str) -> None:
    """Write a message into the open conversation, and send it."""
    page.fill("#text", text)
    page.press("#text", "Enter")


def find_turns(page: Page) -> Locator:
    """Find the turns of the open conversation."""
    return page.locator("#log article")


def hide(page: Page, is_hidden: bool = True) -> None:
    """Hide a tab behind another one, or show it again.

    Playwright keeps each page visible for Chromium, also behind others, so this tells the page itself.
    """
    page.evaluate(_HIDE, is_hidden)


def list_notifications(tabs: Iterable[Page]) -> list[tuple[str, str]]:
    """List the noted desktop notifications of tabs: title and text."""
    return [(title, text) for tab in tabs for title, text in tab.evaluate("listNotifications()")]


def save_picture(page: Page, directory: Path, name: str) -> None:
    """Save a picture of a page, for people who want to look at it."""
    page.screenshot(path=directory / f"{name}.png")
