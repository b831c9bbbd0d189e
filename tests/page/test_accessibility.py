"""The page has no finding of axe (WCAG 2.2 AA) and is never wider than its window: light and dark, on a screen and a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, ViewportSize, expect

from tests.support.browser import People, find_turns, open_conversation, save_picture, write
from tests.support.node_packages import install_packages
from tests.support.page_platform import PagePlatform

pytestmark = pytest.mark.release

_SCREEN: ViewportSize = {"width": 1280, "height": 800}
_PHONE: ViewportSize = {"width": 390, "height": 844}
_RUN = """async tags => (await axe.run(document, {runOnly: {type: "tag", values: tags}})).violations.map(
  ({id, help, nodes}) => [id, help, ...nodes.map(node => node.html)])"""
_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
_WIDTHS = """() => [...document.querySelectorAll("html, body, #chat, #chat > main, #log, #questions, #ask, #side")]
  .filter(each => each.getClientRects().length)
  .map(each => [
    each.id || each.localName, each.scrollWidth - each.clientWidth, each.getBoundingClientRect().right - innerWidth])
  .filter(([, inner, outer]) => Math.max(inner, outer) > 1)"""
_BROKEN_WORDS = """() => {
  const texts = document.createTreeWalker(document.querySelector("#log"), NodeFilter.SHOW_TEXT), range = document.createRange();
  const found = [];
  while (texts.nextNode()) {
    if (!texts.currentNode.parentElement.closest("table")) continue;
    for (const word of texts.currentNode.data.matchAll(/[\\p{L}\\p{N}_]+/gu)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].filter(box => box.width).map(box => Math.round(box.top)));
      if (lines.size > 1) found.push(word[0]);
    }
  }
  return found;
}"""
"""A script that returns the words of tables that are broken over two lines."""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe."""
    directory = install_packages(Path(__file__).parent / "axe", "axe")
    return (directory / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


class Look:
    """What is wrong with the looks of a page, in each colour scheme and size. `find` also saves pictures of it."""

    def __init__(self, axe: str, pictures: Path) -> None:
        self._axe = axe
        self._pictures = pictures
        self.found: dict[str, Any] = {}

    def find(self, page: Page, name: str, with_list: bool = False) -> None:
        """Look at a page, with the list of conversations open on a phone."""
        for size in (_SCREEN, _PHONE):
            page.set_viewport_size(size)
            if with_list and size is _PHONE:
                page.click("#open")
                expect(page.locator("#side")).to_be_visible()
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.evaluate(self._axe)
                place = f"{name}-{size['width']}-{scheme}"
                save_picture(page, self._pictures, place)
                if found := [*page.evaluate(_RUN, _TAGS), *page.evaluate(_WIDTHS)]:
                    self.found[place] = found
        if with_list:
            page.click("#close")
        page.set_viewport_size(_SCREEN)


@pytest.fixture
def look(axe: str, tmp_path: Path) -> Look:
    """What is wrong with the looks of pages."""
    return Look(axe, tmp_path)


def test_the_login_has_no_finding(platform: PagePlatform, people: People, look: Look) -> None:
    page = people.visit("/")
    expect(page.locator("#login-text")).to_contain_text("You need a link")
    look.find(page, "no-login")
    page = people.visit(platform.link("carol"))
    expect(page.locator("#go")).to_be_visible()
    look.find(page, "login")
    assert look.found == {}


def test_an_empty_conversation_and_the_menu_of_commands_have_no_finding(
    platform: PagePlatform, people: People, look: Look
) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    expect(carol.locator("#empty")).to_be_visible()
    look.find(carol, "empty")
    look.find(carol, "list", with_list=True)
    carol.fill("#text", "/")
    expect(carol.locator("#menu button").first).to_be_visible()
    look.find(carol, "menu")
    assert look.found == {}


def test_a_conversation_with_all_that_there_is_has_no_finding(platform: PagePlatform, people: People, look: Look) -> None:
    carol, felix = people.log_in("carol"), people.log_in("felix")
    open_conversation(felix, platform, "refunds")
    write(felix, "Please take back my order 1002")
    question = felix.locator("#questions .card")
    expect(question).to_contain_text("Why do you send order 1002 back?")
    look.find(felix, "question")
    open_conversation(felix, platform, "writer")
    write(felix, "everything")
    expect(find_turns(felix).locator(".it table")).to_have_count(2)
    expect(felix.locator("#log .live")).to_have_count(0)
    felix.locator("#log summary").click()
    felix.evaluate("document.querySelector('#log').scrollTop = 0")
    look.find(felix, "conversation")
    open_conversation(carol, platform, "refunds")
    write(carol, "I want to send back order 1003")
    carol.locator("#questions .card").get_by_role("button", name="It is broken").click()
    expect(felix.locator("#questions .card")).to_have_count(2)
    look.find(felix, "approval")
    assert look.found == {}


def test_no_word_of_a_table_is_broken_on_a_phone(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol", viewport=_PHONE)
    carol.goto(f"/{platform.address('writer')}")
    carol.reload()
    carol.fill("#text", "everything")
    carol.click("#ask .primary")
    expect(find_turns(carol).locator(".it table")).to_have_count(2)
    expect(carol.locator("#log .live")).to_have_count(0)
    assert carol.evaluate(_BROKEN_WORDS) == []


def test_a_file_an_error_and_a_failed_message_have_no_finding(platform: PagePlatform, people: People, look: Look) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    names = ("long", "longer", "longest")
    files = [FilePayload(name=f"{name * 9}.txt", mimeType="text/plain", buffer=b"text") for name in names]
    carol.set_input_files("#file", files)
    expect(carol.locator("#files button")).to_have_count(3)
    look.find(carol, "files")
    write(carol, "https://example.org/" + "path/" * 40)
    expect(find_turns(carol).locator(".it")).to_contain_text("example.org")
    platform.kill()
    write(carol, "meanwhile")
    expect(find_turns(carol).last).to_contain_text("is not sent yet")
    expect(carol.locator("#problem")).to_have_text("Connecting…")
    look.find(carol, "down")
    assert look.found == {}
