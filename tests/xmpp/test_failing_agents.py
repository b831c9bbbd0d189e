"""An agent that is slow, raises, hangs, floods or breaks every rule fails alone, and answers the next question."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.runtime.turns.response import TurnResponse
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.client import AgentClient
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Echo, FunctionAgent, OnlineAgent, endpoint_of, run_agent
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

MIB = 1024 * 1024


async def new_program_client(server: XmppServer) -> AgentClient:
    """Create a client for a program with an account of its own."""
    return AgentClient(*await server.account(), endpoint_of(server))


async def test_a_sleeping_agent_delays_nobody_elses_conversation(local_server: XmppServer, tmp_path: Path) -> None:
    wake = asyncio.Event()

    async def assist(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "sleep":
            await wake.wait()
        await response.markdown(f"awake: {request.payload['query']}")

    async with (
        run_agent(FunctionAgent(assist), local_server, tmp_path) as sleeper,
        run_agent(Echo(), local_server, tmp_path) as other,
        StockClient(*await local_server.account(), local_server) as alice,
        StockClient(*await local_server.account(), local_server) as bob,
    ):
        alice.send("sleep", sleeper.jid)
        alice.send("queued behind it", sleeper.jid)
        await eventually(lambda: sleeper.runner.mailboxes.busy_count == 1)
        async with asyncio.timeout(TIMEOUT_S):
            assert await bob.ask("now", sleeper.jid) == "awake: now"
            assert await alice.ask("another thread", sleeper.jid, thread="t") == "awake: another thread"
            assert await alice.ask("another agent", other.jid) == "another agent"
        wake.set()
        assert (await alice.answer())["body"] == "awake: sleep"
        assert (await alice.answer())["body"] == "awake: queued behind it"


class MisbehavingAgent:
    """Misbehaves as the query says."""

    def __init__(self) -> None:
        self.manifest = FunctionAgent(self.assist).manifest
        self.emit_result: asyncio.Future[BaseException | None] | None = None
        self.stream: Any = None

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        await getattr(self, request.payload["query"].replace(" ", "_"))(response)

    async def behave(self, response: ResponseHandler) -> None:
        await response.markdown("all is well")

    async def raise_an_error(self, response: ResponseHandler) -> None:
        raise ValueError("a secret of the inside")

    async def raise_in_a_stream(self, response: ResponseHandler) -> None:
        stream = await response.create_stream()
        await stream.write("half a sen")
        raise KeyError("x")

    async def hang(self, response: ResponseHandler) -> None:
        await asyncio.Event().wait()

    async def exit(self, response: ResponseHandler) -> None:
        raise SystemExit("out")

    async def emit_later(self, response: TurnResponse) -> None:
        self.emit_result = asyncio.get_running_loop().create_future()
        self.emit_task = asyncio.create_task(self._emit_after(response, self.emit_result))

    async def _emit_after(self, response: TurnResponse, result: asyncio.Future[BaseException | None]) -> None:
        with suppress(RuntimeError):
            while True:  # until just after the turn
                await response.thought("still there")
                await asyncio.sleep(0)
        try:
            await response.markdown("too late")
        except RuntimeError as error:
            result.set_result(error)
        else:
            result.set_result(None)

    async def emit_5_MB(self, response: ResponseHandler) -> None:
        await response.markdown("Ünd so & weiter. " * (5 * MIB // 18))

    async def emit_control_characters(self, response: ResponseHandler) -> None:
        await response.markdown("\x00\x1b[1mbold\x1b[0m \ufffe\udc80and \N{ROCKET}")

    async def emit_only_control_characters(self, response: ResponseHandler) -> None:
        await response.markdown("\x00\x1b")

    async def never_close_a_stream(self, response: ResponseHandler) -> None:
        self.stream = await response.create_stream()
        await self.stream.write("never closed")

    async def say_nothing(self, response: ResponseHandler) -> None: ...

    async def emit_no_text(self, response: ResponseHandler) -> None:
        no_text: Any = 7
        await response.markdown(no_text)

    async def emit_no_json(self, response: ResponseHandler) -> None:
        await response.data({"x": object()})


@pytest.fixture
def short_timeout_policy() -> Policy:
    return Policy(rules=Rules(max_interactions=0, max_failures=100, assist_timeout_s=0.5))


async def _assert_healthy(client: StockClient, agent: OnlineAgent) -> None:
    assert agent.host.is_alive()
    assert await client.ask("behave", agent.jid) == "all is well"
    assert client.messages.empty()


@pytest.mark.parametrize("query", ["raise an error", "exit", "emit no text", "emit no json"])
async def test_raising_is_one_error_with_an_incident(
    query: str,
    local_server: XmppServer,
    tmp_path: Path,
    short_timeout_policy: Policy,
    caplog: pytest.LogCaptureFixture,
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors(": incident ")
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path, policy=short_timeout_policy) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        answer = await alice.ask(query, agent.jid)
        found = re.fullmatch(r"Something went wrong on my side \(incident ([0-9a-f]{8})\)\.", answer)
        assert found is not None, answer
        assert found[1] in caplog.text  # the operator finds it there, with its traceback
        await _assert_healthy(alice, agent)
        async with await new_program_client(local_server) as program:
            with pytest.raises(PeerFailedError, match="Something went wrong") as failed:
                await program.ask(agent.jid, query)
            assert failed.value.code == 500
            assert "secret" not in str(failed.value)


async def test_raising_in_a_stream_aborts_it(
    local_server: XmppServer, tmp_path: Path, short_timeout_policy: Policy, expected_errors: ExpectedErrors
) -> None:
    expected_errors("KeyError: 'x'")
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path, policy=short_timeout_policy) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert (await alice.ask("raise in a stream", agent.jid)).startswith("half a sen… (interrupted")
        assert "Something went wrong" in (await alice.answer())["body"]
        await _assert_healthy(alice, agent)
        async with await new_program_client(local_server) as program:
            events: list[str] = []

            async def collect() -> None:
                async for event in program.stream(agent.jid, "raise in a stream"):
                    events.append(event.type)

            with pytest.raises(PeerFailedError):
                await collect()
            assert events == [
                "stream.start",
                "stream.chunk",
                "stream.abort",
                "block.error",
                "request.failed",
            ]


async def test_hanging_ends_with_the_assist_timeout(
    local_server: XmppServer, tmp_path: Path, short_timeout_policy: Policy, expected_errors: ExpectedErrors
) -> None:
    expected_errors("assist took longer than 0.5 s")
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path, policy=short_timeout_policy) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert (await alice.ask("hang", agent.jid)).startswith("I could not finish this within 0.5 s")
        await _assert_healthy(alice, agent)


async def test_emitting_after_the_turn_is_an_error_of_the_agent(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        alice.send("emit later", agent.jid)
        await eventually(lambda: agent.agent.emit_result is not None)
        assert isinstance(await asyncio.wait_for(agent.agent.emit_result, TIMEOUT_S), RuntimeError)
        await _assert_healthy(alice, agent)


async def test_a_stream_that_is_never_closed_is_closed(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert await alice.ask("never close a stream", agent.jid) == "never closed"
        assert not agent.agent.stream.is_active
        with pytest.raises(RuntimeError):
            await agent.agent.stream.write("more")
        await _assert_healthy(alice, agent)


async def test_saying_nothing_is_silence_to_a_person_and_an_end_to_a_program(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        alice.send("say nothing", agent.jid)
        await _assert_healthy(alice, agent)
        async with await new_program_client(local_server) as program:
            assert [event.type for event in (await program.ask(agent.jid, "say nothing")).events] == ["request.completed"]


async def test_characters_that_xml_forbids_are_removed(local_server: XmppServer, tmp_path: Path) -> None:
    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        assert await alice.ask("emit control characters", agent.jid) == "[1mbold[0m and \N{ROCKET}"
        alice.send("emit only control characters", agent.jid)
        await _assert_healthy(alice, agent)
        async with await new_program_client(local_server) as program:
            assert "bold" in (await program.ask(agent.jid, "emit control characters")).text
            await program.ask(agent.jid, "emit only control characters")


@pytest.mark.release
async def test_an_answer_of_5_mb_arrives_in_parts(local_server: XmppServer, tmp_path: Path) -> None:
    """Prosody has its default limits here: a stanza of 256 KiB ends the stream."""
    sent: list[int] = []

    async with (
        run_agent(MisbehavingAgent(), local_server, tmp_path) as agent,
        StockClient(*await local_server.account(), local_server) as alice,
    ):
        whole = ("Ünd so & weiter. " * (5 * MIB // 18)).split()
        agent.host.connection.client.add_event_handler("stanza_acked", lambda stanza: sent.append(len(str(stanza).encode())))
        alice.send("emit 5 MB", agent.jid)
        words: list[str] = []
        parts = 0
        while len(words) < len(whole):
            body = (await alice.answer())["body"]
            assert len(body.encode()) <= 65_536
            words += body.split()
            parts += 1
        assert words == whole
        assert parts >= 5 * MIB // 65_536
        await _assert_healthy(alice, agent)
        async with await new_program_client(local_server) as program:
            answer = await program.ask(agent.jid, "emit 5 MB")
            assert answer.text.split() == whole
        if local_server.kind == "prosody":  # the embedded server acknowledges nothing
            await agent.settled()
            assert len(sent) >= 2 * parts
            assert max(sent) <= 65_536
        assert agent.host.connection.session_count == 1
