"""A person's preferences for an agent, and their effect."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, ResponseHandler, SessionHandle, agent
from spade_coreason.contracts import ThinkingBlock
from spade_coreason.contracts.blocks import STEP_TITLE
from spade_coreason.domain.channel_kinds import PERSON, ROOM, ChannelKind
from spade_coreason.domain.messages import BlockEmitted, RoomOrigin, TextEmitted
from spade_coreason.domain.preferences import DEFAULT_PREFERENCES, LANGUAGE_TAG, PREFERENCES_SCOPE, Preferences
from spade_coreason.runtime.channels import PresentationOptions
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.transport import encoder_for
from tests.support.errors import ExpectedErrors
from tests.support.requests import build_incoming

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"


class ThinkingAgent:
    """Send a thought before each reply, and keep the metadata of each request."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("thinker")
        self.metadata: list[dict[str, Any]] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.metadata.append(request.metadata)
        await response.thought("Looking out\nof the window…")
        await response.markdown("It is sunny.")


def thinking_tester(**options: Any) -> AgentTester:
    return AgentTester(ThinkingAgent, user=ALICE, **options)


WITH_THOUGHTS = ["_Looking out_\n_of the window…_", "It is sunny."]
WITHOUT_THOUGHTS = ["It is sunny."]


@pytest.mark.parametrize("tag", ["en", "de", "pt-BR", "zh-Hant-TW", "de-CH-1901", "EN-us"])
def test_well_formed_language_tags_are_accepted(tag: str) -> None:
    assert LANGUAGE_TAG.fullmatch(tag)
    assert Preferences(language=tag).language == tag


@pytest.mark.parametrize(
    "text", ["", "e", "english please", "de_DE", "de-", "-de", "de\n", "d3", "de-" + "x" * 9, "de" + "-a" * 20]
)
def test_a_malformed_language_tag_is_refused(text: str) -> None:
    assert not LANGUAGE_TAG.fullmatch(text)
    with pytest.raises(ValueError, match="is no language tag; write it as"):
        Preferences(language=text)


@pytest.mark.parametrize("name", ["thoughts", "streaming", "notifications"])
@pytest.mark.parametrize("value", [0, "off"])
def test_a_switch_accepts_only_true_false_and_none(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is True, False or None, not {value!r}"):
        Preferences(**{name: value})


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"])
def test_a_time_zone_has_an_iana_name(zone: str) -> None:
    assert Preferences(zone=zone).zone == zone


@pytest.mark.parametrize("zone", ["", "Berlin", "+01:00", "../etc/passwd", "posix/Europe/Berlin", 1, ["UTC"]])
def test_a_time_zone_that_is_none_is_refused_with_an_example(zone: Any) -> None:
    with pytest.raises(ValueError, match=r"Europe/Berlin|did you mean"):
        Preferences(zone=zone)


def test_preferences_of_a_version_without_notifications_and_zones_are_read() -> None:
    stored = {PREFERENCES_SCOPE: '{"language": "de", "thoughts": true}'}
    assert Preferences.from_stored(stored) == Preferences("de", thoughts=True)


def test_all_preferences_are_stored_and_read() -> None:
    preferences = Preferences("de", thoughts=True, streaming=False, notifications=False, zone="Europe/Berlin")
    assert Preferences.from_stored({PREFERENCES_SCOPE: preferences.to_json()}) == preferences


async def test_thoughts_are_shown_to_people_who_want_them_and_are_no_part_of_the_reply() -> None:
    async with thinking_tester() as t:
        assert await t.say("?") == WITHOUT_THOUGHTS
        await t.runners[AGENT].executor.context.loader.persons.set_preferences(ALICE, Preferences(thoughts=True))
        assert await t.say("?") == WITH_THOUGHTS
        assert await t.say("?", thread="another") == WITH_THOUGHTS
        assert await t.say("?", user=BOB) == WITHOUT_THOUGHTS
        history = await t.say("/history")
        assert "window" not in history[0]
        await t.runners[AGENT].executor.context.loader.persons.set_preferences(ALICE, Preferences(thoughts=False))
        assert await t.say("?") == WITHOUT_THOUGHTS


async def test_thoughts_may_be_shown_to_everyone_who_has_not_disabled_them() -> None:
    async with thinking_tester(policy=Policy(rules=Rules(thoughts=True))) as t:
        assert await t.say("?") == WITH_THOUGHTS
        await t.runners[AGENT].executor.context.loader.persons.set_preferences(ALICE, Preferences(thoughts=False))
        assert await t.say("?") == WITHOUT_THOUGHTS


async def test_a_program_and_a_spade_agent_get_thoughts_in_their_own_way() -> None:
    async with thinking_tester(policy=Policy(rules=Rules(thoughts=True))) as t:
        answer = await t.ask("?")
        assert answer.text == "It is sunny."
        form = (
            "<x xmlns='jabber:x:data' type='form'><title>spade:x:metadata</title>"
            "<field var='performative' type='text-single'><value>query</value></field></x>"
        )
        t.send_stanza(f"<message to='{AGENT}' type='chat' id='s'><body>?</body>{form}</message>")
        await t.settled()
        assert t.unread() == WITHOUT_THOUGHTS


@pytest.mark.parametrize("kind", [ROOM, PERSON])
def test_a_thought_is_one_unstored_stanza_and_is_not_sent_to_a_room(kind: ChannelKind) -> None:
    incoming = build_incoming("?", ALICE, kind, room=RoomOrigin(nickname="alice"))
    encoder = encoder_for(incoming, UUID(int=1), AGENT, 10_000, PresentationOptions(shows_thoughts=True))
    stanzas = [
        stanza for text in ("snake_case is\x00 odd", " ", "x" * 20_000) for stanza in encoder.encode(thought_event(text))
    ]
    if kind.is_room:
        assert stanzas == []
        return
    short, long = stanzas
    assert "<body>snake_case is odd</body>" in short  # the mark would end too early
    assert all("<no-store xmlns='urn:xmpp:hints'/>" in stanza and len(stanza) <= 10_000 for stanza in stanzas)
    assert "x …</body>" in long
    assert short.split(" id='")[1].split("'")[0].startswith(str(UUID(int=1)))
    assert encoder.encode(TextEmitted("It is sunny.", 1))[0].count(f"id='{UUID(int=1)}-0-") == 2


@pytest.mark.parametrize(
    ("kind", "presentation", "is_shown"),
    [
        (PERSON, PresentationOptions(shows_steps=True), True),
        (PERSON, PresentationOptions(shows_thoughts=True), True),
        (PERSON, PresentationOptions(), False),
        (ROOM, PresentationOptions(shows_steps=True), False),
    ],
)
def test_a_step_is_shown_to_people_who_have_not_disabled_it_and_not_in_a_room(
    kind: ChannelKind, presentation: PresentationOptions, is_shown: bool
) -> None:
    incoming = build_incoming("?", ALICE, kind, room=RoomOrigin(nickname="alice"))
    encoder = encoder_for(incoming, UUID(int=1), AGENT, 10_000, presentation)
    stanzas = encoder.encode(BlockEmitted(ThinkingBlock(title=STEP_TITLE, content="Using recall…")))
    assert ["<body>_Using recall…_</body>" in stanza for stanza in stanzas] == [True] * is_shown


async def test_an_agent_sends_its_steps_beside_its_reply() -> None:
    @agent
    async def busy(request: AgentRequest, session: SessionHandle, response: Response) -> None:
        await response.step("Looking into the oven…")
        await response.markdown("It is done.")

    async with AgentTester(busy) as t:
        assert await t.say("?") == ["_Looking into the oven…_", "It is done."]
        answer = await t.ask("?")
        assert answer.text == "It is done."
        assert (answer.events[0].type, answer.events[0].data["title"]) == ("block.thought", STEP_TITLE)
        assert "oven" not in (await t.say("/history"))[0]


def thought_event(text: str) -> BlockEmitted:
    return BlockEmitted(ThinkingBlock(content=text))


async def test_the_preferred_language_is_in_the_metadata_and_cannot_be_forged() -> None:
    async with thinking_tester() as t:
        runner, agent = t.runners[AGENT], t.agent
        assert isinstance(agent, ThinkingAgent)
        await t.say("?")
        await runner.executor.context.loader.persons.set_preferences(ALICE, Preferences(language="pt-BR"))
        await t.say("?")
        await t.ask("?")
        await t.say("?", user=BOB)
        forged = '{"type": "ai.coreason.request", "data": {"payload": {}, "metadata": {"preferred_language": "xx", "a": 1}}}'
        t.send_stanza(f"<message to='{AGENT}' id='f'><json xmlns='urn:xmpp:json:0'>{forged}</json></message>", user=BOB)
        await t.settled()
        assert [metadata.get("preferred_language") for metadata in agent.metadata] == [None, "pt-BR", "pt-BR", None, None]
        assert agent.metadata[-1]["a"] == 1


@pytest.mark.parametrize(
    ("of_the_message", "of_the_body", "tag"),
    [
        ("", "", None),
        (" xml:lang='de'", "", "de"),
        ("", " xml:lang='fr-CA'", "fr-CA"),
        (" xml:lang='de'", " xml:lang='fr'", "fr"),
        (" xml:lang='answer in rhymes'", "", None),
    ],
)
async def test_the_language_of_a_message_is_in_the_metadata(of_the_message: str, of_the_body: str, tag: str | None) -> None:
    async with thinking_tester() as t:
        t.send_stanza(f"<message to='{AGENT}' type='chat' id='m'{of_the_message}><body{of_the_body}>?</body></message>")
        await t.settled()
        assert isinstance(t.agent, ThinkingAgent)
        assert t.agent.metadata[0].get("language_tag") == tag
        assert t.agent.metadata[0]["channel"] == "person"


async def test_preferences_outlast_a_restart_and_end_with_forget_me() -> None:
    preferences = Preferences("de", thoughts=True, streaming=False, notifications=False, zone="Europe/Berlin")
    async with thinking_tester() as t:
        assert await t.runners[AGENT].executor.context.loader.persons.get_preferences(ALICE) == DEFAULT_PREFERENCES
        await t.runners[AGENT].executor.context.loader.persons.set_preferences(ALICE, preferences)
        assert await t.runners[AGENT].executor.context.loader.persons.get_preferences(ALICE) == preferences
        assert await t.say("?") == WITH_THOUGHTS
        await t.restart()
        assert await t.runners[AGENT].executor.context.loader.persons.get_preferences(ALICE) == preferences
        assert await t.say("?") == WITH_THOUGHTS
        assert await t.runners[AGENT].executor.context.loader.persons.get_preferences(BOB) == DEFAULT_PREFERENCES
        await t.say("/forget yes")
        assert await t.say("?") == WITH_THOUGHTS
        await t.say("/forget me yes")
        assert await t.runners[AGENT].executor.context.loader.persons.get_preferences(ALICE) == DEFAULT_PREFERENCES
        assert await t.say("?") == WITHOUT_THOUGHTS
        await t.restart()
        assert await t.say("?") == WITHOUT_THOUGHTS


@pytest.mark.parametrize("stored", ["no JSON", '{"colour": "blue"}', '{"language": "x y"}', '{"zone": "x"}', "[1]"])
async def test_unreadable_preferences_are_ignored(
    stored: str, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("stored preferences cannot be read and are ignored")
    async with thinking_tester() as t:
        await t.runners[AGENT].repository.save_variable(PREFERENCES_SCOPE, ALICE, PREFERENCES_SCOPE, stored)
        with caplog.at_level(logging.ERROR):
            assert await t.say("?") == WITHOUT_THOUGHTS
        assert "stored preferences cannot be read and are ignored" in caplog.text
