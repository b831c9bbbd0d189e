"""An A2A agent elsewhere as a peer: its answers, its questions, its tasks over restarts, and its card."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from a2a.server.tasks import InMemoryTaskStore
from google.protobuf.json_format import MessageToDict

from agents.a2a import RemoteA2AAgent
from agents.a2a.options import CARD_PATH
from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session
from spade_coreason.domain.policy import Policy, Rules
from spade_coreason.exceptions import PeerFailedError, PeerParkedError
from tests.support.a2a_door import serve_a2a
from tests.support.a2a_server import JSONRPC, REST, A2AServer, ScriptedExecutor, make_card, run_a2a_server
from tests.support.door_agents import Desk
from tests.support.doors import KEY
from tests.support.errors import ExpectedErrors
from tests.support.questions import code_of
from tests.support.wait import eventually
from tests.support.web_server import WebServer, page

LOOPBACK = ("127.0.0.0/8",)
BINDINGS = pytest.mark.parametrize("binding", [JSONRPC, REST])
STREAMING = pytest.mark.parametrize("streaming", [True, False])


def remote(server: A2AServer, **options: Any) -> partial[RemoteA2AAgent]:
    return partial(RemoteA2AAgent, **{"url": server.url, "allow_private": LOOPBACK, "poll_s": 0.02, **options})


def paths(server: A2AServer) -> list[str]:
    return [path.rpartition("/")[2] for _, path, _ in server.requests]


def texts_sent(server: A2AServer) -> list[str]:
    return [text for _, text, _ in server.executor.messages]


# Answers


@BINDINGS
@STREAMING
async def test_a_message_is_the_answer(binding: str, streaming: bool) -> None:
    async with run_a2a_server([binding], streaming=streaming) as server, AgentTester(remote(server)) as t:
        assert await t.say("say Good morning") == ["Good morning"]
        assert texts_sent(server) == ["say Good morning"]


@BINDINGS
@STREAMING
async def test_artifacts_are_the_answer(binding: str, streaming: bool) -> None:
    async with run_a2a_server([binding], streaming=streaming) as server, AgentTester(remote(server)) as t:
        assert (await t.ask("stream one two three")).text == "one two three"


async def test_the_pieces_of_an_artifact_are_a_stream_and_the_status_is_a_thought() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        events = [event async for event in t.stream("stream one two three")]
    chunks = [event.data["chunk"] for event in events if event.type.endswith("stream.chunk")]
    assert chunks == ["one ", "two ", "three"]
    [start] = [event.data for event in events if event.type.endswith("stream.start")]
    assert start["title"] == "Words"
    thoughts = [event.data["content"] for event in events if event.data.get("block_type") == "THOUGHT"]
    assert thoughts == ["Asking Weather desk…", "Working on stream"]


async def test_data_is_data_with_whole_numbers() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        answer = await t.ask("data")
    assert [(block.get("title"), block["data"]) for block in answer.data] == [
        ("Weather", {"rain": True, "degrees": 7, "wind": 2.5}),
        (None, {"value": [1, 2]}),
    ]
    assert answer.text == "That is all."


async def test_files_are_links_and_only_links_to_the_web() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        answer = await t.ask("files")
        assert [(file.name, file.type, file.data) for file in t.uploaded.values()] == [("map.png", "image/png", b"a picture")]
        [link] = t.uploaded
    assert answer.text == f"{link}\n\n[a \\[1\\].pdf](https://example.org/a.pdf)\n\njavascript:alert(1)"


async def test_data_and_attachments_are_passed_on() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        links = [{"url": "https://example.org/a.png", "name": "a.png", "type": "image/png"}]
        await t.ask({"query": "say yes", "days": 3, "attachments": links})
        text, file, data = server.executor.parts
        assert (text.text, file.url, file.filename, file.media_type) == (
            "say yes",
            "https://example.org/a.png",
            "a.png",
            "image/png",
        )
        assert dict(data.data.struct_value) == {"days": 3}


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("fail", "The remote agent Weather desk reports a failure: The printer is on fire."),
        ("reject", "The remote agent Weather desk refuses this."),
        ("auth", "The remote agent Weather desk wants you to sign in, which is not possible here: Sign in at the bank."),
        ("huge", "The remote agent Weather desk cannot answer: its answer has more than 4,194,304 bytes."),
    ],
)
@STREAMING
async def test_a_task_that_does_not_succeed_is_an_error_that_names_the_agent(query: str, problem: str, streaming: bool) -> None:
    async with run_a2a_server(streaming=streaming) as server, AgentTester(remote(server)) as t:
        with pytest.raises(PeerFailedError) as raised:
            await t.ask(query)
        assert raised.value.problem == f"reports: {problem}"
        assert await t.say("say still here") == ["still here"]
        if query == "auth":  # nobody goes on with it
            await eventually(lambda: len(server.executor.cancelled) == 1)


# Conversations


async def test_each_conversation_has_a_context_of_its_own_over_restarts() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        for user in ("ann@localhost", "bob@localhost"):
            await t.say("say 1", user=user)
            await t.say("stream 2", user=user)
        await t.restart()
        await t.say("say 3", user="ann@localhost")
    contexts = [context for _, _, context in server.executor.messages]
    ann, bob = contexts[0], contexts[2]
    assert contexts == [ann, ann, bob, bob, ann]
    assert ann != bob


async def test_a_forgotten_conversation_has_a_new_context() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        await t.say("say 1")
        await t.say("/forget me")
        await t.say("/forget me yes")
        await t.say("say 2")
    contexts = [context for _, _, context in server.executor.messages]
    assert len(set(contexts)) == 2


# Questions


async def answer(t: AgentTester, code: str, text: str) -> list[str]:
    """Answer a question, and return the texts of the rest of the reply."""
    said = await t.say(f"/answer {code} {text}")
    await t.settled()
    return [*said, *t.unread()]


@STREAMING
async def test_a_question_of_the_agent_is_asked_here_and_the_answer_goes_on_under_the_task(streaming: bool) -> None:
    async with run_a2a_server(streaming=streaming) as server, AgentTester(remote(server)) as t:
        await t.say("say hello")
        said = await t.say("ask")
        assert said[0] == "I know the sky."
        assert "Which city?" in said[1]
        await t.say("say something else")  # other requests are not held up
        question = await answer(t, code_of(said), "again")
        assert ["Which one, then?" in text for text in question] == [True]
        assert await answer(t, code_of(question), "Vigo") == ["Sunny in Vigo."]
    assert texts_sent(server) == ["say hello", "ask", "say something else", "again", "Vigo"]
    assert len({message_id for message_id, _, _ in server.executor.messages}) == 5
    assert len({context for _, _, context in server.executor.messages}) == 1


async def test_a_question_that_was_answered_is_not_asked_again_while_the_agent_is_slow() -> None:
    def task(state: str, message: str) -> bytes:
        status = {"state": f"TASK_STATE_{state}", "message": {"messageId": message, "parts": [{"text": message}]}}
        return rpc_page({"id": "t", "contextId": "c", "status": status})

    asks, done = task("INPUT_REQUIRED", "Which?"), task("COMPLETED", "Done")
    answers = iter([rpc_page({"task": read_rpc(asks)}), rpc_page({"task": read_rpc(asks)}), asks, done])

    async def answer_next(writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))
        await writer.drain()

    async with WebServer() as web:
        card = MessageToDict(make_card(web.url(""), [JSONRPC], streaming=False))
        web.pages = {CARD_PATH: page(json.dumps(card).encode()), "/rpc": answer_next}
        async with AgentTester(partial(RemoteA2AAgent, url=web.url(""), allow_private=LOOPBACK, poll_s=0.01)) as t:
            said = await t.say("go")
            assert await answer(t, code_of(said), "this") == ["Done"]


def rpc_page(result: dict[str, Any]) -> bytes:
    return page(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode())


def read_rpc(response: bytes) -> Any:
    return json.loads(response.partition(b"\r\n\r\n")[2])["result"]


async def test_a_question_is_parked_over_a_restart_and_the_agent_is_not_asked_twice() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        said = await t.say("ask")
        await t.restart()
        assert await answer(t, code_of(said), "Vigo") == ["Sunny in Vigo."]
    assert texts_sent(server) == ["ask", "Vigo"]


class Asker:
    """Asks the remote agent with its own question."""

    def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
        self.manifest, self.peers = manifest, peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        cards = await self.peers.find(capability="forecast")
        await response.markdown(
            f"{[card.name for card in cards]}: {(await self.peers.ask(cards[0].jid, request.payload)).text}"
        )


async def test_peers_find_and_ask_it() -> None:
    async with run_a2a_server() as server, AgentTester(Asker, peers={"weather": remote(server)}) as t:
        assert await t.say("say It rains") == ["['Weather desk']: It rains"]
        [card] = await t.runtimes[t.jid].parts.peers.find(text="sun tomorrow")
        assert (card.description, card.version) == ("Knows the weather", "1.2.0")
        assert [(one.name, one.type, one.description) for one in card.capabilities] == [
            ("chat", "streaming", "Knows the weather"),
            ("forecast", "streaming", "Forecast: Tells tomorrow's weather (rain, sun)"),
        ]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_question_of_another_platform_has_its_choices_and_is_shown_once(tmp_path: Path, restarts: bool) -> None:
    async with serve_a2a(f"sqlite+aiosqlite:///{tmp_path}/there.db", Desk()) as server:
        options: dict[str, Any] = {
            "url": server.url,
            "headers": {"Authorization": f"Bearer {KEY}"},
            "allow_private": LOOPBACK,
            "poll_s": 0.02,
        }
        async with AgentTester(partial(RemoteA2AAgent, **options)) as t:
            [asked] = await t.say("ask")
            assert asked.startswith("Which colour?\n\n1. red\n2. blue\n\n")
            [question] = await t.questions()
            assert (question.text, question.choices) == ("Which colour?", ("red", "blue"))
            if restarts:
                await t.restart()
            said = await t.say("blue")
            await t.settled()
            assert [*said, *t.unread()] == ["painted blue"]


@pytest.mark.parametrize(
    ("form", "choices", "schema", "shown"),
    [
        ({"choices": ["Vigo", "Lugo"]}, ("Vigo", "Lugo"), None, False),
        ({"schema": {"type": "string", "maxLength": 4}}, (), {"type": "string", "maxLength": 4}, False),
        ({"schema": {"type": "no such type"}}, (), None, False),
        ({"choices": ["x"] * 21}, (), None, True),
        ({"choices": ["x" * 201]}, (), None, True),
        ({"choices": ["one\ntwo"]}, (), None, True),
        ({"choices": [1, 2]}, (), None, True),
        ({"choices": "ab"}, (), None, True),
        ({"choices": ["a"], "note": "b"}, (), None, True),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_choices_and_a_schema_are_asked_if_a_person_can_read_them(
    form: dict[str, Any], choices: tuple[str, ...], schema: dict[str, Any] | None, shown: bool
) -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        said = await t.say(f"form {json.dumps(form)}")
        assert [text.startswith("```") for text in said] == ([True, False] if shown else [False])
        [question] = await t.questions()
        assert (question.text, question.choices) == ("Which city?", choices)
        if schema is not None:
            [refusal] = await t.say(f"/answer {question.code} Lugones")
            assert "Lugones" in refusal or "4" in refusal
        assert (await answer(t, question.code, "Vigo"))[-1] == "Sunny in Vigo."
    assert texts_sent(server)[1:] == ["Vigo"]


async def test_a_program_is_told_that_the_agent_asks() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        with pytest.raises(PeerParkedError):
            await t.ask("ask")


# Tasks that take long


@BINDINGS
@STREAMING
async def test_a_long_task_is_followed_or_looked_up(binding: str, streaming: bool) -> None:
    async with run_a2a_server([binding], streaming=streaming) as server, AgentTester(remote(server)) as t:
        asking = asyncio.create_task(t.ask("slow"))
        await eventually(lambda: bool(server.executor.messages) and (streaming or len(server.requests) > 5))
        server.executor.released.set()
        assert (await asking).text == "Begun. Done."


async def follows(t: AgentTester, server: A2AServer) -> None:
    """Wait until the agent has a task there, and its id is stored here."""
    await eventually(lambda: bool(server.executor.messages) and has_steps(t))


def has_steps(t: AgentTester) -> bool:
    return bool(t.runners[t.jid].repository.database.inbox_index.rows_with_steps)


@BINDINGS
@STREAMING
async def test_after_a_restart_the_task_is_fetched_and_not_sent_again(binding: str, streaming: bool) -> None:
    async with run_a2a_server([binding], streaming=streaming) as server, AgentTester(remote(server)) as t:
        t.send("slow")
        await follows(t, server)
        await t.restart(grace_s=0)
        server.executor.released.set()
        await t.settled()
        assert t.unread()[-1:] == ["Begun. Done."]
        assert texts_sent(server) == ["slow"]
        assert server.executor.cancelled == []


@STREAMING
async def test_a_message_whose_task_is_lost_is_sent_again_under_its_id(streaming: bool) -> None:
    executor = ScriptedExecutor()
    async with AsyncExitStack() as stack:
        async with run_a2a_server(executor=executor, streaming=streaming) as server:
            t = await stack.enter_async_context(AgentTester(remote(server)))
            t.send("slow")
            await follows(t, server)
        executor.released.set()
        async with run_a2a_server(executor=executor, streaming=streaming, port=server.port):
            await t.settled()
            assert t.unread()[-1:] == ["Begun. Done."]
            await t.say("say bye")
    ids = [message_id for message_id, text, _ in executor.messages if text == "slow"]
    assert ids == [ids[0]] * 2
    assert len({context for _, _, context in executor.messages}) == 1


async def test_a_restart_of_both_sides_finds_the_task_in_the_store_of_the_agent() -> None:
    executor, store = ScriptedExecutor(), InMemoryTaskStore()
    async with AsyncExitStack() as stack:
        async with run_a2a_server(executor=executor, store=store) as server:
            t = await stack.enter_async_context(AgentTester(remote(server)))
            t.send("ask")
            await eventually(lambda: any("Which city?" in text for text in t.unread()))
        async with run_a2a_server(executor=executor, store=store, port=server.port):
            await t.restart()
            [question] = await t.questions()
            assert await answer(t, question.code, "Vigo") == ["Sunny in Vigo."]
    assert [text for _, text, _ in executor.messages] == ["ask", "Vigo"]


# Cancellation


async def test_a_message_that_is_taken_back_cancels_the_task() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        message_id = t.send("slow")
        await follows(t, server)
        t.retract(message_id)
        await eventually(lambda: len(server.executor.cancelled) == 1)
        assert await t.say("say next") == ["next"]


async def test_a_turn_that_takes_too_long_cancels_the_task(expected_errors: ExpectedErrors) -> None:
    policy = Policy(rules=Rules(assist_timeout_s=1.0))
    async with run_a2a_server() as server, AgentTester(remote(server), policy=policy) as t:
        expected_errors("assist took longer than 1 s")
        await t.say("slow")
        await eventually(lambda: len(server.executor.cancelled) == 1)


async def test_a_question_that_expires_cancels_the_task() -> None:
    async with run_a2a_server() as server, AgentTester(remote(server)) as t:
        await t.say("ask")
        await t.advance(timedelta(days=8))
        await t.settled()
        assert t.unread()[-1:] == ["The remote agent Weather desk asked, and no one answered in time: Which city?"]
        await eventually(lambda: len(server.executor.cancelled) == 1)
