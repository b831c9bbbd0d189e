"""Fixtures for tests of the page: a browser, a platform, and people who use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browser import People, start_browser
from tests.support.page_platform import PagePlatform


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a module. Its event loop would disturb tests of other modules."""
    with start_browser() as browser:
        yield browser


@pytest.fixture(params=["embedded"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PagePlatform]:
    """A platform with the page, on the embedded server; with the mark `on_all_servers` also on the others."""
    name, _, reloads = request.param.partition(", ")
    server = None if name == "embedded" else request.getfixturevalue("get_server")(name)
    with PagePlatform(tmp_path, server, reloads=bool(reloads)) as platform:
        yield platform


@pytest.fixture
def people(browser: Browser, platform: PagePlatform) -> Iterator[People]:
    """The people who use the page. In their pages nothing may go wrong."""
    people = People(browser, platform)
    yield people
    people.check()
