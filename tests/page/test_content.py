"""What agents and people write stays text in a real browser, whatever it is and wherever the page shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, Page, expect

from tests.doors.page.test_content_attacks import PAYLOADS, TOKEN
from tests.support.browser import People, find_turns, open_conversation, write
from tests.support.page_platform import AGENTS, PagePlatform

pytestmark = pytest.mark.release

HOSTILE = "__proto__[x](alert(1))`$_{{7-7}}"
_MAX_CHARACTERS = 300
_FIND_FOREIGN = """() => {
  const found = [...document.querySelectorAll("iframe, object, embed, svg, math, style, base, video, audio, mglyph, [srcdoc]")];
  found.push(...[...document.querySelectorAll("script")].filter(each => each.getAttribute("src") !== "/static/chat.js"));
  found.push(...[...document.querySelectorAll("form")].filter(each => each.id !== "ask"));
  found.push(...[...document.querySelectorAll("meta[http-equiv]")]);
  for (const each of document.querySelectorAll("*")) {
    const names = each.getAttributeNames();
    if (names.some(name => name.startsWith("on") || (name === "style" && each.id !== "text"))) found.push(each);
    if (each.matches("a[href]") && !["http:", "https:", "mailto:", "xmpp:", ":"].includes(each.protocol)) found.push(each);
    if (each.localName === "img" && !/^.files.[\\w-]{20,}.[^/]+$/.test(new URL(each.src).pathname)) found.push(each);
  }
  return found.map(each => each.outerHTML.slice(0, 300));
}"""
"""A script that returns the elements that the page does not have by itself, and that could do harm."""
_ASK = """async ([agent, texts]) => {
  for (const text of texts) {
    const body = JSON.stringify({agent, text, thread: crypto.randomUUID()});
    const headers = {"Content-Type": "application/json", "X-Page-Key": localStorage.secret};
    const answer = await fetch("/chat/ask", {method: "POST", headers, body});
    if (!answer.ok) throw Error(await answer.text());
  }
}"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[PagePlatform]:
    """A platform with an agent that attacks by all that the page shows of it."""
    names = list(AGENTS.items())[:3]
    platform = PagePlatform(tmp_path, agents={**dict(names), HOSTILE: "page_agents:HostileAgent"})
    (tmp_path / "payloads.json").write_text(json.dumps(list_payloads(platform.url)))
    with platform:
        yield platform


def list_payloads(url: str) -> list[str]:
    """Return the short payloads, for this address, each in one line."""
    texts = [" ".join(text.replace("http://127.0.0.1:8080", url).split()) for text in PAYLOADS if len(text) <= _MAX_CHARACTERS]
    return [text for text in dict.fromkeys(texts) if text.isprintable() or "\u202e" in text]


def watch(page: Page) -> list[str]:
    """Note the dialogs of a page."""
    dialogs = list[str]()

    def close(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", close)
    return dialogs


def check(page: Page, platform: PagePlatform, dialogs: list[str]) -> None:
    """Fail if something of an attack has become more than text."""
    assert page.evaluate(_FIND_FOREIGN) == []
    assert dialogs == []
    assert page.url.startswith(f"{platform.url}/#agent=")


def test_payloads_in_the_name_the_description_and_the_examples_of_an_agent_are_texts(
    platform: PagePlatform, people: People
) -> None:
    carol, payloads = people.log_in("carol"), list_payloads(platform.url)
    assert len(payloads) >= 25
    dialogs = watch(carol)
    open_conversation(carol, platform, HOSTILE)
    for name in ("#title", "#agents a[aria-current] span"):
        expect(carol.locator(name)).to_have_text(HOSTILE)
    description = "\n".join(payloads)
    for name in ("#about", "#empty p"):
        assert carol.locator(name).text_content() == description
    buttons = carol.locator("#empty button")
    assert buttons.all_text_contents() == [*payloads, "/help"]
    check(carol, platform, dialogs)
    buttons.first.click()
    expect(find_turns(carol).locator(".me")).to_have_text(payloads[0])
    expect(find_turns(carol).locator(".it")).to_contain_text("alert(1)")
    carol.reload()
    expect(carol.locator("#title")).to_have_text(HOSTILE)
    check(carol, platform, dialogs)


def test_payloads_in_titles_columns_and_cells_of_data_are_texts(platform: PagePlatform, people: People) -> None:
    carol, payloads = people.log_in("carol"), list_payloads(platform.url)
    dialogs = watch(carol)
    open_conversation(carol, platform, HOSTILE)
    write(carol, "data")
    for _ in range(2):
        expect(find_turns(carol).locator(".it")).to_contain_text("That was all.")
        expect(carol.locator("#log .live")).to_have_count(0)
        assert carol.locator("#log th").all_text_contents() == [each for text in payloads for each in (text, "other")]
        cells = carol.locator("#log td").all_text_contents()
        rest = [json.dumps({text: [text]}, ensure_ascii=False, separators=(",", ":")) for text in payloads]
        assert cells == [each for text, other in zip(payloads, rest, strict=True) for each in (text, other, text, text)]
        titles = carol.locator("#log .it .text > p strong").all_text_contents()
        assert titles == [text for text in payloads for _ in range(3)]
        check(carol, platform, dialogs)
        carol.reload()


def test_payloads_in_the_choices_of_a_question_are_texts(platform: PagePlatform, people: People) -> None:
    carol, payloads = people.log_in("carol"), list_payloads(platform.url)
    dialogs = watch(carol)
    open_conversation(carol, platform, HOSTILE)
    write(carol, "ask")
    for start in range(0, len(payloads), 20):
        buttons = carol.locator("#questions .card button")
        expect(buttons.first).to_have_text(payloads[start])
        assert buttons.all_text_contents() == payloads[start : start + 20]
        check(carol, platform, dialogs)
        buttons.last.click()
    expect(carol.locator("#questions .card")).to_have_count(0)
    check(carol, platform, dialogs)


def test_payloads_in_the_titles_of_conversations_are_texts(platform: PagePlatform, people: People) -> None:
    carol, payloads = people.log_in("carol"), list_payloads(platform.url)
    people.expect_status(404, f"/files/{TOKEN}/a.png")
    dialogs = watch(carol)
    open_conversation(carol, platform, HOSTILE)
    carol.evaluate(_ASK, [platform.jid(HOSTILE), payloads])
    conversations = carol.locator("#conversations a span")
    expect(conversations).to_have_count(len(payloads))
    shown = conversations.all_text_contents()
    for text in payloads:
        assert any(title.startswith(f"{HOSTILE}: {text[:40]}") for title in shown), text
    check(carol, platform, dialogs)
    carol.fill("#search", "alert(1)")
    expect(conversations).to_have_count(sum("alert(1)" in text for text in payloads))
    check(carol, platform, dialogs)
    carol.fill("#search", "")
    expect(conversations).to_have_count(len(payloads))
    for text in payloads:
        carol.locator("#conversations a", has_text=text[:20]).first.click()
        expect(find_turns(carol)).to_have_count(1)
        check(carol, platform, dialogs)


def test_the_page_goes_on_after_data_without_what_their_hint_needs(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    carol.set_default_timeout(15_000)
    open_conversation(carol, platform, HOSTILE)
    write(carol, "odd")
    write(carol, "hello")
    expect(find_turns(carol).last.locator(".it")).to_have_text("hello", timeout=15_000)
