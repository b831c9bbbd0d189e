"""The reminders of the ready-made agents, and the morning report of the release bot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from agents.assistant import AssistantAgent
from agents.notes import NotesAgent
from agents.reminders import parse_when, split_reminder
from spade_coreason import AgentTester
from spade_coreason.domain.preferences import Preferences
from spade_coreason.llm.fake import FakeModel, tool_call
from tests.support.clock import Clock

MADRID = ZoneInfo("Europe/Madrid")
NOW = datetime(2025, 11, 20, 12, tzinfo=UTC)  # a Thursday; 13:00 in Madrid
USER = "tester@localhost"


async def let_pass(t: AgentTester, clock: Clock, **by: float) -> None:
    """Let time pass, as a timer would that waits for it."""
    clock.advance(**by)
    t.runners[t.jid].task_clock.check()


async def live_in_madrid(t: AgentTester) -> None:
    await t.runners[t.jid].executor.context.loader.persons.set_preferences(USER, Preferences(zone="Europe/Madrid"))


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("in 10 minutes", timedelta(minutes=10)),
        ("In 1  hour", timedelta(hours=1)),
        ("at 18:00", datetime(2025, 11, 20, 18, tzinfo=MADRID)),
        ("at 13", datetime(2025, 11, 21, 13, tzinfo=MADRID)),
        ("tomorrow at 9", datetime(2025, 11, 21, 9, tzinfo=MADRID)),
        ("on 2026-07-01 at 8:30", datetime(2026, 7, 1, 8, 30, tzinfo=MADRID)),
        ("2026-07-01T08:30", datetime(2026, 7, 1, 8, 30, tzinfo=MADRID)),
        ("2026-07-01T08:30Z", datetime(2026, 7, 1, 8, 30, tzinfo=UTC)),
        ("every day at 7:05", "5 7 * * *"),
        ("every weekday at 9", "0 9 * * mon-fri"),
        ("every Monday at 9", "0 9 * * mon"),
    ],
)
def test_the_forms_of_a_time(text: str, when: object) -> None:
    assert parse_when(text, NOW, MADRID) == when


@pytest.mark.parametrize("text", ["at 2:30", "today at 2:30", "on 2025-10-26 at 2:30", "2025-10-26T02:30"])
@pytest.mark.parametrize(("now", "due_at"), [("00:10", "00:30"), ("00:40", "01:30"), ("01:10", "01:30")])
def test_in_an_hour_that_the_clock_shows_twice_the_next_of_both_is_meant(text: str, now: str, due_at: str) -> None:
    """In Madrid, 2:30 on 26 October 2025 is 0:30 and 1:30 UTC."""
    when = parse_when(text, datetime.fromisoformat(f"2025-10-26T{now}Z"), MADRID)
    assert isinstance(when, datetime)
    assert when.astimezone(UTC) == datetime.fromisoformat(f"2025-10-26T{due_at}Z")


@pytest.mark.parametrize(
    "text",
    ["soon", "at 25", "at 9:60", "today at 9", "on 2025-02-30 at 9", "on 2020-01-01 at 9", "every month at 9", "in x days"],
)
def test_another_form_or_a_time_that_is_over_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_when(text, NOW, MADRID)


def test_a_reminder_is_split_at_the_first_word_that_begins_its_text() -> None:
    assert split_reminder("Remind me at 18:00 to write to Bob") == ("at 18:00", "write to Bob")
    assert split_reminder("remind me to write") is None


async def test_notes_reminds_in_the_zone_of_the_person() -> None:
    clock = Clock(NOW)
    async with AgentTester(NotesAgent, clock=clock) as t:
        await live_in_madrid(t)
        [confirmation] = await t.say("remind me at 18:00 to call Bob")
        assert confirmation == '✓ I\'ll remind you on 2025-11-20 18:00 (Europe/Madrid): "call Bob".'
        await let_pass(t, clock, hours=4, minutes=59)
        assert await t.say("my reminders") == ["1. 2025-11-20 18:00 (Europe/Madrid): call Bob"]
        await let_pass(t, clock, minutes=1)
        assert (await t.message()).text == "⏰ call Bob"
        assert await t.say("my reminders") == ["You have no reminders."]
        assert await t.say("list") == ["You have not told me anything yet."]


async def test_notes_lists_and_cancels_reminders_by_their_numbers() -> None:
    async with AgentTester(NotesAgent, clock=Clock(NOW)) as t:
        await t.say("remind me every weekday at 9 to water the plants")
        await t.say("remind me in 10 minutes to drink")
        [listed] = await t.say("my reminders")
        assert listed == "1. 2025-11-20 12:10 (UTC): drink\n2. 2025-11-21 09:00 (UTC): water the plants"
        assert await t.say("cancel reminder 3") == ["You have no reminder 3; `my reminders` lists them."]
        assert await t.say("cancel reminder 1") == ['Cancelled: "drink".']
        assert await t.say("my reminders") == ["1. 2025-11-21 09:00 (UTC): water the plants"]


@pytest.mark.parametrize("text", ["remind me", "remind me soon to drink", "remind me at 25:00 to drink"])
async def test_notes_shows_examples_for_a_time_that_it_does_not_know(text: str) -> None:
    async with AgentTester(NotesAgent, clock=Clock(NOW)) as t:
        [answer] = await t.say(text)
        assert answer.startswith("I do not know this time.")
        assert "remind me in 10 minutes to call Bob" in answer
        assert await t.say("my reminders") == ["You have no reminders."]


async def test_the_assistant_reminds_without_its_model() -> None:
    clock = Clock(NOW)
    model = FakeModel([tool_call("remind_me", when="2025-11-20T18:00", text="Call Bob"), "I will."])
    async with AgentTester(AssistantAgent, model=model, clock=clock) as t:
        await live_in_madrid(t)
        assert (await t.say("Remind me at six to call Bob"))[-1] == "I will."
        assert model.requests[-1].messages[-1]["content"] == "The reminder comes on 2025-11-20 18:00 (Europe/Madrid)."
        await let_pass(t, clock, hours=5)
        assert (await t.message()).text == "⏰ Call Bob"  # the model has no reply left


async def test_the_assistant_lists_and_cancels_and_reads_its_errors() -> None:
    calls = [
        tool_call("remind_me", when="soon", text="Drink"),
        tool_call("remind_me", when="in 10 minutes", text="Drink"),
        tool_call("list_reminders"),
        tool_call("cancel_reminder", number=2),
        tool_call("cancel_reminder", number=1),
        tool_call("list_reminders"),
    ]
    model = FakeModel([*calls, "Done."])
    async with AgentTester(AssistantAgent, model=model, clock=Clock(NOW)) as t:
        assert (await t.say("Remind me, and then do not"))[-1] == "Done."
    refused, made, listed, unknown, cancelled, none = [
        message["content"] for message in model.requests[-1].messages if message["role"] == "tool"
    ]
    assert refused.startswith("error: 'soon' is no time to come")
    assert made == "The reminder comes on 2025-11-20 12:10 (UTC)."
    assert listed == "1. 2025-11-20 12:10 (UTC): Drink"
    assert unknown == "error: there is no reminder 2; list_reminders has them"
    assert cancelled == "Cancelled: Drink"
    assert none == "There are no reminders."


@pytest.fixture
def release_bot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = Path(__file__).parents[2] / "examples" / "release_bot"
    monkeypatch.syspath_prepend(str(directory))
    yield directory
    for name in ("release_bot", "changelog"):
        sys.modules.pop(name, None)


async def test_the_release_bot_reports_in_the_morning_and_is_silent_without_news(release_bot: Path) -> None:
    clock = Clock(NOW)
    peers = {"changelog": import_module("changelog").changelog}
    options = {"report_to": USER}
    async with AgentTester(import_module("release_bot").ReleaseBot, peers=peers, options=options, clock=clock) as t:
        await let_pass(t, clock, hours=20)  # Friday, 08:00
        assert "Release 1.2" in str((await t.message()).text)
        await let_pass(t, clock, days=3)  # Monday, 08:00
        await t.settled()
        assert t.unread() == []
