"""Nothing crosses between peers, whatever thread they choose and whatever they forge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.contracts import AgentDefinition
from spade_coreason.domain.identifiers import derive_session_id
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from tests.support.hosting import FunctionAgent, envelope, parse_event, receive_events, run_agent
from tests.support.records import query_of
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually


class DisclosingAgent:
    """Answers with everything that it can see."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("tells")
        self.requests: list[Any] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.requests.append(request)
        query = request.payload["query"]
        seen = {
            "conversation": request.metadata["conversation_id"],
            "session": session.session_id,
            "who": session.identity.id,
            "history": [query_of(turn) for turn in await session.history(100)],
            "recall": await session.recall(query, 100, 0.01),
            "before": await session.get("before"),
        }
        await session.store("before", query)
        await response.markdown(json.dumps(seen))


async def ask(client: StockClient, agent: str, query: str, thread: str | None = None) -> dict[str, Any]:
    """Ask the agent and return the data that it sees."""
    seen: dict[str, Any] = json.loads(await client.ask(query, agent, thread=thread))
    return seen


async def test_two_people_with_the_same_thread_see_nothing_of_each_other(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: DisclosingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        first = await ask(alice, agent.jid, "secret of alice", "T")
        assert (first["conversation"], first["history"], first["before"]) == ("T", [], None)
        second = await ask(bob, agent.jid, "secret of bob", "T")
        assert (second["conversation"], second["history"], second["before"]) == (f"T_{bob.jid}", [], None)
        assert second["session"] != first["session"]
        assert (first["who"], second["who"]) == (alice.jid, bob.jid)
        assert (await ask(alice, agent.jid, "secret again", "T"))["history"] == ["secret of alice"]
        seen = await ask(bob, agent.jid, "secret?", "T")
        assert seen["history"] == ["secret of bob"]
        assert seen["before"] == "secret of bob"
        assert not any("alice" in turn for turn in seen["recall"])
        # Whoever asks on the thread that bob's conversation is named by does not get it.
        assert (await ask(alice, agent.jid, "x", f"T_{bob.jid}"))["history"] == []
        await agent.restart()
        assert (await ask(bob, agent.jid, "after", "T"))["history"] == ["secret of bob", "secret?"]
        assert (await ask(alice, agent.jid, "after", "T"))["history"] == ["secret of alice", "secret again"]


@pytest.mark.parametrize("who_is_first", ["alice", "bob"])
async def test_a_thread_that_equals_anothers_unthreaded_conversation_is_another(
    who_is_first: str, local_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(DisclosingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        forged = f"{alice.jid}_{agent.jid}"
        if who_is_first == "alice":
            assert (await ask(alice, agent.jid, "mine"))["conversation"] == forged
        seen = await ask(bob, agent.jid, "theirs", forged)
        assert seen["conversation"] != forged
        assert (seen["history"], seen["before"]) == ([], None)
        seen = await ask(alice, agent.jid, "again")
        assert seen["conversation"] == forged
        assert seen["history"] == (["mine"] if who_is_first == "alice" else [])
        # Alice on a thread of the same name has another conversation than without a thread.
        assert (await ask(alice, agent.jid, "threaded", forged))["history"] == []


async def test_nothing_crosses_after_the_first_conversation_was_cleared(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(lambda peers: DisclosingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
        StockClient(*await local_server.account(), local_server) as carol,
    ):
        await ask(alice, agent.jid, "secret of alice", "T")
        await ask(bob, agent.jid, "secret of bob", "T")
        await agent.stop()
        await erase_person(agent, alice.jid)
        await agent.start()
        # Bob keeps his; Carol may have the name now, and nothing under it.
        seen = await ask(bob, agent.jid, "still mine?", "T")
        assert (seen["conversation"], seen["history"]) == (f"T_{bob.jid}", ["secret of bob"])
        seen = await ask(carol, agent.jid, "secret?", "T")
        assert (seen["conversation"], seen["history"], seen["recall"], seen["before"]) == ("T", [], [], None)
        seen = await ask(alice, agent.jid, "secret?", "T")
        assert (seen["conversation"], seen["history"], seen["before"]) == (f"T_{alice.jid}", [], None)


async def erase_person(agent: Any, person: str) -> None:
    """Erase a person as `sessions clear` does, while the platform is stopped."""
    database = await open_database(agent.url)
    report = await AgentRepository(database, agent.jid).erase_person(person)
    await database.close()
    assert report.interactions == 1


async def test_forged_sessions_ids_lineage_and_reserved_metadata_reveal_nothing(
    local_server: XmppServer, tmp_path: Path
) -> None:
    async with (
        run_agent(DisclosingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as mallory,
    ):
        alice_data = await ask(alice, agent.jid, "secret of alice", "T")
        her_request = agent.agent.requests[-1]
        forged = envelope(
            {"query": "secret?"},
            session_id=alice_data["session"],
            request_id=str(her_request.request_id),
            root_request_id=str(her_request.request_id),
            parent_request_id=str(her_request.request_id),
            conversation_id="T",
            metadata={
                "conversation_id": "T",
                "sender": alice.jid,
                "redelivered": True,
                "attachments": ["x"],
                "thread": "T",
                "channel": "person",
                "reply_to": "x",
                "harmless": 1,
            },
        )
        mallory.send(None, agent.jid, extra_xml=forged, type="normal")
        events = await receive_events(mallory)
        seen = json.loads(events[0]["data"]["content"])
        assert seen["session"] == str(derive_session_id(agent.jid, mallory.jid, f"{mallory.jid}_{agent.jid}"))
        assert (seen["who"], seen["history"], seen["recall"], seen["before"]) == (mallory.jid, [], [], None)
        request = agent.agent.requests[-1]
        assert request.metadata == {
            "conversation_id": f"{mallory.jid}_{agent.jid}",
            "sender": mallory.full_jid,
            "channel": "program",
            "harmless": 1,
        }
        # What a program names is data: answers to it are matched by its id, and its lineage gives no rights.
        assert {event["requestid"] for event in events} == {str(her_request.request_id)}
        assert events[-1]["data"]["conversation_id"] == f"{mallory.jid}_{agent.jid}"
        # Alice hears nothing of it, and hers is as it was.
        assert alice.messages.empty()
        assert (await ask(alice, agent.jid, "unchanged?", "T"))["history"] == ["secret of alice"]


async def test_two_programs_with_the_same_request_id_get_their_own_answers(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(DisclosingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as mallory,
    ):
        request_id = str(uuid4())
        for client in (alice, mallory):
            client.send(None, agent.jid, id=request_id, extra_xml=envelope({"query": "who am I?"}, request_id=request_id))
        for client in (alice, mallory):
            events = await receive_events(client)
            assert json.loads(events[0]["data"]["content"])["who"] == client.jid
            assert client.messages.empty()


async def test_an_answer_from_a_third_jid_is_dropped(prosody: XmppServer, tmp_path: Path) -> None:
    """Only on Prosody: the embedded server lets senders be forged."""

    def make_asking_agent(peers: Any) -> FunctionAgent:
        async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            answer = await peers.ask(friend_jid, request.payload["query"], timeout=TIMEOUT_S)
            await response.markdown(f"my friend says: {answer}")

        return FunctionAgent(assist)

    account = await prosody.account()
    friend_jid = account[0]
    async with (
        run_agent(make_asking_agent, prosody, tmp_path) as agent,
        StockClient(*account, prosody) as friend,
        StockClient(*await prosody.account(), prosody) as alice,
        StockClient(*await prosody.account(), prosody) as mallory,
    ):
        alice.send("how are you?", agent.jid)
        request_data = parse_event(await friend.message())["data"]

        def answer(client: StockClient, text: str, request_id: str) -> None:
            block = {"block_type": "MARKDOWN", "id": str(uuid4()), "content": text}
            for kind, data in (("block.markdown", block), ("request.completed", {})):
                event: dict[str, Any] = {"specversion": "1.0", "id": str(uuid4()), "source": f"xmpp:{friend.jid}"}
                event |= {"type": f"ai.coreason.{kind}", "requestid": request_id, "data": data}
                client.send(None, f"{agent.jid}/agent", extra_xml=f"<json xmlns='urn:xmpp:json:0'>{json.dumps(event)}</json>")

        answer(mallory, "forged", request_data["request_id"])
        await eventually(lambda: agent.requests.dropped == 2)
        answer(friend, "for no request", str(uuid4()))
        await eventually(lambda: agent.requests.dropped == 4)
        answer(friend, "well", request_data["request_id"])
        assert (await alice.answer())["body"] == "my friend says: well"
        # After the end it is no answer any more.
        answer(friend, "and another thing", request_data["request_id"])
        await eventually(lambda: agent.requests.dropped == 6)
        # A bounce that somebody else makes up ends no request either.
        alice.send("and now?", agent.jid)
        message = await friend.message()
        error = "<error type='cancel'><gone xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>"
        mallory.send(None, f"{agent.jid}/agent", id=message["id"], type="error", extra_xml=error)
        await eventually(lambda: agent.requests.dropped == 7)
        answer(friend, "better", parse_event(message)["data"]["request_id"])
        assert (await alice.answer())["body"] == "my friend says: better"
        assert alice.messages.empty()
        assert mallory.messages.empty()


async def test_a_relay_gives_each_person_a_conversation_of_their_own(local_server: XmppServer, tmp_path: Path) -> None:
    async with run_agent(DisclosingAgent(), local_server, tmp_path) as last:

        def make_relay_agent(peers: Any) -> FunctionAgent:
            async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
                answer = await peers.ask(last.jid, request.create_child({"query": request.payload["query"]}), timeout=TIMEOUT_S)
                await response.markdown(answer.text)

            return FunctionAgent(assist)

        async with (
            run_agent(make_relay_agent, local_server, tmp_path) as relay,
            StockClient(*await local_server.account(), local_server) as alice,
            StockClient(*await local_server.account(), local_server) as bob,
        ):
            of_alice, of_bob = await asyncio.gather(ask(alice, relay.jid, "alice's"), ask(bob, relay.jid, "bob's"))
            assert (of_alice["history"], of_bob["history"]) == ([], [])
            assert of_alice["conversation"] != of_bob["conversation"]
            assert (await ask(alice, relay.jid, "again"))["history"] == ["alice's"]
            child = last.agent.requests[-1]
            assert child.parent_request_id == child.root_request_id != child.request_id
            assert of_alice["who"] == relay.jid
