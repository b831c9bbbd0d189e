"""Access to an agent: its roster and its operators admit people. Strangers see and hear nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from slixmpp.exceptions import IqError

from spade_coreason import AgentRequest
from tests.support.hosting import UNLIMITED, Echo, Tunnel, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.kinds import on_both_servers
from tests.support.servers.server import OTHER_DOMAIN, XmppServer
from tests.support.transports import request_stanza
from tests.support.wait import TIMEOUT_S, eventually
from tests.xmpp.profile.test_profile import Weather, connect_person, is_presence, next_presence

RESPONSE = "{urn:xmpp:tmp:quick-response}response"
WAITING_NOTICE = "You don't have access to me yet. I have asked my operator, and tell you when you may write to me."
REFUSAL = "You don't have access to me yet. Please ask my operator."


def presence_kinds(client: StockClient, agent: str) -> set[str]:
    """Return the kinds of presence that came from an agent.

    Prosody says "unavailable" to everybody who wishes to see anybody, from the bare JID. An agent says it from its own.
    """
    received = [stanza for stanza in client.presences.unread() if stanza["from"].bare == agent]
    return {stanza["type"] for stanza in received if stanza["type"] != "unavailable" or stanza["from"].resource}


async def test_an_operator_is_asked_once_and_admits_a_person_for_good(real_server: XmppServer, tmp_path: Path) -> None:
    async with connect_person(real_server) as operator, connect_person(real_server, OTHER_DOMAIN) as alice:
        policy = replace(UNLIMITED, operators=frozenset({operator.jid}))
        async with run_agent(
            lambda peers: Weather(), real_server, tmp_path, access=[], policy=policy, admission={"ask": True}
        ) as agent:
            alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            question = await operator.answer()
            assert question["body"] == (
                f"{alice.jid} wants to talk to weather & co.\nWrite /admit {alice.jid} or /reject {alice.jid}."
            )
            offered = [(response.get("value"), response.get("label")) for response in question.xml.iterfind(RESPONSE)]
            assert offered == [(f"/admit {alice.jid}", "Admit"), (f"/reject {alice.jid}", "Reject")]
            assert await alice.ask("may I?", agent.jid) == WAITING_NOTICE
            alice.send("please?", agent.jid)
            assert await operator.ask("hello", agent.jid) == "hello"  # nothing came in between: it asks once
            assert presence_kinds(alice, agent.jid) <= {"unsubscribed"}
            assert await operator.ask(f"/admit {alice.jid}", agent.jid) == f"{alice.jid} may talk to me now."
            first_lines = {(await alice.answer())["body"].splitlines()[0] for _ in range(2)}
            assert first_lines == {
                "You may talk to weather & co now.",
                "Hello, I am weather & co. Says what the weather will be.",
            }
            await next_presence(alice, agent.jid, is_presence("available"))
            await agent.restart()
            assert await alice.ask("still?", agent.jid) == "still?"
            assert await operator.ask(f"/reject {alice.jid}", agent.jid) == f"{alice.jid} may not talk to me any more."
            await next_presence(alice, agent.jid, is_presence("unsubscribed"))
            await agent.restart()
            assert await alice.ask("and now?", agent.jid) == REFUSAL
            assert await operator.ask("hello", agent.jid) == "hello"


@on_both_servers
async def test_people_who_are_rejected_or_not_decided_yet_see_nothing(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_person(real_server) as operator,
        connect_person(real_server, OTHER_DOMAIN) as alice,
        connect_person(real_server, OTHER_DOMAIN) as mallory,
    ):
        policy = replace(UNLIMITED, operators=frozenset({operator.jid}))
        async with run_agent(
            lambda peers: Weather(), real_server, tmp_path, access=[], policy=policy, admission={"ask": True}
        ) as agent:
            for client in (alice, mallory):
                client.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
                assert client.jid in (await operator.answer())["body"]
            assert await operator.ask(f"/reject {mallory.jid}", agent.jid) == f"{mallory.jid} may not talk to me any more."
            await next_presence(mallory, agent.jid, is_presence("unsubscribed"))
            assert await mallory.ask("please?", agent.jid) == REFUSAL
            with pytest.raises(IqError, match="service-unavailable"):
                await mallory.xmpp.plugin["xep_0030"].get_info(jid=f"{agent.jid}/agent", timeout=TIMEOUT_S)
            await agent.restart()  # the server has kept her wish, and asks again
            assert alice.jid in (await operator.answer())["body"]
            mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            await next_presence(mallory, agent.jid, is_presence("unsubscribed"))
            assert presence_kinds(alice, agent.jid) | presence_kinds(mallory, agent.jid) <= {"unsubscribed"}


async def test_only_an_operator_decides(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_person(real_server) as operator,
        connect_person(real_server) as alice,
        connect_person(real_server, OTHER_DOMAIN) as mallory,
    ):
        policy = replace(UNLIMITED, operators=frozenset({operator.jid}))
        async with run_agent(Echo(), real_server, tmp_path, policy=policy, admission={"ask": True}) as agent:
            assert await mallory.ask(f"/admit {mallory.jid}", agent.jid) == WAITING_NOTICE
            await operator.answer()
            refusal = "/admit is for my operators only."
            assert await alice.ask(f"/admit {mallory.jid}", agent.jid) == refusal
            mallory.send("hello?", agent.jid)
            assert "is not a JID" in await operator.ask("/admit somebody", agent.jid)
            assert await operator.ask(f"/reject {alice.jid}", agent.jid) == (
                f"{alice.jid} may still talk to me: the configuration allows it (access)."
            )
            assert await alice.ask("hello", agent.jid) == "hello"
            assert mallory.messages.empty()


async def test_with_open_access_everybody_is_admitted(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_person(real_server, OTHER_DOMAIN) as mallory,
        run_agent(lambda peers: Weather(), real_server, tmp_path, access=["*"]) as agent,
    ):
        mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await next_presence(mallory, agent.jid, is_presence("available"))
        while (answer := await mallory.ask("hello", agent.jid)) != "hello":
            assert answer.startswith("Hello, I am")


@on_both_servers
async def test_the_roster_of_its_account_admits(real_server: XmppServer, tmp_path: Path) -> None:
    async with (
        connect_person(real_server, OTHER_DOMAIN) as alice,
        connect_person(real_server, OTHER_DOMAIN) as mallory,
        run_agent(lambda peers: Weather(), real_server, tmp_path, access=[], admission={"roster": True}) as agent,
    ):
        assert await alice.ask("hello", agent.jid) == REFUSAL
        account = agent.host.client
        await account.update_roster(alice.jid, name="Alice")
        assert await alice.ask("and now", agent.jid) == "and now"
        alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await next_presence(alice, agent.jid, is_presence("available"))
        await agent.restart()
        while (answer := await alice.ask("still", agent.jid)) != "still":
            assert answer.startswith("Hello, I am")
        await agent.host.client.del_roster_item(alice.jid)
        await eventually(lambda: alice.jid not in agent.gateway.access.contacts)
        dropped = agent.gateway.dropped["not admitted"]
        alice.send("and now?", agent.jid)
        await eventually(lambda: agent.gateway.dropped["not admitted"] == dropped + 1)
        # None of what a stranger sends puts them there: neither a presence, nor a wish, nor what looks like the server's word.
        mallory.xmpp.send_presence(pto=agent.jid)
        mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
        await next_presence(mallory, agent.jid, is_presence("unsubscribed"))
        forged = f"<query xmlns='jabber:iq:roster'><item jid='{mallory.jid}' subscription='both'/></query>"
        mallory.send_xml(f"<iq xmlns='jabber:client' type='set' id='f' to='{agent.jid}/agent'>{forged}</iq>")
        assert await mallory.ask("hello", agent.jid) == REFUSAL
        assert presence_kinds(mallory, agent.jid) <= {"unsubscribed"}


async def test_a_contact_who_was_removed_while_the_agent_was_away_is_a_stranger(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        connect_person(real_server, OTHER_DOMAIN) as alice,
        connect_person(real_server, OTHER_DOMAIN) as bob,
        Tunnel(real_server) as tunnel,
        run_agent(Echo(), real_server, tmp_path, access=[], admission={"roster": True}, port=tunnel.port) as agent,
    ):
        for person in (alice, bob):
            await agent.host.client.update_roster(person.jid)
            assert await person.ask("hello", agent.jid) == "hello"
        await agent.settled()
        agent.host.client.stream_management.sm_id = None  # so that the session is not resumed
        tunnel.is_open = False
        tunnel.cut()
        async with StockClient(*agent.account, real_server, priority=None) as administrator:
            await administrator.xmpp.get_roster(timeout=TIMEOUT_S)
            await administrator.xmpp.del_roster_item(alice.jid)
        tunnel.is_open = True
        await eventually(lambda: agent.host.connection.session_count == 2)
        await eventually(lambda: agent.gateway.access.contacts == {bob.jid})
        assert await alice.ask("still?", agent.jid) == REFUSAL
        assert await bob.ask("still?", agent.jid) == "still?"
        await agent.settled()
        # The reply about a roster that has not changed has no contacts in it.
        agent.host.client.stream_management.sm_id = None
        tunnel.cut()
        await eventually(lambda: agent.host.connection.session_count == 3)
        assert await bob.ask("and now?", agent.jid) == "and now?"


async def test_the_roster_does_not_admit_whom_the_agent_itself_has_added_to_it(real_server: XmppServer, tmp_path: Path) -> None:
    async with connect_person(real_server) as operator, connect_person(real_server, OTHER_DOMAIN) as alice:
        policy = replace(UNLIMITED, operators=frozenset({operator.jid}))
        rules = {"roster": True, "ask": True}
        async with run_agent(Echo(), real_server, tmp_path, access=[], policy=policy, admission=rules) as agent:
            alice.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            assert alice.jid in (await operator.answer())["body"]
            await operator.ask(f"/admit {alice.jid}", agent.jid)
            await next_presence(alice, agent.jid, is_presence("available"))
            await eventually(lambda: agent.host.client.client_roster[alice.jid]["from"])
            await agent.restart()
            assert agent.host.client.client_roster[alice.jid]["from"]
            assert await operator.ask(f"/reject {alice.jid}", agent.jid) == f"{alice.jid} may not talk to me any more."
            await next_presence(alice, agent.jid, is_presence("unsubscribed"))
            assert not agent.gateway.is_allowed(alice.jid)
            # The administrator of the account removes the entry of the agent, and adds one.
            await agent.host.client.del_roster_item(alice.jid)
            await agent.host.client.update_roster(alice.jid)
            await eventually(lambda: agent.gateway.is_allowed(alice.jid))


async def test_what_operators_decided_counts_while_there_are_operators(
    prosody: XmppServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect_person(prosody) as operator, connect_person(prosody, OTHER_DOMAIN) as alice:
        policy = replace(UNLIMITED, operators=frozenset({operator.jid}))
        async with run_agent(Echo(), prosody, tmp_path, access=[], policy=policy) as agent:
            await operator.ask(f"/admit {alice.jid}", agent.jid)
            await alice.answer()
            assert await alice.ask("hello", agent.jid) == "hello"
            agent.policy = UNLIMITED
            await agent.restart()
            assert await alice.ask("hello", agent.jid) == REFUSAL
            assert f"{agent.jid}: there are no operators, so stored admissions (1) do not count" in caplog.text
            agent.policy = policy
            await agent.restart()
            assert await alice.ask("again", agent.jid) == "again"


async def test_operators_admit_people_on_a_server_without_rosters(embedded: XmppServer, tmp_path: Path) -> None:
    async with (
        StockClient(*await embedded.account(), embedded) as operator,
        StockClient(*await embedded.account(), embedded) as alice,
        run_agent(
            Echo(),
            embedded,
            tmp_path,
            access=[],
            policy=replace(UNLIMITED, operators=frozenset({operator.jid})),
            admission={"ask": True},
        ) as agent,
    ):
        assert await alice.ask("hello", agent.jid) == WAITING_NOTICE
        assert alice.jid in (await operator.answer())["body"]
        assert await operator.ask(f"/admit {alice.jid}", agent.jid) == f"{alice.jid} may talk to me now."
        assert (await alice.answer())["body"] == "You may talk to echo now."
        assert await alice.ask("hello", agent.jid) == "hello"


async def test_a_silent_agent_answers_a_stranger_nothing_until_an_operator_admits_them(
    real_server: XmppServer, tmp_path: Path
) -> None:
    async with connect_person(real_server) as operator, connect_person(real_server, OTHER_DOMAIN) as mallory:
        policy = replace(UNLIMITED, operators=frozenset({operator.jid}))
        async with run_agent(
            lambda peers: Weather(), real_server, tmp_path, access=[], policy=policy, admission={"is_silent": True}
        ) as agent:
            mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            mallory.send("may I?", agent.jid, extra_xml="<request xmlns='urn:xmpp:receipts'/>")
            request = AgentRequest(session_id=uuid4(), payload={"query": "a program"}).dump()
            mallory.send_xml(request_stanza(agent.jid, request, source=mallory.jid, thread="t", stanza_id="1"))
            mallory.send("{", agent.jid)
            mallory.xmpp.send_presence(pto=agent.jid, ptype="subscribe")
            await eventually(lambda: agent.gateway.dropped["not admitted"] >= 3)
            assert await operator.ask(f"/reject {mallory.jid}", agent.jid) == f"{mallory.jid} may not talk to me any more."
            assert await operator.ask("hello", agent.jid) == "hello"
            assert presence_kinds(mallory, agent.jid) == set()
            assert mallory.messages.empty()
            assert await operator.ask(f"/admit {mallory.jid}", agent.jid) == f"{mallory.jid} may talk to me now."
            assert "You may talk to" in (await mallory.answer())["body"]
