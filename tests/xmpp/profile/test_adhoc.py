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

from spade_coreason import AgentDefinition, AgentRequest, Policy, ResponseHandler, SessionHandle, command
from spade_coreason.domain.conversation import Rules
from spade_coreason.xmpp.muc.room import RoomConfig
from tests.support.errors import ExpectedErrors
from tests.support.hosting import OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import PATIENCE_S
from tests.xmpp.muc.test_rooms import Person, is_in, new_room

COMMANDS = "http://jabber.org/protocol/commands"
COMMAND = f"{{{COMMANDS}}}command"


class Weather:
    """Echoes; knows the weather too, and waits where it is told to."""

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

    def __init__(self, client: StockClient, agent: str) -> None:
        self.client = client
        self.agent = agent
        self.plugin = client.xmpp.plugin["xep_0050"]

    async def nodes(self) -> dict[str, str]:
        items = await self.plugin.get_commands(self.agent)
        return {node: name for _, node, name in items["disco_items"]["items"]}

    async def run(self, node: str, **how: Any) -> Any:
        return (await self.plugin.send_command(self.agent, node, **how))["command"]

    async def submit(self, stage: Any, action: str = "complete", **values: Any) -> Any:
        form = self.client.xmpp.plugin["xep_0004"].make_form(ftype="submit")
        for name, value in values.items():
            form.add_field(var=name, value=value)
        return await self.run(stage["node"], sessionid=stage["sessionid"], action=action, payload=form)

    async def do(self, node: str, **values: Any) -> str:
        """Runs a command in as many steps as it has, with what is usual for the fields that are not named."""
        stage = await self.run(node)
        while stage["status"] == "executing":
            there = stage["form"].get_fields()
            stage = await self.submit(stage, first_action(stage), **{name: values[name] for name in there if name in values})
        assert stage["status"] == "completed"
        return text_of(stage)


def first_action(stage: Any) -> str:
    return str(stage.xml.find(f"{{{COMMANDS}}}actions").get("execute"))


def text_of(stage: Any) -> str:
    notes = [text for _, text in stage["notes"]]
    values = [value.text or "" for value in stage.xml.iter("{jabber:x:data}value")]
    return "\n".join([*notes, *values])


async def refused(answer: Any) -> tuple[str, str]:
    """The condition of an error, and XEP-0050's own, or else its text."""
    with pytest.raises(IqError) as error:
        await answer
    problem = error.value.iq["error"]
    own = [child.tag.rpartition("}")[2] for child in problem.xml if child.tag.startswith(f"{{{COMMANDS}}}")]
    return problem["condition"], own[0] if own else problem["text"]


@asynccontextmanager
async def person(server: XmppServer, agent: str, name: str | None = None) -> AsyncIterator[Menu]:
    async with StockClient(*await server.account(name), server, plugins=["xep_0050", "xep_0030"]) as client:
        yield Menu(client, agent)


@asynccontextmanager
async def weather(server: XmppServer, tmp_path: Path, **policy: Any) -> AsyncIterator[OnlineAgent]:
    async with run_agent(Weather(), server, tmp_path, policy=Policy(rules=Rules(max_interactions=0), **policy)) as one:
        yield one


def full(one: OnlineAgent) -> str:
    return f"{one.jid}/agent"


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
    "export",
    "settings",
    "weather",
}
OF_OPERATORS = {"all", "end", "reset", "admit", "reject", "pause", "resume", "log"}


async def test_the_menu_shows_what_somebody_may_run_and_strangers_see_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    policy = Policy(operators=frozenset({account[0]}))
    async with (
        run_agent(Weather(), real_server, tmp_path, policy=policy, access=[account[0]]) as one,
        StockClient(*account, real_server, plugins=["xep_0050"]) as client,
        person(real_server, full(one)) as stranger,
    ):
        operator = Menu(client, full(one))
        nodes = await operator.nodes()
        assert set(nodes) == NODES | OF_OPERATORS
        assert nodes["weather"] == "The weather of a city"
        disco = client.xmpp.plugin["xep_0030"]
        info = (await disco.get_info(full(one), node="weather"))["disco_info"]
        assert ("automation", "command-node") in {(category, kind) for category, kind, *_ in info["identities"]}
        assert {COMMANDS, "jabber:x:data"} <= set(info["features"])
        assert COMMANDS in (await disco.get_info(full(one)))["disco_info"]["features"]
        assert (await refused(stranger.nodes()))[0] == "service-unavailable"
        assert (await refused(stranger.run("help")))[0] == "service-unavailable"


async def test_every_command_answers_in_the_menu_as_in_a_text(real_server: XmppServer, tmp_path: Path) -> None:
    async with weather(real_server, tmp_path) as one, person(real_server, full(one)) as alice:
        assert set(await alice.nodes()) == NODES
        assert await alice.do("status") == "We have not spoken yet."
        await alice.client.ask("hello", one.jid)
        for name in ("status", "conversations", "history", "memory", "settings", "cancel"):
            assert await alice.do(name) == await alice.client.ask(f"/{name}", one.jid)
        assert "> hello\nyou said hello" in await alice.do("history", turns="1")
        assert await alice.do("memory") == '- last: "hello"'
        assert await alice.do("new") == "Your next message begins a new conversation. What I remember stays."
        assert "is completed: 1 message, 1 answered in all" in await alice.do("status")
        assert (await alice.do("help")).startswith("I am weather.")


async def test_settings_are_shown_changed_and_stay_where_a_form_says_nothing_of_them(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with weather(real_server, tmp_path) as one, person(real_server, full(one)) as alice:
        stage = await alice.run("settings")
        fields = stage["form"].get_fields()
        assert [field["type"] for field in fields.values()] == ["text-single", "list-single", "list-single"]
        assert fields["streaming"]["value"] == "default"
        done = await alice.submit(stage, language="de", streaming="off")
        assert text_of(done) == "language: de\nthoughts: default\nstreaming: off"
        stage = await alice.run("settings")
        assert stage["form"].get_fields()["language"]["value"] == "de"
        assert text_of(await alice.submit(stage, thoughts="on")) == "language: de\nthoughts: on\nstreaming: off"
        assert await alice.client.ask("/settings language default", one.jid) == (
            "language: default\nthoughts: on\nstreaming: off"
        )


async def test_forgetting_asks_which_conversation_and_whether_and_one_can_go_back(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with weather(real_server, tmp_path) as one, person(real_server, full(one)) as alice:
        await alice.client.ask("here", one.jid)
        await alice.client.ask("there", one.jid, thread="t")
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
        assert "deletes what we said" in stage["form"]["instructions"]
        assert {first_action(stage), *stage["actions"]} == {"complete", "prev"}
        stage = await alice.submit(stage, "prev")
        assert stage["form"].get_fields()["conversation"]["value"] == here
        stage = await alice.submit(stage, "next")
        assert text_of(await alice.submit(stage, sure="0")) == "Nothing was forgotten."
        assert (await alice.do("forget", conversation=here, sure="1")).startswith("Forgotten: 1 conversation, 1 turn")
        assert "1 turn   active   thread t" in await alice.do("conversations")
        assert (await alice.do("forget-me", sure="1")).startswith("Forgotten: 1 conversation, 1 turn")
        assert await alice.do("conversations") == "There are none."


async def test_sessions_and_conversations_of_others_are_as_if_they_were_not_there(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        weather(real_server, tmp_path) as one,
        person(real_server, full(one)) as alice,
        person(real_server, full(one)) as bob,
    ):
        for who in (alice, bob):
            await who.client.ask("mine", one.jid)
            await who.client.ask("mine too", one.jid, thread=f"of {who.client.jid}")
        stage = await alice.run("forget-me")
        assert await refused(bob.submit(stage, sure="1")) == ("bad-request", "bad-sessionid")
        assert await refused(bob.run("forget-me", sessionid=stage["sessionid"], action="cancel")) == (
            "bad-request",
            "bad-sessionid",
        )
        history = await bob.run("history")
        assert alice.client.jid not in str(history)
        theirs = f"of {alice.client.jid}"
        assert await refused(bob.submit(history, conversation=theirs)) == ("bad-request", "bad-payload")
        canceled = await alice.run("forget-me", sessionid=stage["sessionid"], action="cancel")
        assert canceled["status"] == "canceled"
        assert await refused(alice.submit(stage, sure="1")) == ("bad-request", "bad-sessionid")
        assert len((await alice.do("conversations")).splitlines()) == 2


async def test_wrong_calls_get_the_errors_of_the_xep_and_nothing_is_in_the_log(
    real_server: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with weather(real_server, tmp_path) as one, person(real_server, full(one)) as alice:
        assert (await refused(alice.run("nothing")))[0] == "item-not-found"
        assert (await refused(alice.run("pause")))[0] == "item-not-found", "there are no operators"
        assert await refused(alice.run("help", sessionid="x")) == ("bad-request", "bad-sessionid")
        assert await refused(alice.run("help", action="prev")) == ("bad-request", "malformed-action")
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
            assert await refused(alice.submit(stage, **wrong)) == ("bad-request", "bad-payload")
        assert await refused(alice.submit(stage, "next", city="Rome")) == ("bad-request", "malformed-action")
        assert "Rome: 1 days, C, rain" in text_of(await alice.submit(stage, city="Rome", unknown="x")), "it may be mended"
        settings = await alice.run("settings")
        assert await refused(alice.submit(settings, language="no tag!")) == ("bad-request", "bad-payload")
        forget = await alice.run("forget-me")
        assert await refused(alice.run("settings", sessionid=forget["sessionid"])) == ("bad-request", "bad-sessionid")
        for attributes, inside, expected in (
            ("node='help' action='dance'", "", "bad-action"),
            ("node='help'", "<x xmlns='jabber:x:data' type='form'/>", "bad-payload"),
            (f"node='{'n' * 2000}'", "", "bad-payload"),
            ("", "", "There is no such command."),
        ):
            iq = alice.client.xmpp.make_iq_set(ito=full(one))
            iq.xml.append(ET.fromstring(f"<command xmlns='{COMMANDS}' {attributes}>{inside}</command>"))
            assert (await refused(iq.send(timeout=PATIENCE_S)))[1] == expected
        get = alice.client.xmpp.make_iq_get(ito=full(one))
        get.xml.append(ET.fromstring(f"<command xmlns='{COMMANDS}' node='help'/>"))
        assert (await refused(get.send(timeout=PATIENCE_S)))[0] == "bad-request"
        assert await alice.client.ask("still there", one.jid) == "you said still there"
    ours = [record for record in caplog.records if record.name.startswith("spade_coreason") and record.levelno > logging.INFO]
    assert ours == []


async def test_operators_end_reset_pause_and_see_everybody_and_others_may_not(real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    async with (
        weather(real_server, tmp_path, operators=frozenset({account[0]})) as one,
        StockClient(*account, real_server, plugins=["xep_0050"]) as client,
        person(real_server, full(one)) as alice,
    ):
        operator = Menu(client, full(one))
        await alice.client.ask("one", one.jid, thread="t")
        assert set(await alice.nodes()) == NODES
        for node in OF_OPERATORS:
            assert (await refused(alice.run(node)))[0] == "forbidden"
        assert await alice.client.ask("/end t", one.jid) == "/end is for those who run me."
        assert await alice.client.ask("/pause", one.jid) == "/pause is for those who run me."
        assert f"1 turn   active   {alice.client.jid}   t" in await operator.do("all")
        assert await operator.do("end", conversation="t") == "t is ended."
        assert "t is not active." in await operator.do("end", conversation="t")
        assert await operator.do("reset", conversation="t") == "t begins anew; what is remembered stays."
        assert await client.ask("/end nowhere", one.jid) == "There is no conversation nowhere. /all shows them."
        assert (await operator.do("pause")).startswith("Paused:")
        alice.client.send("two", one.jid, thread="t")
        assert (await alice.client.answer())["body"] == "I am paused at the moment; your message is kept."
        assert "paused" in await alice.do("status")
        assert await client.ask("/resume", one.jid) == "I go on."
        assert (await alice.client.answer())["body"] == "you said two"
        assert await operator.do("resume") == "I am not paused."
        log = logging.getLogger("spade_coreason")
        before = log.level
        try:
            assert (await operator.do("log", level="error")).startswith("The log of the whole platform is at error")
            assert log.getEffectiveLevel() == logging.ERROR
            assert await client.ask("/log", one.jid) == "The log is at error."
        finally:
            log.setLevel(before)


async def test_the_running_answer_is_stopped_from_the_menu(real_server: XmppServer, tmp_path: Path) -> None:
    async with weather(real_server, tmp_path) as one, person(real_server, full(one)) as alice:
        alice.client.send("wait", one.jid)
        await asyncio.wait_for(one.agent.working.wait(), PATIENCE_S)
        assert await alice.do("cancel") == "Stopped."
        assert await alice.client.ask("next", one.jid) == "you said next"


async def test_an_agents_own_command_runs_like_a_turn_and_fails_like_one(
    real_server: XmppServer, tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("RuntimeError: it is under water")
    async with weather(real_server, tmp_path) as one, person(real_server, full(one)) as alice:
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
        assert await alice.client.ask('/weather "New York" 2', one.jid) == f"New York: 2 days, C, rain, asked by {jid}"
        assert await alice.do("memory") == '- city: "New York"'
        assert await alice.do("conversations") == "There are none.", "it is no turn"
        failed = await alice.submit(await alice.run("weather"), city="Atlantis")
        assert [kind for kind, _ in failed["notes"]] == ["error"]
        assert text_of(failed).startswith("Something went wrong on my side (incident ")
        assert (await alice.client.ask("/weather Atlantis", one.jid)).startswith("Something went wrong on my side (incident ")
        assert await alice.client.ask("/weather", one.jid) == (
            "city is missing: which city. Write `/weather CITY [DAYS] [UNIT] [RAIN]`."
        )


async def test_an_occupant_of_a_room_has_no_menu(prosody: XmppServer, tmp_path: Path) -> None:
    """The room's conversation is everybody's; one of them could forget it."""
    room = new_room()
    async with (
        run_agent(Weather(), prosody, tmp_path, access=["*"], rooms=[RoomConfig(room, "weather")]) as one,
        StockClient(*await prosody.account(), prosody, plugins=["xep_0050"]) as client,
    ):
        await is_in(one, room)
        await Person(client, room, "alice").enter()
        menu = Menu(client, f"{room}/weather")
        assert await menu.nodes() == {}
        assert (await refused(menu.run("forget-me")))[0] == "forbidden"


async def test_what_a_room_says_of_who_somebody_is_makes_nobody_an_operator(prosody: XmppServer, tmp_path: Path) -> None:
    room, account = new_room(), await prosody.account()
    policy = Policy(operators=frozenset({account[0]}))
    async with StockClient(*account, prosody) as client:
        operator = await Person(client, room, "boss").enter(muc__roomconfig_whois="anyone")
        async with run_agent(Weather(), prosody, tmp_path, policy=policy, rooms=[RoomConfig(room, "weather")]) as one:
            await is_in(one, room)
            operator.whisper("weather", "hello")
            assert (await operator.hears("weather"))["body"] == "you said hello"
            assert {row.owner for row in await one.store.list_conversations()} == {account[0]}
            operator.whisper("weather", "/pause")
            assert (await operator.hears("weather"))["body"] == "/pause is for those who write to me directly."
            assert not one.runner.is_paused


async def test_where_a_server_carries_no_commands_they_are_texts(embedded: XmppServer, tmp_path: Path) -> None:
    async with (
        weather(embedded, tmp_path) as one,
        StockClient(*await embedded.account(), embedded) as client,
    ):
        assert await client.ask("/weather Rome", one.jid) == f"Rome: 1 days, C, rain, asked by {client.jid}"
        assert (await client.ask("/settings streaming off", one.jid)).endswith("streaming: off")
        client.send("/forget me", one.jid)
        question = await client.answer()
        offered = question.xml.iterfind("{urn:xmpp:tmp:quick-response}response")
        assert [(one.get("value"), one.get("label")) for one in offered] == [("/forget me yes", "Yes"), ("/forget me no", "No")]
        assert await client.ask("/forget me no", one.jid) == "Nothing was forgotten."
        client.send("/export", one.jid)
        why = f"It cannot be a file: {embedded.domain} has no service for files."
        assert (await client.answer())["body"] == f"Everything that I keep about you, as text. {why}"
        assert (await client.answer())["body"].startswith('```\n{\n  "schema"')
        assert await client.ask("still there?", one.jid) == "you said still there?"
