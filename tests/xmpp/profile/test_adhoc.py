"""An agent's commands in the menus of stock clients (XEP-0050): slixmpp's own plugin is the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

import pytest
from slixmpp.exceptions import IqError

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle, command
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.testing import Policy, Rules
from tests.support.errors import ExpectedErrors
from tests.support.hosting import OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S
from tests.xmpp.muc.test_rooms import Person, new_room, wait_until_joined

COMMANDS = "http://jabber.org/protocol/commands"
COMMAND = f"{{{COMMANDS}}}command"


class Weather:
    """Echoes, waits at the query "wait", and has a command of its own: the weather."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("weather")
        self.working = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        text = request.payload["query"]
        if text == "wait":
            self.working.set()
            await self.may_go_on.wait()
        await session.store("last", text)
        await response.markdown(f"you said {text}")

    @command("weather", "the weather of a city", city="which city", unit="in which unit")
    async def weather(
        self, session: SessionHandle, city: str, days: int = 1, unit: Literal["C", "F"] = "C", rain: bool = True
    ) -> str:
        if city == "Atlantis":
            raise RuntimeError("it is under water")
        await session.store("city", city)
        return f"{city}: {days} days, {unit}, {'rain' if rain else 'sun'}, asked by {session.identity.id}"


class Menu:
    """A person who opens the commands of an agent in their client."""

    def __init__(self, client: StockClient, agent_jid: str) -> None:
        self.client = client
        self.agent_jid = agent_jid
        self.plugin = client.xmpp.plugin["xep_0050"]

    async def nodes(self) -> dict[str, str]:
        items = await self.plugin.get_commands(self.agent_jid)
        return {node: name for _, node, name in items["disco_items"]["items"]}

    async def run(self, node: str, **options: Any) -> Any:
        return (await self.plugin.send_command(self.agent_jid, node, **options))["command"]

    async def submit(self, stage: Any, action: str = "complete", **values: Any) -> Any:
        form = self.client.xmpp.plugin["xep_0004"].make_form(ftype="submit")
        for name, value in values.items():
            form.add_field(var=name, value=value)
        return await self.run(stage["node"], sessionid=stage["sessionid"], action=action, payload=form)

    async def run_to_end(self, node: str, **values: Any) -> str:
        """Run a command in as many steps as it has; fields that are not named keep their defaults."""
        stage = await self.run(node)
        while stage["status"] == "executing":
            fields = stage["form"].get_fields()
            stage = await self.submit(stage, first_action(stage), **{name: values[name] for name in fields if name in values})
        assert stage["status"] == "completed"
        return text_of(stage)


def first_action(stage: Any) -> str:
    return str(stage.xml.find(f"{{{COMMANDS}}}actions").get("execute"))


def text_of(stage: Any) -> str:
    notes = [text for _, text in stage["notes"]]
    values = [value.text or "" for value in stage.xml.iter("{jabber:x:data}value")]
    return "\n".join([*notes, *values])


async def error_of(answer: Any) -> tuple[str, str]:
    """Return the condition of an error, and that of XEP-0050 or else its text."""
    with pytest.raises(IqError) as error:
        await answer
    problem = error.value.iq["error"]
    own = [child.tag.rpartition("}")[2] for child in problem.xml if child.tag.startswith(f"{{{COMMANDS}}}")]
    return problem["condition"], own[0] if own else problem["text"]


@asynccontextmanager
async def open_menu(
    server: XmppServer, agent_jid: str, name: str | None = None, account: tuple[str, str] | None = None
) -> AsyncIterator[Menu]:
    login = account or await server.account(name)
    async with StockClient(*login, server, plugins=["xep_0050", "xep_0030"]) as client:
        yield Menu(client, agent_jid)


@asynccontextmanager
async def run_weather_agent(server: XmppServer, tmp_path: Path, **policy: Any) -> AsyncIterator[OnlineAgent]:
    async with run_agent(Weather(), server, tmp_path, policy=Policy(rules=Rules(max_interactions=0), **policy)) as agent:
        yield agent


def full_jid(agent: OnlineAgent) -> str:
    return f"{agent.jid}/agent"


NODES = {
    "help",
    "status",
    "new",
    "conversations",
    "history",
    "memory",
    "cancel",
    "forget",
    "forget-me",
    "forget-everywhere",
    "export",
    "export-everywhere",
    "reminders",
    "reminders-cancel",
    "answer",
    "approve",
    "deny",
    "settings",
    "weather",
}
OPERATOR_NODES = {
    "all",
    "end",
    "reset",
    "admit",
    "reject",
    "pause",
    "resume",
    "log",
    "reassign",
    "people-delete",
    "people-export",
}


async def test_the_menu_shows_what_a_person_may_run_and_strangers_see_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    policy = Policy(operators=frozenset({account[0]}))
    async with (
        run_agent(Weather(), real_server, tmp_path, policy=policy, access=[account[0]]) as agent,
        StockClient(*account, real_server, plugins=["xep_0050"]) as client,
        open_menu(real_server, full_jid(agent)) as stranger,
    ):
        operator = Menu(client, full_jid(agent))
        nodes = await operator.nodes()
        assert set(nodes) == NODES | OPERATOR_NODES
        assert nodes["weather"] == "The weather of a city"
        disco = client.xmpp.plugin["xep_0030"]
        info = (await disco.get_info(full_jid(agent), node="weather"))["disco_info"]
        assert ("automation", "command-node") in {(category, kind) for category, kind, *_ in info["identities"]}
        assert {COMMANDS, "jabber:x:data"} <= set(info["features"])
        assert COMMANDS in (await disco.get_info(full_jid(agent)))["disco_info"]["features"]
        assert (await error_of(stranger.nodes()))[0] == "service-unavailable"
        assert (await error_of(stranger.run("help")))[0] == "service-unavailable"


@on_both_servers
async def test_every_command_answers_in_the_menu_as_in_a_text(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_weather_agent(real_server, tmp_path) as agent, open_menu(real_server, full_jid(agent)) as alice:
        assert set(await alice.nodes()) == NODES
        assert (await alice.run_to_end("status")).startswith(
            "You have not written to me yet. You have sent 0 of 1,000,000 messages"
        )
        await alice.client.ask("hello", agent.jid)
        for name in ("status", "conversations", "history", "memory", "reminders", "settings", "cancel"):
            assert await alice.run_to_end(name) == await alice.client.ask(f"/{name}", agent.jid)
        assert "> hello\nyou said hello" in await alice.run_to_end("history", turns="1")
        assert await alice.run_to_end("memory") == '- last (here and for all your conversations): "hello"'
        assert (
            await alice.run_to_end("new") == "Your next message starts a new conversation. I still remember what I know of you."
        )
        assert "is completed: 1 message, 1 answered in all" in await alice.run_to_end("status")
        assert (await alice.run_to_end("help")).startswith("I am weather.")


async def test_settings_are_shown_and_changed_and_those_not_in_the_form_stay(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_weather_agent(real_server, tmp_path) as agent, open_menu(real_server, full_jid(agent)) as alice:
        stage = await alice.run("settings")
        fields = stage["form"].get_fields()
        assert [field["type"] for field in fields.values()] == [
            "text-single",
            "list-single",
            "list-single",
            "list-single",
            "text-single",
        ]
        assert fields["streaming"]["value"] == "default"
        done = await alice.submit(stage, language="de", streaming="off")
        assert text_of(done).startswith(
            "language (Sprache): de\nthoughts (Gedanken): default (Standard: nur die Werkzeuge, die ich benutze)\nstreaming"
        )
        stage = await alice.run("settings")
        fields = stage["form"].get_fields()
        assert (fields["language"]["value"], fields["streaming"]["value"]) == ("de", "off")
        assert fields["thoughts"]["label"] == "Ob Sie sehen, was ich während der Arbeit denke"
        assert "\nthoughts (Gedanken): on (ein)\n" in text_of(await alice.submit(stage, thoughts="on"))
        stage = await alice.run("settings")
        assert "\nzone (Zeitzone): Europe/Berlin" in text_of(
            await alice.submit(stage, notifications="off", zone="Europe/Berlin")
        )
        assert await alice.client.ask("/settings language default", agent.jid) == (
            "language: default (that of your messages)\nthoughts: on\nstreaming: off\nnotifications: off\nzone: Europe/Berlin"
        )


async def test_forgetting_asks_for_the_conversation_and_confirmation_and_can_go_back(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with run_weather_agent(real_server, tmp_path) as agent, open_menu(real_server, full_jid(agent)) as alice:
        await alice.client.ask("here", agent.jid)
        await alice.client.ask("there", agent.jid, thread="t")
        stage = await alice.run("forget")
        which = stage["form"].get_fields()["conversation"]
        labels = {option["value"]: option["label"] for option in which["options"]}
        assert [label.split("   ")[1:] for label in labels.values()] == [
            ["1 turn", "active", "thread t"],
            ["1 turn", "active", "no thread"],
        ]
        assert which["value"] == "t", "the newest"
        here = next(value for value in labels if value != "t")
        assert first_action(stage) == "next"
        stage = await alice.submit(stage, "next", conversation=here)
        assert "deletes this conversation" in stage["form"]["instructions"]
        assert {first_action(stage), *stage["actions"]} == {"complete", "prev"}
        stage = await alice.submit(stage, "prev")
        assert stage["form"].get_fields()["conversation"]["value"] == here
        stage = await alice.submit(stage, "next")
        assert text_of(await alice.submit(stage, sure="0")) == "Nothing was deleted."
        assert (await alice.run_to_end("forget", conversation=here, sure="1")).startswith("Deleted: 1 conversation, 1 turn")
        assert "1 turn   active   thread t" in await alice.run_to_end("conversations")
        assert (await alice.run_to_end("forget-me", sure="1")).startswith("Deleted: 1 conversation, 1 turn")
        assert await alice.run_to_end("conversations") == "There are none."


async def test_sessions_and_conversations_of_others_are_as_if_they_were_not_there(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_weather_agent(real_server, tmp_path) as agent,
        open_menu(real_server, full_jid(agent)) as alice,
        open_menu(real_server, full_jid(agent)) as bob,
    ):
        for who in (alice, bob):
            await who.client.ask("mine", agent.jid)
            await who.client.ask("mine too", agent.jid, thread=f"of {who.client.jid}")
        stage = await alice.run("forget-me")
        assert await error_of(bob.submit(stage, sure="1")) == ("bad-request", "bad-sessionid")
        assert await error_of(bob.run("forget-me", sessionid=stage["sessionid"], action="cancel")) == (
            "bad-request",
            "bad-sessionid",
        )
        history = await bob.run("history")
        assert alice.client.jid not in str(history)
        theirs = f"of {alice.client.jid}"
        assert await error_of(bob.submit(history, conversation=theirs)) == ("bad-request", "bad-payload")
        stage_after_cancel = await alice.run("forget-me", sessionid=stage["sessionid"], action="cancel")
        assert stage_after_cancel["status"] == "canceled"
        assert await error_of(alice.submit(stage, sure="1")) == ("bad-request", "bad-sessionid")
        assert len((await alice.run_to_end("conversations")).splitlines()) == 2


async def test_wrong_calls_get_the_errors_of_the_xep_and_log_nothing(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_weather_agent(real_server, tmp_path) as agent, open_menu(real_server, full_jid(agent)) as alice:
        assert (await error_of(alice.run("nothing")))[0] == "item-not-found"
        assert (await error_of(alice.run("pause")))[0] == "item-not-found", "there are no operators"
        assert await error_of(alice.run("help", sessionid="x")) == ("bad-request", "bad-sessionid")
        assert await error_of(alice.run("help", action="prev")) == ("bad-request", "malformed-action")
        stage = await alice.run("weather")
        for wrong in (
            {},
            {"city": "  "},
            {"city": "Rome", "days": "many"},
            {"city": "Rome", "days": "9" * 30},
            {"city": "Rome", "unit": "K"},
            {"city": "Rome", "rain": "perhaps"},
            {"city": "x" * 20_000},
        ):
            assert await error_of(alice.submit(stage, **wrong)) == ("bad-request", "bad-payload")
        assert await error_of(alice.submit(stage, "next", city="Rome")) == ("bad-request", "malformed-action")
        assert "Rome: 1 days, C, rain" in text_of(await alice.submit(stage, city="Rome", unknown="x")), "it may be mended"
        settings = await alice.run("settings")
        assert await error_of(alice.submit(settings, language="no tag!")) == ("bad-request", "bad-payload")
        forget = await alice.run("forget-me")
        assert await error_of(alice.run("settings", sessionid=forget["sessionid"])) == ("bad-request", "bad-sessionid")
        for attributes, inside, expected in (
            ("node='help' action='dance'", "", "bad-action"),
            ("node='help'", "<x xmlns='jabber:x:data' type='form'/>", "bad-payload"),
            (f"node='{'n' * 2000}'", "", "bad-payload"),
            ("", "", "There is no such command."),
        ):
            iq = alice.client.xmpp.make_iq_set(ito=full_jid(agent))
            iq.xml.append(ET.fromstring(f"<command xmlns='{COMMANDS}' {attributes}>{inside}</command>"))
            assert (await error_of(iq.send(timeout=TIMEOUT_S)))[1] == expected
        get = alice.client.xmpp.make_iq_get(ito=full_jid(agent))
        get.xml.append(ET.fromstring(f"<command xmlns='{COMMANDS}' node='help'/>"))
        assert (await error_of(get.send(timeout=TIMEOUT_S)))[0] == "bad-request"
        assert await alice.client.ask("still there", agent.jid) == "you said still there"
    warnings = [
        record for record in caplog.records if record.name.startswith("spade_coreason") and record.levelno > logging.INFO
    ]
    assert warnings == []


async def test_operators_end_reset_pause_and_see_everybody_and_others_may_not(real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    async with (
        run_weather_agent(real_server, tmp_path, operators=frozenset({account[0]})) as agent,
        StockClient(*account, real_server, plugins=["xep_0050"]) as client,
        open_menu(real_server, full_jid(agent)) as alice,
    ):
        operator = Menu(client, full_jid(agent))
        await alice.client.ask("one", agent.jid, thread="t")
        assert set(await alice.nodes()) == NODES
        for node in OPERATOR_NODES:
            assert (await error_of(alice.run(node)))[0] == "forbidden"
        assert await alice.client.ask("/end t", agent.jid) == "/end is for my operators only."
        assert await alice.client.ask("/pause", agent.jid) == "/pause is for my operators only."
        assert f"1 turn   active   {alice.client.jid}   t" in await operator.run_to_end("all")
        assert await operator.run_to_end("end", conversation="t") == "The conversation t is ended."
        assert "The conversation t is not active." in await operator.run_to_end("end", conversation="t")
        assert (
            await operator.run_to_end("reset", conversation="t")
            == "The conversation t starts anew. What I remember of it stays."
        )
        assert await client.ask("/end nowhere", agent.jid) == "There is no conversation nowhere. /all lists them."
        assert (await operator.run_to_end("pause")).startswith("Paused. ")
        alice.client.send("two", agent.jid, thread="t")
        assert (await alice.client.answer())[
            "body"
        ] == "I am paused at the moment. Your message is stored, and I answer it later."
        assert "paused" in await alice.run_to_end("status")
        assert await client.ask("/resume", agent.jid) == "I continue."
        assert (await alice.client.answer())["body"] == "you said two"
        assert await operator.run_to_end("resume") == "I am not paused."
        log = logging.getLogger("spade_coreason")
        before = log.level
        try:
            assert (await operator.run_to_end("log", level="error")).startswith(
                "The level of the log of the whole platform is error"
            )
            assert log.getEffectiveLevel() == logging.ERROR
            assert await client.ask("/log", agent.jid) == "The level of the log is error."
        finally:
            log.setLevel(before)


async def test_the_running_answer_is_stopped_from_the_menu(real_server: XmppServer, tmp_path: Path) -> None:
    async with run_weather_agent(real_server, tmp_path) as agent, open_menu(real_server, full_jid(agent)) as alice:
        alice.client.send("wait", agent.jid)
        await asyncio.wait_for(agent.agent.working.wait(), TIMEOUT_S)
        assert await alice.run_to_end("cancel") == "Stopped."
        assert await alice.client.ask("next", agent.jid) == "you said next"


async def test_an_agents_own_command_runs_like_a_turn_and_fails_like_one(
    real_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("RuntimeError: it is under water")
    async with run_weather_agent(real_server, tmp_path) as agent, open_menu(real_server, full_jid(agent)) as alice:
        jid = alice.client.jid
        stage = await alice.run("weather")
        fields = stage["form"].get_fields()
        assert {name: field["type"] for name, field in fields.items()} == {
            "city": "text-single",
            "days": "text-single",
            "unit": "list-single",
            "rain": "boolean",
        }
        assert fields["city"]["label"] == "Which city"
        assert fields["city"]["required"]
        done = await alice.submit(stage, city="New York", days="3", unit="F", rain="0")
        assert text_of(done) == f"New York: 3 days, F, sun, asked by {jid}"
        assert await alice.client.ask('/weather "New York" 2', agent.jid) == f"New York: 2 days, C, rain, asked by {jid}"
        assert await alice.run_to_end("memory") == '- city (here and for all your conversations): "New York"'
        assert await alice.run_to_end("conversations") == "There are none.", "it is no turn"
        failed = await alice.submit(await alice.run("weather"), city="Atlantis")
        assert [kind for kind, _ in failed["notes"]] == ["error"]
        assert text_of(failed).startswith("Something went wrong on my side (incident ")
        assert (await alice.client.ask("/weather Atlantis", agent.jid)).startswith("Something went wrong on my side (incident ")
        assert await alice.client.ask("/weather", agent.jid) == (
            "city is missing: which city. Write `/weather CITY [DAYS] [UNIT] [RAIN]`."
        )


@pytest.mark.parametrize("is_silent", [False, True])
async def test_an_occupant_of_a_room_has_no_menu(prosody: XmppServer, tmp_path: Path, is_silent: bool) -> None:
    """The room's conversation is everybody's; one of them could forget it."""
    room, admission = new_room(), {"is_silent": is_silent}
    rooms = [RoomConfig(room, "weather")]
    async with (
        run_agent(Weather(), prosody, tmp_path, access=["*"], rooms=rooms, admission=admission) as agent,
        StockClient(*await prosody.account(), prosody, plugins=["xep_0050"]) as client,
    ):
        await wait_until_joined(agent, room)
        await Person(client, room, "alice").enter()
        menu = Menu(client, f"{room}/weather")
        assert await menu.nodes() == {}
        assert await error_of(menu.run("forget-me")) == (
            ("service-unavailable", "")
            if is_silent
            else ("forbidden", "You don't have access to me yet. Please ask my operator.")
        )


async def test_a_rooms_claim_about_a_jid_makes_nobody_an_operator(prosody: XmppServer, tmp_path: Path) -> None:
    room, account = new_room(), await prosody.account()
    policy = Policy(operators=frozenset({account[0]}))
    async with StockClient(*account, prosody) as client:
        operator = await Person(client, room, "boss").enter(muc__roomconfig_whois="anyone")
        async with run_agent(Weather(), prosody, tmp_path, policy=policy, rooms=[RoomConfig(room, "weather")]) as agent:
            await wait_until_joined(agent, room)
            operator.whisper("weather", "hello")
            assert (await operator.receive_from("weather"))["body"] == "you said hello"
            assert {row.owner for row in await agent.repository.list_conversations()} == {account[0]}
            operator.whisper("weather", "/pause")
            assert (await operator.receive_from("weather"))["body"] == "/pause works only in a message to my own address."
            assert not agent.runner.control.is_paused


async def test_on_a_server_without_adhoc_commands_they_are_texts(embedded: XmppServer, tmp_path: Path) -> None:
    async with (
        run_weather_agent(embedded, tmp_path) as agent,
        StockClient(*await embedded.account(), embedded) as client,
    ):
        assert await client.ask("/weather Rome", agent.jid) == f"Rome: 1 days, C, rain, asked by {client.jid}"
        assert "\nstreaming: off\n" in await client.ask("/settings streaming off", agent.jid)
        client.send("/forget me", agent.jid)
        question = await client.answer()
        offered = question.xml.iterfind("{urn:xmpp:tmp:quick-response}response")
        assert [(response.get("value"), response.get("label")) for response in offered] == [
            ("/forget me yes", "Yes"),
            ("/forget me no", "No"),
        ]
        assert await client.ask("/forget me no", agent.jid) == "Nothing was deleted."
        client.send("/export", agent.jid)
        why = f"I cannot send it as a file: {embedded.domain} has no service for files."
        assert (await client.answer())["body"] == f"Everything that I store about you, as text. {why}"
        assert (await client.answer())["body"].startswith('```\n{\n  "schema"')
        assert await client.ask("still there?", agent.jid) == "you said still there?"
