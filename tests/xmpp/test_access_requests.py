"""Whom an agent lets in: those of its roster, those whom an operator admits, and nobody else sees or hears anything of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slixmpp.exceptions import IqError

from tests.support.hosting import UNLIMITED, Echo, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.wait import PATIENCE_S, eventually
from tests.xmpp.profile.test_profile import Weather, of, person, presence

RESPONSE = "{urn:xmpp:tmp:quick-response}response"
WAIT = "I may not talk with you yet. I have asked whoever runs me, and tell you when I may."
NO = "I may not talk with you. Ask whoever runs me for access."


# Prosody says "unavailable" to everybody who wishes to see anybody.
NOTHING = {"unsubscribed", "unavailable"}


def seen(client: StockClient, agent: str) -> set[str]:
    """The kinds of presence that came from an agent."""
    queued = list(client.presences._queue)  # type: ignore[attr-defined]  # asyncio.Queue shows nobody what waits in it
    return {stanza["type"] for stanza in queued if stanza["from"].bare == agent}


async def knows(agent: Any, who: str) -> None:
    """The agent has taken everything that came before."""
    await eventually(lambda: who in agent.gateway.access_requests._refused)


async def test_an_operator_is_asked_once_and_lets_somebody_in_for_good(real_server: XmppServer, tmp_path: Path) -> None:
    async with person(real_server) as boss, person(real_server, OTHER_DOMAIN) as alice:
        policy = replace(UNLIMITED, operators=frozenset({boss.jid}))
        async with run_agent(
            lambda peers: Weather(), real_server, tmp_path, access=[], policy=policy, admission={"ask": True}
        ) as agent:
            alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            question = await boss.answer()
            assert question["body"] == (
                f"{alice.jid} wants to talk to weather & co.\nWrite /admit {alice.jid} or /reject {alice.jid}."
            )
            offered = [(one.get("value"), one.get("label")) for one in question.xml.iterfind(RESPONSE)]
            assert offered == [(f"/admit {alice.jid}", "Admit"), (f"/reject {alice.jid}", "Reject")]
            assert await alice.ask("may I?", agent.jid) == WAIT
            alice.send("please?", agent.jid)
            assert await boss.ask("hello", agent.jid) == "hello"  # nothing came in between: it asks once
            assert seen(alice, agent.jid) <= NOTHING
            assert await boss.ask(f"/admit {alice.jid}", agent.jid) == f"{alice.jid} may talk to me."
            said = {(await alice.answer())["body"].splitlines()[0] for _ in range(2)}
            assert said == {
                "You may talk to weather & co now.",
                "Hello, I am weather & co. Says what the weather will be.",
            }
            await presence(alice, agent.jid, of("available"))
            await agent.restart()
            assert await alice.ask("still?", agent.jid) == "still?"
            assert await boss.ask(f"/reject {alice.jid}", agent.jid) == f"{alice.jid} may not talk to me."
            await presence(alice, agent.jid, of("unsubscribed"))
            await agent.restart()
            assert await alice.ask("and now?", agent.jid) == NO
            assert await boss.ask("hello", agent.jid) == "hello"


async def test_who_is_rejected_or_not_answered_yet_sees_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        person(real_server) as boss,
        person(real_server, OTHER_DOMAIN) as alice,
        person(real_server, OTHER_DOMAIN) as mallory,
    ):
        policy = replace(UNLIMITED, operators=frozenset({boss.jid}))
        async with run_agent(
            lambda peers: Weather(), real_server, tmp_path, access=[], policy=policy, admission={"ask": True}
        ) as agent:
            for client in (alice, mallory):
                client.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
                assert client.jid in (await boss.answer())["body"]
            assert await boss.ask(f"/reject {mallory.jid}", agent.jid) == f"{mallory.jid} may not talk to me."
            await presence(mallory, agent.jid, of("unsubscribed"))
            assert await mallory.ask("please?", agent.jid) == NO
            with pytest.raises(IqError, match="service-unavailable"):
                await mallory.xmpp.plugin["xep_0030"].get_info(jid=f"{agent.jid}/agent", timeout=PATIENCE_S)
            await agent.restart()  # the server has kept her wish, and asks again
            assert alice.jid in (await boss.answer())["body"]
            mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            await presence(mallory, agent.jid, of("unsubscribed"))
            assert seen(alice, agent.jid) | seen(mallory, agent.jid) <= NOTHING


async def test_only_an_operator_decides(real_server: XmppServer, tmp_path: Path) -> None:
    async with person(real_server) as boss, person(real_server) as alice, person(real_server, OTHER_DOMAIN) as mallory:
        policy = replace(UNLIMITED, operators=frozenset({boss.jid}))
        async with run_agent(Echo(), real_server, tmp_path, policy=policy, admission={"ask": True}) as agent:
            assert await mallory.ask(f"/admit {mallory.jid}", agent.jid) == WAIT
            await boss.answer()
            refusal = "/admit is for those who run me."
            assert await alice.ask(f"/admit {mallory.jid}", agent.jid) == refusal
            mallory.send("hello?", agent.jid)
            assert "is not a JID" in await boss.ask("/admit somebody", agent.jid)
            assert await boss.ask(f"/reject {alice.jid}", agent.jid) == (
                f"{alice.jid} may talk to me all the same: the configuration says so (access)."
            )
            assert await alice.ask("hello", agent.jid) == "hello"
            assert mallory.messages.empty()


async def test_where_it_is_open_everybody_is_admitted(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        person(real_server, OTHER_DOMAIN) as mallory,
        run_agent(lambda peers: Weather(), real_server, tmp_path, access=["*"]) as agent,
    ):
        mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await presence(mallory, agent.jid, of("available"))
        while (answer := await mallory.ask("hello", agent.jid)) != "hello":
            assert answer.startswith("Hello, I am")


async def test_the_roster_of_its_account_admits(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        person(real_server, OTHER_DOMAIN) as alice,
        person(real_server, OTHER_DOMAIN) as mallory,
        run_agent(lambda peers: Weather(), real_server, tmp_path, access=[], admission={"roster": True}) as agent,
    ):
        assert await alice.ask("hello", agent.jid) == NO
        account = agent.host.client
        await account.update_roster(alice.jid, name="Alice")
        assert await alice.ask("and now", agent.jid) == "and now"
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await presence(alice, agent.jid, of("available"))
        await agent.restart()
        while (answer := await alice.ask("still", agent.jid)) != "still":
            assert answer.startswith("Hello, I am")
        await agent.host.client.del_roster_item(alice.jid)
        await eventually(lambda: alice.jid not in agent.gateway.access.contacts)
        alice.send("and now?", agent.jid)
        await knows(agent, alice.jid)
        # None of what a stranger sends puts them there: neither a presence, nor a wish, nor what looks like the server's word.
        mallory.xmpp.send_presence(pto=agent.jid)
        mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await presence(mallory, agent.jid, of("unsubscribed"))
        forged = f"<query xmlns='jabber:iq:roster'><item jid='{mallory.jid}' subscription='both'/></query>"
        mallory.send_xml(f"<iq xmlns='jabber:client' type='set' id='f' to='{agent.jid}/agent'>{forged}</iq>")
        assert await mallory.ask("hello", agent.jid) == NO
        assert seen(mallory, agent.jid) <= NOTHING


async def test_without_a_roster_at_the_server_operators_admit_all_the_same(embedded: XmppServer, tmp_path: Path) -> None:
    async with (
        StockClient(*await embedded.account(), embedded) as boss,
        StockClient(*await embedded.account(), embedded) as alice,
        run_agent(
            Echo(),
            embedded,
            tmp_path,
            access=[],
            policy=replace(UNLIMITED, operators=frozenset({boss.jid})),
            admission={"ask": True},
        ) as agent,
    ):
        assert await alice.ask("hello", agent.jid) == WAIT
        assert alice.jid in (await boss.answer())["body"]
        assert await boss.ask(f"/admit {alice.jid}", agent.jid) == f"{alice.jid} may talk to me."
        assert (await alice.answer())["body"] == "You may talk to echo now."
        assert await alice.ask("hello", agent.jid) == "hello"
