"""Questions to people and approvals in real clients: buttons, numbers, replies, rooms, and a whole session in profanity."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.domain.rooms import RoomConfig
from spade_coreason.exceptions import ApprovalDeniedError, ApprovalRefusedError
from spade_coreason.testing import ApprovalPolicy, Policy
from tests.support.hosting import OnlineAgent, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.profanity import Profanity, installed
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.xmpp.muc.test_rooms import Person, new_room, wait_until_joined
from tests.xmpp.profile.test_adhoc import open_menu, text_of

RESPONSE = "{urn:xmpp:tmp:quick-response}response"
UNKNOWN = "I have asked you nothing with this code. Please check it."


class Desk:
    """Ask for a drink, with choices or a text, or pay an amount when it is approved."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("desk")
        self.paid: list[int] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        command, _, rest = str(request.payload["query"]).partition(" ")
        try:
            match command:
                case "drink":
                    answer = await response.ask_person("Tea or coffee?", choices=["tea", "coffee"])
                    await response.markdown(f"Here is your {answer.text}.")
                case "name":
                    answer = await response.ask_person("What is your name?")
                    await response.markdown(f"Hello, {answer.text}.")
                case "pay":
                    await response.markdown(await session.run_approved("pay", self.pay, int(rest)))
                case _:
                    await response.markdown(f"You said {command}.")
        except ApprovalDeniedError as error:
            await response.markdown(f"Not paid: {error.reason or 'no reason'}")
        except (ApprovalRefusedError, ValueError) as error:
            await response.markdown(f"Refused: {error}")

    def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return f"paid {amount}"


@asynccontextmanager
async def run_desk(
    server: XmppServer, tmp_path: Path, *approvers: str, rooms: tuple[str, ...] = ()
) -> AsyncIterator[tuple[OnlineAgent, Desk]]:
    desk = Desk()
    policy = Policy(approvals=ApprovalPolicy(operators=approvers))
    configs = [RoomConfig(room, "Desk") for room in rooms]
    name = f"desk-{secrets.token_hex(3)}"
    async with run_agent(desk, server, tmp_path, name=name, policy=policy, rooms=configs) as agent:
        yield agent, desk


def buttons(message: object) -> list[tuple[str | None, str | None]]:
    return [(each.get("value"), each.get("label")) for each in message.xml.iterfind(RESPONSE)]  # type: ignore[attr-defined]


async def said_in_room(person: Person) -> str:
    """Return what the agent says next to a room."""
    return str((await person.receive_from("Desk"))["body"])


async def whispered(person: Person) -> str:
    """Return what the agent says next to one person in a room."""
    while (message := await person.receive_from("Desk"))["type"] != "chat":
        pass
    return str(message["body"])


@on_both_servers
async def test_a_client_has_buttons_and_a_number_is_enough_without_them(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        StockClient(*await real_server.account(), real_server) as alice,
        run_desk(real_server, tmp_path) as (agent, _),
    ):
        for answer, drink in (("tea", "tea"), ("2", "coffee")):
            alice.send("drink", agent.jid)
            question = await alice.answer()
            assert "1. tea\n2. coffee" in question["body"]
            assert [label for _, label in buttons(question)] == ["tea", "coffee"]
            assert await alice.ask("and what about you?", agent.jid) == "You said and."  # no answer, so a request
            assert await alice.ask(answer, agent.jid) == f"Here is your {drink}."


@on_both_servers
async def test_a_reply_answers_a_question_without_choices(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        StockClient(*await real_server.account(), real_server) as alice,
        run_desk(real_server, tmp_path) as (agent, _),
    ):
        alice.send("name", agent.jid)
        question = await alice.answer()
        assert await alice.ask("Alice", agent.jid) == "You said Alice."
        reply = f"<reply xmlns='urn:xmpp:reply:0' to='{agent.jid}' id='{question['id']}'/>"
        alice.send("Alice", agent.jid, extra_xml=reply)
        assert (await alice.answer())["body"] == "Hello, Alice."


@on_both_servers
async def test_an_approval_counts_once_and_from_the_account_that_was_asked(real_server: XmppServer, tmp_path: Path) -> None:
    boss_account = await real_server.account()
    async with (
        StockClient(*await real_server.account(), real_server) as alice,
        StockClient(*await real_server.account(), real_server) as eve,
        StockClient(*boss_account, real_server) as boss,
        run_desk(real_server, tmp_path, boss_account[0]) as (agent, desk),
    ):
        assert (await alice.ask("pay 7", agent.jid)).startswith("This needs the approval of")
        question = await boss.answer()
        assert question["body"].startswith(f"\U0001f512 {alice.jid} asks for this. It needs your approval:")
        assert "```\npay\namount:\n7\n```" in question["body"]
        (approve, _), (deny, _) = buttons(question)
        assert (approve or "").removeprefix("/approve ") == (deny or "").removeprefix("/deny ")
        for other in (alice, eve):
            assert await other.ask(str(approve), agent.jid) == UNKNOWN
        assert desk.paid == []
        assert await boss.ask(str(approve), agent.jid) == "Approved. It runs now."
        assert (await alice.answer())["body"] == "paid 7"
        assert await boss.ask(str(deny), agent.jid) == "You have answered this already."
        assert desk.paid == [7]
        await alice.ask("pay 8", agent.jid)
        (approve, _), (deny, _) = buttons(await boss.answer())
        assert await boss.ask(f"{deny} too much", agent.jid) == "Denied. It does not run."
        assert (await alice.answer())["body"] == "Not paid: too much"
        assert await boss.ask(str(approve), agent.jid) == "You have answered this already."
        assert desk.paid == [7]


@on_both_servers
async def test_an_approver_decides_in_a_form_of_their_client(real_server: XmppServer, tmp_path: Path) -> None:
    account = await real_server.account()
    async with (
        run_desk(real_server, tmp_path, account[0]) as (agent, desk),
        StockClient(*await real_server.account(), real_server) as alice,
        open_menu(real_server, f"{agent.jid}/agent", account=account) as boss,
    ):
        for amount in (7, 8):
            await alice.ask(f"pay {amount}", agent.jid)
        for node, values, told, reply in (
            ("approve", {"sure": "true"}, "Approved. It runs now.", "paid 7"),
            ("deny", {"reason": "too much"}, "Denied. It does not run.", "Not paid: too much"),
        ):
            stage = await boss.run(node)
            if node == "approve":  # there are two of them
                codes = [option["value"] for option in stage["form"].get_fields()["code"]["options"]]
                stage = await boss.submit(stage, "next", code=codes[0])
            assert "\npay\namount:\n" in stage["form"]["instructions"]
            code = stage["form"].get_fields()["code"]["value"]
            done = await boss.submit(stage, code=code, **values)
            assert text_of(done) == told
            assert (await alice.answer())["body"] == reply
        assert desk.paid == [7]


@on_both_servers
async def test_a_room_gets_the_notice_only_and_the_account_is_asked_in_its_own_chat(
    real_server: XmppServer, tmp_path: Path
) -> None:
    room, boss_account = new_room(), await real_server.account()
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        StockClient(*await real_server.account(), real_server) as mate_client,
        StockClient(*boss_account, real_server) as boss,
    ):
        alice = await Person(client, room, "alice").enter(muc__roomconfig_whois="anyone")
        mate = await Person(mate_client, room, "boss").enter()
        async with run_desk(real_server, tmp_path, boss_account[0], rooms=(room,)) as (agent, desk):
            await wait_until_joined(agent, room)
            alice.say("Desk: pay 7")
            assert "This needs the approval of" in await said_in_room(alice)
            question = await boss.answer()
            assert str(question["from"].bare) == agent.jid
            (approve, _), _ = buttons(question)
            mate.say(f"Desk: {approve}")  # a room-mate with the nickname of the approver
            assert "You said" in await said_in_room(alice)
            mate.whisper("Desk", str(approve))
            assert UNKNOWN in await whispered(mate)
            assert desk.paid == []
            assert await boss.ask(str(approve), agent.jid) == "Approved. It runs now."
            assert "paid 7" in await said_in_room(alice)
            alice.say("Desk: drink")
            seen = {str(message["from"]): message for message in [await client.answer() for _ in range(3)]}  # in any order
            assert f"I have asked {client.jid}" in seen[f"{room}/Desk"]["body"]
            assert [label for _, label in buttons(seen[f"{agent.jid}/agent"])] == ["tea", "coffee"]


async def direct_answer(client: StockClient, agent: str) -> Any:
    """Return the next message that the agent sends to a person outside of the room."""
    while str((message := await client.answer())["from"].bare) != agent:
        pass
    return message


@on_both_servers
async def test_two_people_in_a_room_answer_their_own_questions_only(real_server: XmppServer, tmp_path: Path) -> None:
    room = new_room()
    async with (
        StockClient(*await real_server.account(), real_server) as alice_client,
        StockClient(*await real_server.account(), real_server) as bob_client,
    ):
        alice = await Person(alice_client, room, "alice").enter(muc__roomconfig_whois="anyone")
        bob = await Person(bob_client, room, "bob").enter()
        async with run_desk(real_server, tmp_path, rooms=(room,)) as (agent, _):
            await wait_until_joined(agent, room)
            for person in (alice, bob):
                person.say("Desk: drink")
            questions = {client: await direct_answer(client, agent.jid) for client in (alice_client, bob_client)}
            (alices_tea, _), _ = buttons(questions[alice_client])
            alice.say("Desk: tea")  # what is said in a room answers nothing
            bob.whisper("Desk", str(alices_tea))
            bob_client.send(str(alices_tea), agent.jid)
            assert (await direct_answer(bob_client, agent.jid))["body"] == "You said answer."
            asked = await agent.runner.repository.questions.load()
            assert [question.state for question in asked] == ["open", "open"]
            bob_client.send("\u0662", agent.jid)
            assert (await direct_answer(bob_client, agent.jid))["body"].startswith("Thank you.")
            alice_client.send(str(alices_tea), agent.jid)
            assert (await direct_answer(alice_client, agent.jid))["body"].startswith("Thank you.")
            states = {str(json.loads(str(each.answer))["text"]) for each in await agent.runner.repository.questions.load()}
            assert states == {"tea", "coffee"}


@on_both_servers
async def test_in_a_room_that_hides_accounts_nobody_is_asked(real_server: XmppServer, tmp_path: Path) -> None:
    room, boss_account = new_room(), await real_server.account()
    async with (
        StockClient(*await real_server.account(), real_server) as client,
        StockClient(*boss_account, real_server) as boss,
    ):
        alice = await Person(client, room, "alice").enter(muc__roomconfig_whois="moderators")
        async with run_desk(real_server, tmp_path, boss_account[0], rooms=(room,)) as (agent, desk):
            await wait_until_joined(agent, room)
            for text in ("pay 7", "drink"):
                alice.say(f"Desk: {text}")
                assert "Refused: " in await said_in_room(alice)
            assert await boss.ask("hello", agent.jid) == "You said hello."  # nothing came before
            assert desk.paid == []


async def test_a_person_answers_approves_and_denies_in_profanity(real_server: XmppServer, tmp_path: Path) -> None:
    require("profanity", installed())
    account, boss_account = await real_server.account(), await real_server.account()
    async with (
        run_desk(real_server, tmp_path, boss_account[0]) as (agent, desk),
        Profanity(account, real_server, tmp_path / "alice") as alice,
    ):
        jid = f"{agent.jid}/agent"
        await alice.type(f"/msg {agent.jid} drink")
        await alice.wait_for("me: drink", "Tea or coffee?", "1. tea", "2. coffee")
        await alice.type("2")
        await alice.wait_for("me: 2", f"{jid}: Here is your coffee.")
        async with Profanity(boss_account, real_server, tmp_path / "boss") as boss:
            for amount, verb, told, outcome in (
                (701, "approve CODE", "Approved. It runs now.", "paid 701"),
                (802, "deny CODE too much", "Denied. It does not run.", "Not paid: too much"),
            ):
                await alice.type(f"pay {amount}")
                await alice.wait_for(f"me: pay {amount}", "This needs the approval of an operator")
                await boss.type(f"/msg {agent.jid}")
                seen = await boss.wait_for("asks for this", "amount:", f"{amount}", "Write /approve ")
                code = seen.rpartition("Write /approve ")[2].split()[0]
                line = f" /{verb.replace('CODE', code)}"  # profanity runs a line itself that begins with a slash
                await boss.type(line)
                await boss.wait_for(f"me: {line}", told)
                await alice.wait_for(f"me: pay {amount}", outcome)
                await boss.type(f" /approve {code}")
                await boss.wait_for(told, f"me:  /approve {code}", "answered this already")
        assert desk.paid == [701]
