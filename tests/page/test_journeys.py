"""Journeys of people in the page, in a real browser, from their login on: over kills of the platform, and with many tabs."""

from __future__ import annotations

import json
import re
import struct
import zlib
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import FilePayload, Page, Route, expect

from tests.support.browser import People, find_turns, hide, list_notifications, open_conversation, wait_for, write
from tests.support.page_agents import FIRST_WORDS, LAST_WORDS
from tests.support.page_platform import PagePlatform
from tests.support.program import run_command

pytestmark = pytest.mark.release

on_all_servers = pytest.mark.parametrize("platform", ["embedded", "prosody", "ejabberd"], indirect=True)
WHOLE = f"{FIRST_WORDS} {LAST_WORDS}"
TABS = 10


def make_picture(width: int, height: int) -> bytes:
    """Make a picture (PNG) of one colour."""
    rows = b"".join(b"\0" + b"\x2c\x4f\xc9" * width for _ in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def note(page: Page, text: str) -> None:
    """Tell the agent `notes` something, and wait for its answer."""
    write(page, text)
    expect(find_turns(page).last.locator(".it")).to_contain_text("I'll remember")


@on_all_servers
def test_a_choice_is_made_and_a_second_person_approves_and_the_receipt_comes(platform: PagePlatform, people: People) -> None:
    carol, felix = people.log_in("carol"), people.log_in("felix")
    open_conversation(carol, platform, "refunds")
    write(carol, "I want to send back order 1003")
    question = carol.locator("#questions .card")
    expect(question).to_contain_text("Why do you send order 1003 back?")
    expect(question.get_by_role("button")).to_have_text(["It is broken", "It is the wrong one", "I changed my mind"])
    expect(felix.locator("#questions .card")).to_have_count(0)
    question.get_by_role("button", name="It is broken").click()
    call = felix.locator("#questions .card")
    expect(call).to_contain_text(platform.jid("carol"))
    expect(call.locator(".call")).to_contain_text("1250")
    expect(call.locator(".call")).to_contain_text("It is broken")
    expect(carol.locator("#questions .card")).to_have_count(0)
    call.get_by_role("button", name="Approve").click()
    expect(call).to_contain_text("Approved. It runs now.")
    expect(call.get_by_role("button")).to_have_count(0)
    expect(felix.locator("#text")).to_be_focused()
    expect(find_turns(carol)).to_have_count(1)
    expect(find_turns(carol).locator(".it")).to_contain_text("1250 euros are on their way to you. Your receipt is R-1003-1.")
    carol.reload()
    expect(find_turns(carol).locator(".it")).to_contain_text("R-1003-1")


def test_what_was_said_before_an_approval_stays_while_the_platform_is_killed_and_no_decision_is_lost(
    platform: PagePlatform, people: People
) -> None:
    carol, felix = people.log_in("carol"), people.log_in("felix")
    open_conversation(carol, platform, "refunds")
    write(carol, "I want to send back order 1003")
    carol.get_by_role("button", name="It is broken").click()
    words, call = "This needs the approval of finance", felix.locator("#questions .card")
    expect(find_turns(carol).locator(".it")).to_contain_text(words)
    expect(call).to_contain_text("1250")
    platform.kill()
    call.get_by_role("button", name="Approve").click()
    expect(call.get_by_role("alert")).to_have_text("The platform cannot be reached at the moment.")
    platform.start()
    for _ in range(2):
        expect(find_turns(carol).locator(".foot")).to_contain_text("waits for an answer")
        expect(find_turns(carol).locator(".it")).to_contain_text(words)
        expect(carol.locator("#conversations a")).to_contain_text("I want to send back order 1003")
        carol.reload()
    call.get_by_role("button", name="Approve").click()
    expect(call).to_contain_text("Approved. It runs now.")
    expect(find_turns(carol).locator(".it")).to_contain_text("R-1003-1")
    expect(find_turns(carol).locator(".it")).to_contain_text(words)


@on_all_servers
def test_an_answer_that_the_platform_is_killed_in_is_given_once_in_both_tabs(platform: PagePlatform, people: People) -> None:
    first = people.log_in("carol")
    open_conversation(first, platform, "writer")
    second = people.open_tab(first, f"/{platform.address('writer')}")
    tabs = (first, second)
    write(first, "Write")
    for tab in tabs:
        expect(find_turns(tab).locator(".it")).to_have_text(FIRST_WORDS)
    platform.kill()
    for tab in tabs:
        expect(tab.locator("#problem")).to_have_text("Connecting…")
        expect(find_turns(tab).locator(".it")).to_have_text(FIRST_WORDS)
    platform.start()
    platform.open_gate()
    for tab in tabs:
        expect(find_turns(tab).locator(".it")).to_have_text(WHOLE)
        expect(tab.locator("#problem")).to_have_text("")
        expect(find_turns(tab)).to_have_count(1)
        expect(find_turns(tab).locator(".me")).to_have_text("Write")
        expect(tab.locator("#log .live")).to_have_count(0)
    first.reload()
    expect(find_turns(first).locator(".it")).to_have_text(WHOLE)
    expect(find_turns(first)).to_have_count(1)


@on_all_servers
def test_a_message_that_is_sent_while_the_platform_is_down_is_answered_once(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    other = people.open_tab(carol, f"/{platform.address('echo')}")
    write(carol, "before")
    for tab in (carol, other):
        expect(find_turns(tab).locator(".it")).to_have_text("before")
    platform.kill()
    write(carol, "meanwhile")
    expect(find_turns(carol)).to_have_count(2)
    expect(find_turns(carol).last).to_contain_text("is not sent yet")
    expect(carol.locator("#text")).to_have_value("")
    platform.start()
    for tab in (carol, other):
        expect(find_turns(tab).last.locator(".it")).to_have_text("meanwhile")
        expect(find_turns(tab)).to_have_count(2)
    carol.reload()
    expect(find_turns(carol).locator(".it")).to_have_text(["before", "meanwhile"])


def test_messages_are_answered_in_their_order_when_the_first_is_lost_on_its_way(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    people.expect_lost_requests()
    lost, passed = list[Route](), list[str]()

    def lose_first(route: Route) -> None:
        text = json.loads(route.request.post_data or "")["text"]
        if text == "first" and (len(lost) < 3 or "second" not in written):
            lost.append(route)
            route.abort()
        else:
            passed.append(text)
            route.continue_()

    written = list[str]()
    carol.route("**/chat/ask", lose_first)
    for text in ("first", "second"):
        write(carol, text)
        written.append(text)
    expect(find_turns(carol).locator(".it")).to_have_count(2)
    carol.reload()
    expect(find_turns(carol).locator(".it")).to_have_text(["first", "second"])
    assert passed == ["first", "second"]


def test_messages_that_are_sent_without_a_network_are_answered_once(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    other = people.open_tab(carol, f"/{platform.address('echo')}")
    people.expect_lost_requests()
    carol.context.set_offline(True)
    write(carol, "meanwhile")
    expect(find_turns(carol)).to_contain_text("is not sent yet")
    carol.context.set_offline(False)
    for tab in (carol, other):
        expect(find_turns(tab).locator(".it")).to_have_text("meanwhile")
        expect(find_turns(tab)).to_have_count(1)


def test_a_message_survives_the_tab_in_which_it_was_sent_while_the_platform_was_down(
    platform: PagePlatform, people: People
) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    platform.kill()
    write(carol, "my code is 4711")
    expect(find_turns(carol)).to_contain_text("is not sent yet")
    context = carol.context
    other = context.new_page()
    carol.close()
    platform.start()
    other.goto("/")
    expect(other.locator("#agents a")).to_have_count(4)
    conversation = other.locator("#conversations a", has_text="my code is 4711")
    expect(conversation).to_have_count(1)  # although another conversation is open
    conversation.click()
    expect(find_turns(other).locator(".it")).to_contain_text("my code is 4711")
    expect(find_turns(other)).to_have_count(1)
    other.reload()
    expect(find_turns(other).locator(".it")).to_contain_text("my code is 4711")
    expect(find_turns(other)).to_have_count(1)


def test_of_ten_tabs_one_has_the_feed_and_another_takes_over(platform: PagePlatform, people: People) -> None:
    tabs = [people.log_in("carol")]
    open_conversation(tabs[0], platform, "writer")
    while len(tabs) < TABS:
        tabs.append(people.open_tab(tabs[0], f"/{platform.address('writer')}"))
    wait_for(tabs[0], lambda: len(people.list_feeds()) == 1, "there is not one feed alone")
    write(tabs[0], "Write")
    for tab in tabs:
        expect(find_turns(tab).locator(".it")).to_have_text(FIRST_WORDS)
    [leader] = people.list_feeds()
    leader.close()
    tabs.remove(leader)
    wait_for(tabs[0], lambda: len(people.list_feeds()) == 1, "no other tab has the feed")
    platform.open_gate()
    for tab in tabs:
        expect(find_turns(tab).locator(".it")).to_have_text(WHOLE)
    write(tabs[-1], "Again")
    for tab in tabs:
        expect(find_turns(tab).locator(".me")).to_have_text(["Write", "Again"])
        expect(find_turns(tab).locator(".it")).to_have_text([WHOLE, WHOLE])
    [leader] = people.list_feeds()
    assert leader in tabs


def test_another_tab_takes_over_from_one_that_the_browser_has_frozen(platform: PagePlatform, people: People) -> None:
    first = people.log_in("carol")
    open_conversation(first, platform, "echo")
    second = people.open_tab(first, f"/{platform.address('echo')}")
    wait_for(second, lambda: people.list_feeds() == [first], "the first tab does not have the feed alone")
    life = first.context.new_cdp_session(first)
    life.send("Page.setWebLifecycleState", {"state": "frozen"})
    write(second, "hello")
    expect(find_turns(second).locator(".it")).to_have_text("hello")
    life.send("Page.setWebLifecycleState", {"state": "active"})
    expect(find_turns(first).locator(".it")).to_have_text("hello")
    wait_for(second, lambda: len(people.list_feeds()) == 1, "there is not one feed alone")


def test_what_comes_from_the_terminal_and_reminders_appear_by_themselves(platform: PagePlatform, people: People) -> None:
    guest = people.log_in("")
    open_conversation(guest, platform, "notes")
    platform.run("ask", "notes", "the key is under the mat")
    expect(find_turns(guest)).to_have_count(1)
    expect(find_turns(guest).locator(".me")).to_have_text("the key is under the mat")
    expect(find_turns(guest).locator(".it")).to_contain_text("I'll remember")
    write(guest, "remind me in 3 seconds to drink tea")
    expect(guest.locator("#log .first .it")).to_have_text("⏰ drink tea")
    expect(find_turns(guest)).to_have_count(3)
    guest.reload()
    expect(guest.locator("#log .first .it")).to_have_text("⏰ drink tea")
    expect(find_turns(guest)).to_have_count(3)


def test_a_file_and_a_picture_are_there_again_after_a_reload(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    picture = FilePayload(name="blue.png", mimeType="image/png", buffer=make_picture(30, 20))
    carol.set_input_files("#file", [picture, FilePayload(name="list.txt", mimeType="text/plain", buffer=b"milk")])
    expect(carol.locator("#files button")).to_have_count(2)
    write(carol, "Look at this")
    for _ in range(2):
        turn = find_turns(carol)
        expect(turn).to_have_count(1)
        expect(turn.locator(".it")).to_have_text("Look at this")
        shown = turn.locator(".me img")
        expect(shown).to_have_attribute("alt", "blue.png")
        wait_for(carol, lambda: shown.evaluate("each => each.naturalWidth") == 30, "the picture is not shown")  # noqa: B023
        link = turn.locator(".me a")
        expect(link).to_have_text("list.txt")
        assert httpx.get(str(link.get_attribute("href"))).content == b"milk"
        carol.reload()
    expect(carol.locator("#files button")).to_have_count(0)


def test_a_picture_alone_is_a_message(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    carol.set_input_files("#file", {"name": "blue.png", "mimeType": "image/png", "buffer": make_picture(30, 20)})
    expect(carol.locator("#files button")).to_have_count(1)
    carol.press("#text", "Enter")
    expect(find_turns(carol).locator(".me img")).to_have_count(1)
    expect(find_turns(carol).locator(".it img")).to_have_count(1)
    expect(find_turns(carol)).to_have_count(1)


def test_a_command_is_chosen_with_the_keyboard_alone(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    expect(carol.locator("#text")).to_be_focused()
    carol.keyboard.type("a note")
    carol.keyboard.press("Enter")
    expect(find_turns(carol).locator(".it")).to_contain_text("I'll remember")
    for key in ("Escape", "Enter"):  # the one closes the menu, the other takes the command
        carol.keyboard.type("/st")
        expect(carol.locator("#menu button")).to_have_count(1)
        carol.keyboard.press("ArrowDown")
        expect(carol.locator("#menu button")).to_be_focused()
        carol.keyboard.press(key)
        if key == "Escape":
            expect(carol.locator("#menu button")).to_have_count(0)
            expect(carol.locator("#text")).to_have_value("")
    expect(carol.locator("#text")).to_be_focused()
    expect(carol.locator("#text")).to_have_value(re.compile(r"^/status ?$"))
    carol.keyboard.press("Enter")
    for _ in range(2):
        expect(find_turns(carol).locator(".me")).to_have_text(["a note", "/status"])
        expect(find_turns(carol).last.locator(".it")).to_contain_text("This conversation is active")
        carol.reload()


def test_the_reply_of_a_command_is_shown_in_a_conversation_without_a_turn(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    write(carol, "/status")
    for _ in range(2):
        expect(find_turns(carol).locator(".me")).to_have_text("/status")
        expect(find_turns(carol).locator(".it")).to_contain_text("This conversation is active")
        carol.reload()


def test_the_reply_of_a_command_is_there_after_a_restart_of_the_platform(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    note(carol, "a note")
    write(carol, "/status")
    expect(find_turns(carol).last.locator(".it")).to_contain_text("This conversation is active")
    note(carol, "another note")
    platform.kill()
    platform.start()
    carol.reload()
    expect(find_turns(carol).locator(".me")).to_have_text(["a note", "/status", "another note"])
    expect(find_turns(carol).nth(1).locator(".it")).to_contain_text("This conversation is active")


def test_search_finds_a_conversation_by_a_word_of_an_answer(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    platform.open_gate()
    open_conversation(carol, platform, "writer")
    write(carol, "Write")
    expect(find_turns(carol).locator(".it")).to_have_text(WHOLE)
    open_conversation(carol, platform, "echo")
    write(carol, "hello")
    expect(find_turns(carol).locator(".it")).to_have_text("hello")
    conversations = carol.locator("#conversations a")
    expect(conversations).to_have_count(2)
    carol.keyboard.press("Control+k")
    expect(carol.locator("#search")).to_be_focused()
    carol.keyboard.type("seven")
    expect(conversations).to_have_count(1)
    expect(conversations).to_contain_text("Write")
    conversations.click()
    expect(find_turns(carol).locator(".it")).to_have_text(WHOLE)
    carol.fill("#search", "nowhere")
    expect(carol.locator("#conversations")).to_have_text("Nothing is found.")
    carol.fill("#search", "")
    expect(conversations).to_have_count(2)


def test_forget_me_asks_and_then_all_is_gone_at_this_agent(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    note(carol, "my code is 4711")
    write(carol, "/forget me")
    expect(find_turns(carol).last.locator(".it")).to_contain_text("This deletes all your conversations with me")
    write(carol, "/forget me yes")
    expect(find_turns(carol).last.locator(".it")).to_contain_text("Deleted")
    expect(carol.locator("#log")).not_to_contain_text("4711")
    expect(carol.locator("#conversations")).not_to_contain_text("4711")
    open_conversation(carol, platform, "notes")
    write(carol, "what is my code?")
    expect(find_turns(carol).last.locator(".it")).to_contain_text("I don't know")
    note(carol, "the key is under the mat")
    carol.reload()
    write(carol, "where is the key?")
    expect(find_turns(carol).last.locator(".it")).to_contain_text("under the mat")


def test_a_session_that_is_revoked_ends_at_the_login(platform: PagePlatform, people: People) -> None:
    carol, felix = people.log_in("carol"), people.log_in("felix")
    people.expect_status(401, "/chat/feed")
    platform.run("web", platform.jid("carol"), "--revoke")
    expect(carol.locator("#login-text")).to_contain_text("You need a link")
    expect(carol.locator("#chat")).to_be_hidden()
    open_conversation(felix, platform, "echo")
    write(felix, "still here")
    expect(find_turns(felix).locator(".it")).to_have_text("still here")


@pytest.mark.parametrize("platform", ["embedded, reloading"], indirect=True)
def test_an_agent_goes_from_the_open_page_of_a_person_who_is_taken_from_its_access(
    platform: PagePlatform, people: People
) -> None:
    carol, felix = people.log_in("carol"), people.log_in("felix")
    for page in (carol, felix):
        open_conversation(page, platform, "echo")
        write(page, "before")
        expect(find_turns(page).locator(".it")).to_have_text("before")
    for path in ("/chat/ask", "/chat/commands"):
        people.expect_status(404, path)
    platform.configure("echo", access={"allow": [platform.jid("felix")]})
    agents = carol.locator("#agents a")
    expect(agents).to_have_text(["notes", "refunds", "writer"])
    expect(carol.locator("#conversations")).not_to_contain_text("before")
    write(carol, "after")
    refused = find_turns(carol).last
    expect(refused).to_contain_text("There is no such agent, or you have no access to it.")
    expect(refused.locator(".it")).to_be_empty()
    carol.fill("#search", "before")
    expect(carol.locator("#conversations a")).to_have_count(0)
    carol.fill("#search", "")
    carol.reload()
    expect(agents).to_have_text(["notes", "refunds", "writer"])
    expect(carol.locator("#log")).not_to_contain_text("before")
    open_conversation(carol, platform, "notes")
    note(carol, "the key is under the mat")
    write(felix, "after")
    expect(find_turns(felix).locator(".it")).to_have_text(["before", "after"])
    expect(felix.locator("#agents a")).to_have_count(4)


def test_logging_out_takes_all_tabs_to_the_login(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    other = people.open_tab(carol)
    people.expect_status(401, "/chat/feed")
    carol.click("#out")
    for tab in (carol, other):
        expect(tab.locator("#login-text")).to_contain_text("You need a link")
    wait_for(carol, lambda: carol.evaluate("localStorage.length") == 0, "something is still stored")


def test_a_link_works_once(platform: PagePlatform, people: People) -> None:
    link = platform.link("carol")
    first, second = people.visit(link), people.visit(link)
    for page in (first, second):
        expect(page.locator("#login-text")).to_contain_text(platform.jid("carol"))
        assert "#" not in page.url
    first.click("#go")
    expect(first.locator("#agents a")).to_have_count(4)
    people.expect_status(403, "/login")
    second.click("#go")
    expect(second.locator("#login-text")).to_contain_text("This link was used")
    people.expect_status(403, "/login/name")
    expect(people.visit(link).locator("#login-text")).to_contain_text("This link was used")


def test_a_link_waits_for_its_button_and_who_is_logged_out_is_left_alone(platform: PagePlatform, people: People) -> None:
    carol = people.visit("about:blank")
    carol.clock.install()
    carol.goto(platform.link("carol"))
    expect(carol.locator("#go")).to_be_visible()
    carol.clock.run_for(90_000)
    carol.click("#go")
    expect(carol.locator("#agents a")).to_have_count(4)
    people.expect_status(401, "/chat/me")
    people.expect_status(401, "/chat/feed")
    carol.click("#out")
    expect(carol.locator("#login-text")).to_contain_text("You need a link")
    carol.evaluate("document.body.id = 'same'")
    carol.clock.run_for(90_000)
    expect(carol.locator("#same #login-text")).to_contain_text("You need a link")


def test_only_conversations_in_which_something_was_said_are_listed(platform: PagePlatform, people: People) -> None:
    guest = people.log_in("")
    open_conversation(guest, platform, "notes")
    write(guest, "/status")  # the platform has a conversation then, without a turn
    expect(find_turns(guest).locator(".it")).to_contain_text("This conversation is active")
    open_conversation(guest, platform, "writer")
    expect(guest.locator("#conversations a")).to_have_count(0)
    write(guest, "Write")
    expect(guest.locator("#conversations a")).to_have_text("writer: Write")
    open_conversation(guest, platform, "notes")
    expect(guest.locator("#conversations a")).to_have_text("writer: Write")
    platform.open_gate()
    expect(guest.locator("#conversations a")).to_have_text(re.compile("^writer: Write one.*1$"))


def test_a_draft_is_there_after_a_reload_in_its_own_conversation(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "notes")
    carol.locator("#text").press_sequentially("half a thou")
    carol.reload()
    expect(carol.locator("#text")).to_have_value("half a thou")
    open_conversation(carol, platform, "echo")
    expect(carol.locator("#text")).to_have_value("")
    open_conversation(carol, platform, "notes")
    expect(carol.locator("#text")).to_have_value("half a thou")


def test_two_tabs_of_a_conversation_show_one_draft(platform: PagePlatform, people: People) -> None:
    first = people.log_in("carol")
    open_conversation(first, platform, "notes")
    second = people.open_tab(first, f"/{platform.address('notes')}")
    expect(second.locator("#title")).to_have_text("notes")
    first.locator("#text").fill("half a")
    expect(second.locator("#text")).to_have_value("half a")
    second.locator("#text").fill("half a thought")
    expect(first.locator("#text")).to_have_value("half a thought")


def test_a_new_conversation_is_there_after_a_reload_beside_the_first(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    write(carol, "first")
    expect(find_turns(carol).locator(".it")).to_have_text("first")
    carol.click("#new")
    expect(find_turns(carol)).to_have_count(0)
    write(carol, "second")
    expect(find_turns(carol).locator(".it")).to_have_text("second")
    carol.reload()
    expect(find_turns(carol).locator(".it")).to_have_text("second")
    expect(carol.locator("#conversations a")).to_have_count(2)
    carol.locator("#conversations a", has_text="first").click()
    expect(find_turns(carol).locator(".it")).to_have_text("first")


def test_conversations_that_are_not_open_count_what_is_new(platform: PagePlatform, people: People) -> None:
    guest = people.log_in("")
    open_conversation(guest, platform, "notes")
    note(guest, "the first one")
    open_conversation(guest, platform, "echo")
    notes = guest.locator("#conversations a", has_text="the first one")
    expect(notes.locator("b")).to_have_count(0)
    for number in (1, 2):
        platform.run("ask", "notes", f"number {number}")
        expect(notes.locator("b")).to_have_text(str(number))
    guest.reload()
    expect(notes.locator("b")).to_have_text("2")
    notes.click()
    expect(find_turns(guest)).to_have_count(3)
    expect(notes.locator("b")).to_have_count(0)


def test_a_hidden_tab_tells_of_an_answer_by_its_title(platform: PagePlatform, people: People) -> None:
    guest = people.log_in("")
    open_conversation(guest, platform, "notes")
    before = guest.title()
    hide(guest)
    platform.run("ask", "notes", "the key is under the mat")
    expect(guest).to_have_title(re.compile("^• "))
    hide(guest, False)
    expect(guest).to_have_title(before)


def test_hidden_tabs_tell_of_an_answer_an_approval_and_a_reminder_by_one_notification_each(
    platform: PagePlatform, people: People
) -> None:
    carol, first = people.log_in("carol"), people.log_in("felix")
    people.record_notifications(first)
    open_conversation(first, platform, "writer")
    tabs = [first, *(people.open_tab(first, f"/{platform.address('writer')}") for _ in range(2))]
    wait_for(first, lambda: len(people.list_feeds()) == 2, "the tabs of Felix do not have one feed")
    write(first, "Write")
    for tab in tabs:
        expect(find_turns(tab).locator(".it")).to_have_text(FIRST_WORDS)
        hide(tab)
    platform.open_gate()
    for tab in tabs:
        expect(find_turns(tab).locator(".it")).to_have_text(WHOLE)
        expect(tab).to_have_title("• writer")
    wait_for(first, lambda: len(list_notifications(tabs)) == 1, "there is not one notification of the answer")
    [(title, text)] = list_notifications(tabs)
    assert (title, text.split()[0]) == ("writer", "Write")
    open_conversation(carol, platform, "refunds")
    write(carol, "I want to send back order 1003")
    carol.locator("#questions .card").get_by_role("button", name="It is broken").click()
    for tab in tabs:
        expect(tab.locator("#questions .card")).to_have_count(1)
        expect(tab).to_have_title("• refunds")
    wait_for(first, lambda: len(list_notifications(tabs)) == 2, "there is not one notification of the approval")
    title, text = list_notifications(tabs)[1]
    assert (title, platform.jid("carol") in text) == ("refunds", True)
    hide(first, False)
    open_conversation(first, platform, "notes")
    write(first, "remind me in 3 seconds to drink tea")
    expect(find_turns(first)).to_have_count(1)
    expect(first.locator("#log .live")).to_have_count(0)
    assert len(list_notifications(tabs)) == 2  # of the answer there is none: a tab is in sight
    hide(first)
    expect(first.locator("#log .first .it")).to_have_text("⏰ drink tea")
    for tab in tabs:
        expect(tab).to_have_title("• notes")
    wait_for(first, lambda: len(list_notifications(tabs)) == 3, "there is not one notification of the reminder")
    assert list_notifications(tabs)[-1][0] == "notes"
    # The tab that has the feed shows all of them.
    assert sorted(len(list_notifications([tab])) for tab in tabs) == [0, 0, 3]


def test_a_tab_in_sight_shows_no_notification_of_what_comes(platform: PagePlatform, people: People) -> None:
    first = people.log_in("felix")
    people.record_notifications(first)
    second = people.open_tab(first, f"/{platform.address('echo')}")
    tabs = [first, second]
    for hidden, other in ((first, second), (second, first)):
        hide(hidden)
        hide(other, False)
        open_conversation(other, platform, "echo")
        number = find_turns(other).count()
        write(other, f"hello {number}")
        expect(find_turns(other).last.locator(".it")).to_have_text(f"hello {number}")
        expect(hidden).to_have_title("• echo")
        expect(other).to_have_title("echo")
        write(other, "remind me")
        expect(find_turns(other)).to_have_count(number + 2)
        expect(other.locator("#conversations a").first).to_contain_text("echo")
    assert list_notifications(tabs) == []


def test_text_from_right_to_left_runs_so_in_the_question_the_answer_and_the_draft(
    platform: PagePlatform, people: People
) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "echo")
    text = "שלום עולם"
    carol.fill("#text", text)
    expect(carol.locator("#text")).to_have_css("direction", "rtl")
    carol.press("#text", "Enter")
    expect(find_turns(carol).locator(".it")).to_have_text(text)
    expect(find_turns(carol).locator(".me")).to_have_css("direction", "rtl")
    expect(find_turns(carol).locator(".it p")).to_have_css("direction", "rtl")


def test_the_page_speaks_german_with_a_german_browser(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol", locale="de-DE")
    expect(carol.locator("html")).to_have_attribute("lang", re.compile("^de"))
    expect(carol.locator("#ask .primary")).to_have_text("Senden")
    expect(carol.locator("#out")).to_have_text("Abmelden")
    expect(carol.locator("#text")).to_have_attribute("placeholder", "Nachricht")
    open_conversation(carol, platform, "notes")
    expect(carol.locator("#about")).to_have_text("Merkt sich, was Sie ihm sagen.")
    write(carol, "der Code ist 4711")
    expect(find_turns(carol).locator(".it")).to_contain_text("Ich merke mir")


def test_a_phone_shows_the_list_on_demand(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol", viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    expect(carol.locator("#side")).to_be_hidden()
    carol.click("#open")
    expect(carol.locator("#side")).to_be_visible()
    carol.locator(f'#agents a[href="{platform.address("notes")}"]').click()
    expect(carol.locator("#side")).to_be_hidden()
    expect(carol.locator("#title")).to_have_text("notes")
    carol.fill("#text", "hello")
    carol.click("#ask .primary")
    expect(find_turns(carol).locator(".it")).to_contain_text("I'll remember")


def test_a_phone_hides_the_list_when_the_open_conversation_is_chosen(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol", viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    carol.click("#open")
    carol.locator("#agents a[aria-current]").click()
    expect(carol.locator("#side")).to_be_hidden()


def test_an_answer_that_is_stopped_says_so_and_keeps_its_words(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "writer")
    write(carol, "Write")
    expect(find_turns(carol).locator(".it")).to_have_text(FIRST_WORDS)
    carol.click("#stop")
    expect(carol.locator("#stop")).to_be_hidden()
    platform.open_gate()
    write(carol, "Write again")
    expect(find_turns(carol).last.locator(".it")).to_have_text(WHOLE)
    expect(find_turns(carol).first.locator(".it")).to_have_text(FIRST_WORDS)
    expect(find_turns(carol).first).to_contain_text("stopped")


def test_a_message_that_was_stopped_is_not_answered_after_a_reload(platform: PagePlatform, people: People) -> None:
    carol = people.log_in("carol")
    open_conversation(carol, platform, "writer")
    write(carol, "Write")
    expect(find_turns(carol).locator(".it")).to_have_text(FIRST_WORDS)
    carol.click("#stop")
    expect(carol.locator("#stop")).to_be_hidden()
    platform.open_gate()
    carol.reload()
    write(carol, "Write again")
    expect(find_turns(carol).last.locator(".it")).to_have_text(WHOLE)
    expect(find_turns(carol).first.locator(".me")).to_have_text("Write")
    expect(find_turns(carol).first).not_to_contain_text("five")
    expect(find_turns(carol).first).to_contain_text("stopped")
    expect(find_turns(carol)).to_have_count(2)


def test_without_the_page_its_addresses_are_those_of_nothing(tmp_path: Path) -> None:
    with PagePlatform(tmp_path, web={"page": False}) as platform:
        nothing = httpx.get(f"{platform.url}/nothing")
        assert nothing.is_client_error
        for path in ("/", "/login", "/static/chat.js", "/static/chat.html"):
            assert httpx.get(platform.url + path).text == nothing.text
        for path in ("/login", "/login/name", "/chat/me", "/chat/feed", "/chat/ask", "/logout"):
            headers = {"Origin": platform.url}
            assert httpx.post(platform.url + path, json={}, headers=headers).text == nothing.text
        done = run_command("web", "-c", "platform.yaml", cwd=tmp_path)
        assert done.returncode != 0
        assert "the page in the browser is not on" in done.stderr
