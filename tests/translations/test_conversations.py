"""Conversations in German and Spanish: the texts of the platform and of the ready-made agents."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, ResponseHandler, SessionHandle, agent
from spade_coreason.agents.echo import EchoAgent
from spade_coreason.agents.notes import NotesAgent
from spade_coreason.agents.round_table import RoundTableAgent
from spade_coreason.domain.preferences import Preferences
from spade_coreason.domain.texts.translation import translate
from spade_coreason.testing import Policy, Rules
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S
from tests.translations.catalogues import extract_messages

ALICE, BOB, EVE = "alice@localhost", "bob@localhost", "eve@example.org"
OPERATED = Policy(operators=frozenset([BOB]))

COMMANDS = """/help /status /new /conversations /history /history~x /memory /cancel /forget /forget~me /forget~maybe
/forget~no /settings /settings~color /settings~color~red /settings~thoughts /settings~thoughts~maybe
/settings~language~? /export /hlep /all /end~x /reset~x /admit /admit~eve@example.org /reject~eve@example.org
/pause /pause /status /resume /resume /log /log~loud /new~x""".replace("\n", " ").split(" ")


class Failing:
    """Fails, or says in which language it would answer."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("failing")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "fail":
            raise RuntimeError("as announced")
        await asyncio.to_thread(translate, "Done.")  # also threads have the language of the turn
        await response.markdown(translate("Done."))


def english_texts() -> list[str]:
    """Return the messages that are sentences, without placeholders."""
    return [text for text in extract_messages() if text.endswith(".") and "{" not in text]


async def test_settings_language_answers_in_the_new_language_at_once() -> None:
    async with AgentTester(EchoAgent, user=ALICE) as t:
        assert await t.say("/settings") == [
            "language: default (that of your messages)\nthoughts: default (only the tools that I use)\n"
            "streaming: default (on, where your client supports it)\nnotifications: default (on)\nzone: default (UTC)"
        ]
        (german,) = await t.say("/settings language de-AT")
        assert german.startswith(
            "language (Sprache): de-AT\nthoughts (Gedanken): default (Standard: nur die Werkzeuge, die ich benutze)"
        )
        (spanish,) = await t.say("/settings language es")
        assert spanish.startswith("language (idioma): es\n")
        assert (await t.say("/settings language default"))[0].startswith("language: default (")


async def test_no_command_answers_a_german_in_english() -> None:
    english = english_texts()
    async with AgentTester(EchoAgent, user=BOB, policy=OPERATED) as t:
        await t.say("/settings language de", user=BOB)
        await t.say("hallo")
        for command in COMMANDS:
            answer = "\n".join(await t.say(command.replace("~", " ")))
            assert answer, command
            assert [text for text in english if text in answer] == [], command
        help_text = "\n".join(await t.say("/help"))
        assert help_text.startswith("Ich bin EchoAgent: Wiederholt Wort für Wort, was Sie sagen.")
        assert "/forget me   alles löschen, was ich über Sie gespeichert habe" in help_text
        assert (await t.say("/forget ja"))[0].startswith("Gelöscht: ")


async def test_the_ready_made_agents_speak_the_language_of_the_person() -> None:
    async with AgentTester(NotesAgent, user=ALICE) as t:
        await t.say("/settings language de")
        assert await t.say("list") == ["Sie haben mir noch nichts erzählt."]
        assert await t.say("Der Zahnarzt ist am Montag") == ["✓ Ich merke mir: „Der Zahnarzt ist am Montag“."]
        assert (await t.say("Wann ist der Zahnarzt?"))[0].startswith("Das haben Sie mir am ")
        assert (await t.say("help"))[0].startswith("Erzählen Sie mir etwas")
    async with AgentTester(RoundTableAgent, user=ALICE, options={"ask": ["a@localhost", "b@localhost"]}) as t:
        await t.say("/settings language es")
        answer = await t.ask({"query": ""})
        assert answer.text == "¿De qué hablamos?"


async def test_failures_limits_and_pauses_are_told_in_the_language_of_the_person(expected_errors: ExpectedErrors) -> None:
    expected_errors("as announced")
    policy = Policy(rules=Rules(max_interactions=2), operators=frozenset([BOB]))
    async with AgentTester(Failing, user=ALICE, policy=policy) as t:
        await t.say("/settings language de")
        assert (await t.say("fail"))[0].startswith("Bei mir ist etwas schiefgegangen (Vorfall ")
        assert await t.say("hallo") == ["Erledigt."]
        (limit,) = await t.say("hallo")
        assert limit.startswith("Das war es vorerst: Eine Unterhaltung hat höchstens 2 Nachrichten. Schreiben Sie in ")
        await t.say("/pause", user=BOB)
        await t.say("/new")
        t.send("hallo")
        await t.settled()
        assert "Ich pausiere gerade. Ihre Nachricht ist gespeichert" in "".join(await t.say("/status"))


async def test_a_stranger_is_refused_in_the_language_of_the_message() -> None:
    async with AgentTester(EchoAgent) as t:
        t.send_stanza(f"<message to='{t.jid}' type='chat' id='m' xml:lang='es-MX'><body>hola</body></message>", user=EVE)
        await t.settled()
        (refusal,) = await t.say("hello", user=EVE)
        assert refusal == "Todavía no tiene acceso. Pídaselo a mi operador."


async def test_the_setting_comes_before_the_language_of_the_message_and_outlasts_a_restart() -> None:
    async with AgentTester(Failing, user=ALICE) as t:
        stanza = f"<message to='{t.jid}' type='chat' id='{{}}' xml:lang='es'><body>hola</body></message>"
        t.send_stanza(stanza.format("1"))
        await t.settled()
        assert (await t.say("/settings language de"))[0] == "Hecho."
        await t.restart()
        t.send_stanza(stanza.format("2"))
        await t.settled()
        assert await t.say("/cancel") == ["Erledigt.", "Es gibt nichts abzubrechen."]
        await t.say("/forget me yes")
        assert await t.say("/cancel") == ["There is nothing to stop."]


async def test_an_agent_that_asks_another_keeps_its_own_language() -> None:
    languages: list[str] = []

    @agent
    async def asking(request: AgentRequest, session: Any, response: Response) -> None:
        await response.markdown(translate("Done."))

    async with AgentTester(asking, user=ALICE) as t:
        await asyncio.gather(
            t.runners[t.jid].executor.context.loader.persons.set_preferences(ALICE, Preferences("de")),
            t.runners[t.jid].executor.context.loader.persons.set_preferences(BOB, Preferences("es")),
        )
        for _ in range(3):
            answers = await asyncio.gather(t.say("?", user=ALICE), t.say("?", user=BOB), t.say("?", user="carol@localhost"))
            languages += [text for answer in answers for text in answer]
    assert languages == ["Erledigt.", "Hecho.", "Done."] * 3


def test_an_echo_in_english_reads_no_catalogue() -> None:
    program = """
import asyncio, sys
from spade_coreason import AgentTester
from spade_coreason.agents.echo import EchoAgent
async def main():
    async with AgentTester(EchoAgent) as t:
        assert await t.say("hello") == ["hello"]
        await t.say("/help")
asyncio.run(main())
print("polib" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.servers
async def test_a_client_that_says_its_language_is_answered_in_it(prosody: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(Echo(), prosody, tmp_path) as echo,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        alice.send_xml(f"<message to='{echo.jid}' type='chat' id='c' xml:lang='es'><body>/cancel</body></message>")
        assert (await alice.answer())["body"] == "No hay nada que detener."
        encrypted = "<encryption xmlns='urn:xmpp:eme:0' namespace='urn:xmpp:omemo:2'/><encrypted xmlns='urn:xmpp:omemo:2'/>"
        alice.send_xml(f"<message to='{echo.jid}' type='chat' id='e' xml:lang='de'>{encrypted}</message>")
        assert (await alice.answer())["body"].startswith("Ihre Nachricht ist mit OMEMO verschlüsselt")
