"""Agents find each other in a platform without a network, and ask one of those that have a capability."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    Capability,
    PeerError,
    Peers,
    ResponseHandler,
    SessionHandle,
)
from spade_coreason.app.directory_agent import DirectoryAgent
from spade_coreason.contracts import Accept, AgentCapability, AgentMetadata, ErrorCode, Interceptor, ReceivedRequest, Refuse
from spade_coreason.domain.cards import dump_card
from tests.contracts.test_json_schema import MAIL, NO_MAIL
from tests.support.wait import TIMEOUT_S, eventually

OUTPUTS = {
    "type": "object",
    "properties": {"texts": {"type": "array", "items": {"type": "string"}}},
    "required": ["texts"],
}


class Translator:
    """An agent with the capability `translate`, which answers with `blocks`; `problem` is raised, and `gate` waited for."""

    def __init__(
        self,
        name: str = "translator",
        blocks: tuple[Any, ...] = ({"texts": ["hola"]},),
        *,
        outputs: dict[str, Any] | None = None,
        gate: asyncio.Event | None = None,
    ) -> None:
        capability = AgentCapability(name="translate", description="Translates texts", outputs=outputs or {})
        self.manifest = AgentDefinition(
            metadata=AgentMetadata(name=name, version="1.0.0", author="me"), capabilities=[capability]
        )
        self.blocks = blocks
        self.gate = gate
        self.requests: list[AgentRequest] = []

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        self.requests.append(request)
        if self.gate is not None:
            await self.gate.wait()
        for block in self.blocks:
            if isinstance(block, str):
                await response.markdown(block)
            else:
                await response.data(block)


class Finder:
    """An agent that runs `work(peers)`, and answers with its result or with the error."""

    def __init__(self, peers: Peers) -> None:
        self.manifest = AgentDefinition.simple("finder")
        self.peers = peers

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        match request.payload:
            case {"find": criteria}:
                await response.data({"cards": [dump_card(card) for card in await self.peers.find(**criteria)]})
            case {"stream": name}:
                events = [event.type async for event in self.peers.stream(Capability(name), "hello")]
                await response.data({"events": events})
            case {"ask": name, **rest}:
                try:
                    answer = await self.peers.ask(Capability(name), "hello", rest.get("timeout", TIMEOUT_S))
                except PeerError as error:
                    await response.data({"error": str(error), "type": type(error).__name__})
                else:
                    await response.data(
                        {"jid": answer.jid, "text": answer.text, "data": [block["data"] for block in answer.data]}
                    )


async def call(t: AgentTester, payload: dict[str, Any]) -> dict[str, Any]:
    [block] = (await t.ask(payload, timeout=TIMEOUT_S)).data
    data: dict[str, Any] = block["data"]
    return data


async def found(t: AgentTester, **criteria: Any) -> list[str]:
    return [card["jid"] for card in (await call(t, {"find": criteria}))["cards"]]


class FirstRefuses(Interceptor):
    """The agent first@localhost refuses every request."""

    def __init__(self, agent: str) -> None:
        self.agent = agent

    def receive(self, request: ReceivedRequest) -> Accept | Refuse:
        return Refuse(ErrorCode.FORBIDDEN, "not today") if self.agent == "first@localhost" else Accept()


async def test_an_agent_finds_the_others_of_its_platform_and_not_itself() -> None:
    async with AgentTester(Finder, peers={"translator": Translator, "plain": Finder}) as t:
        assert await found(t) == ["plain@localhost", "translator@localhost"]
        assert await found(t, capability="translate") == ["translator@localhost"]
        assert await found(t, text="Who translates?") == ["translator@localhost"]
        assert await found(t, accepts={}) == ["plain@localhost", "translator@localhost"]
        assert await found(t, capability="sing") == []
        await t.restart()
        assert await found(t, capability="translate") == ["translator@localhost"]


async def test_a_card_says_what_the_agent_does_and_how_busy_it_is() -> None:
    gate = asyncio.Event()
    async with AgentTester(Finder, peers={"translator": Translator(gate=gate, outputs=OUTPUTS)}) as t:
        busy = asyncio.create_task(t.ask("x", to="translator@localhost"))
        await eventually(lambda: t.runners["translator@localhost"].mailboxes.busy_count > 0)
        [card] = (await call(t, {"find": {}}))["cards"]
        gate.set()
        await busy
    assert (card["name"], card["description"], card["is_online"], card["turns_in_flight"]) == (
        "translator",
        "Translates texts",
        True,
        1,
    )
    assert card["capabilities"][0]["outputs"] == OUTPUTS


async def test_an_agent_that_may_not_talk_to_another_one_does_not_find_it() -> None:
    async with AgentTester(Finder, jid="finder@elsewhere.org", peers={"t@localhost": Translator}, allow=None) as t:
        assert (await t.ask({"find": {}}, user="me@elsewhere.org")).data[0]["data"] == {"cards": []}
        asked = await t.ask({"ask": "translate"}, user="me@elsewhere.org")
        assert asked.data[0]["data"]["type"] == "PeerUnavailableError"


async def test_a_request_to_a_capability_names_it_and_its_answer_names_the_agent() -> None:
    translator = Translator(blocks=("hola",))
    async with AgentTester(Finder, peers={"translator": translator}) as t:
        answer = await call(t, {"ask": "translate"})
    assert (answer["jid"], answer["text"]) == ("translator@localhost", "hola")
    [request] = translator.requests
    assert request.metadata["capability"] == "translate"
    assert request.payload == {"query": "hello"}


async def test_equal_agents_are_asked_in_turn() -> None:
    async with AgentTester(Finder, peers={"first": Translator("a"), "second": Translator("b")}) as t:
        asked = [(await call(t, {"ask": "translate"}))["jid"] for _ in range(4)]
    assert asked == ["first@localhost", "second@localhost"] * 2


async def test_the_busy_agent_is_left_alone() -> None:
    gate = asyncio.Event()
    async with AgentTester(Finder, peers={"first": Translator("a", gate=gate), "second": Translator("b")}) as t:
        busy = asyncio.create_task(t.ask("x", to="first@localhost"))
        await eventually(lambda: t.runners["first@localhost"].mailboxes.busy_count > 0)
        asked = [(await call(t, {"ask": "translate"}))["jid"] for _ in range(3)]
        gate.set()
        await busy
    assert asked == ["second@localhost"] * 3


async def test_after_a_refusal_the_next_agent_is_asked() -> None:
    refusing, second = Translator("a"), Translator("b")
    async with AgentTester(Finder, peers={"first": refusing, "second": second}, interceptors=[FirstRefuses]) as t:
        assert (await call(t, {"ask": "translate"}))["jid"] == "second@localhost"
        assert (await call(t, {"stream": "translate"}))["events"] == ["block.data", "request.completed"]
    assert refusing.requests == []


async def test_if_all_refuse_the_error_is_that_of_the_last() -> None:
    async with AgentTester(Finder, peers={"first": Translator("a")}, interceptors=[FirstRefuses]) as t:
        assert await call(t, {"ask": "translate"}) == {
            "error": "first@localhost refuses: not today",
            "type": "PeerRefusedError",
        }


async def test_after_a_time_out_no_other_agent_is_asked() -> None:
    gate = asyncio.Event()
    second = Translator("b")
    async with AgentTester(Finder, peers={"first": Translator("a", gate=gate), "second": second}) as t:
        answer = await call(t, {"ask": "translate", "timeout": 0.05})
        gate.set()
    assert answer["type"] == "PeerTimeoutError"
    assert second.requests == []


async def test_a_capability_that_no_agent_has_is_named() -> None:
    async with AgentTester(Finder, peers={"first": Translator}) as t:
        answer = await call(t, {"ask": "sing"})
    assert answer["type"] == "PeerUnavailableError"
    assert answer["error"].startswith("sing is a capability of no agent that is online")


@pytest.mark.parametrize(
    ("blocks", "outputs", "problem"),
    [
        (({"texts": ["hola"]},), OUTPUTS, None),
        (("a comment", {"texts": ["hola"]}), OUTPUTS, None),
        (({"progress": 1}, {"texts": ["hola"]}), OUTPUTS, None),
        (("only text",), {"type": "string"}, None),
        (("only text",), {}, None),
        (("only text",), OUTPUTS, "data: there is no data block, and one that fits the schema is expected"),
        (({"texts": ["hola", 5]},), OUTPUTS, "texts.1: 5 is not of type 'string'"),
        (
            ({"texts": [NO_MAIL]},),
            {"properties": {"texts": {"items": {"pattern": MAIL}}}},
            "data: it cannot be checked against its JSON Schema within 2 s and 256 MB",
        ),
        pytest.param(
            (NO_MAIL,),
            {"type": "string", "pattern": MAIL},
            "text: it cannot be checked against its JSON Schema within 2 s and 256 MB",
            marks=pytest.mark.release,
        ),
        (({},), OUTPUTS, "data: 'texts' is a required property"),
        (({"texts": [""]}, {"texts": []}), OUTPUTS, "data: 2 data blocks fit the schema, and one is expected"),
        (
            ({"progress": 1}, {"texts": 1}),
            OUTPUTS,
            "none of 2 data blocks fits; the last one: texts: 1 is not of type 'array'",
        ),
    ],
)
async def test_an_answer_has_to_fit_the_outputs_of_the_capability(
    blocks: tuple[Any, ...], outputs: dict[str, Any], problem: str | None
) -> None:
    async with AgentTester(Finder, peers={"translator": Translator(blocks=blocks, outputs=outputs)}) as t:
        answer = await call(t, {"ask": "translate"})
    if problem is None:
        assert answer["jid"] == "translator@localhost"
        return
    assert answer == {
        "error": "translator@localhost reports: an answer that does not fit the outputs of its capability"
        f' "translate": {problem}',
        "type": "PeerFailedError",
    }


# The directory agent


async def test_a_person_asks_the_directory_in_words() -> None:
    async with AgentTester(DirectoryAgent, peers={"polyglot": Translator, "plain": Finder}) as t:
        assert await t.say("Who can translate?") == [
            "I found 1 agent:\n\n- translator, polyglot@localhost: Translates texts [translate]"
        ]
        [text] = await t.say("Who can juggle?")
        assert text.startswith("I found no agent for that. You may talk to these agents:")
        assert "polyglot@localhost" in text
        assert "plain@localhost" in text


async def test_the_directory_answers_in_the_language_of_the_person() -> None:
    async with AgentTester(DirectoryAgent, peers={"polyglot": Translator}) as t:
        await t.say("/settings language de")
        [text] = await t.say("translate")
        assert text.startswith("1 Agent gefunden:")


async def test_the_directory_shows_nobody_an_agent_that_they_may_not_ask() -> None:
    async with AgentTester(DirectoryAgent, peers={"hidden@elsewhere.org": Translator, "plain": Finder}) as t:
        [text] = await t.say("Who can translate?")
        assert text.startswith("I found no agent for that. You may talk to these agents:")
        assert "- finder, plain@localhost [chat]" in text
        assert "hidden" not in text
        data = (await t.ask({})).data[0]["data"]
    assert [card["jid"] for card in data["agents"]] == ["agent@localhost", "plain@localhost"]


async def test_a_program_gets_cards_and_later_only_the_state() -> None:
    async with AgentTester(DirectoryAgent, peers={"polyglot": Translator, "plain": Finder}) as t:
        whole = (await t.ask({})).data[0]["data"]
        assert {card["jid"] for card in whole["agents"]} == {"agent@localhost", "polyglot@localhost", "plain@localhost"}
        state = (await t.ask({"known": whole["version"]})).data[0]["data"]
        assert state["version"] == whole["version"]
        assert {"jid": "plain@localhost", "is_online": True, "turns_in_flight": 0} in state["states"]
        assert "agents" not in state
        answer = await t.ask("Who can translate?")
        assert answer.text.startswith("I found 1 agent:")
        assert [card["jid"] for card in answer.data[0]["data"]["agents"]] == ["polyglot@localhost"]


async def test_a_program_that_asks_without_end_reaches_no_limit_of_a_conversation() -> None:
    async with AgentTester(DirectoryAgent) as t:
        for _ in range(105):  # max_interactions is 100
            await t.ask({}, thread="one")
