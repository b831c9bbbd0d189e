"""The tokens that turns used: in the meta of each turn, and summed in the parameter `usage` of an agent."""

from __future__ import annotations

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, ResponseHandler, SessionHandle, Usage
from spade_coreason.contracts import CloudEvent
from tests.support.llm_agent import stored_turns


class TokenSpender:
    """Report as many tokens as the query says, in two requests."""

    def __init__(self, manifest: AgentDefinition, usage: Usage) -> None:
        self.manifest = manifest
        self._usage = usage

    async def assist(self, request: AgentRequest, session: SessionHandle, response: Response) -> None:
        conversation = request.metadata["conversation_id"]
        before = (
            await self._usage.of_conversation(conversation),
            await self._usage.of_person(session.identity.id),
            await self._usage.of_agent(),
        )
        for tokens in map(int, request.payload["query"].split()):
            used = {"model": "small", "requests": 1, "total_tokens": tokens}
            await response.emit(CloudEvent(type="ai.coreason.llm.usage", source="urn:agent:spender", data=used))
        await response.markdown("{} {} {}".format(*before))


async def test_the_sums_include_all_turns_that_reported_usage() -> None:
    async with AgentTester(TokenSpender) as t:
        assert (await t.ask("3 4", user="ada@localhost")).text == "0 0 0"
        assert (await t.ask("5", user="ada@localhost", thread="other")).text == "0 7 7"
        assert (await t.ask("1 2", user="bob@localhost")).text == "0 0 12"
        assert await t.say("/memory", user="ada@localhost") == ["Nothing."]  # the sums are no memory of a person
        await t.restart()
        assert (await t.ask("1", user="ada@localhost")).text == "7 12 15"
        [turn] = await stored_turns(t, "bob@localhost")
    assert turn["meta"]["usage"] == {"model": "small", "requests": 2, "total_tokens": 3}


async def test_a_malformed_number_of_tokens_is_recorded_and_not_counted() -> None:
    class MalformedUsageAgent(TokenSpender):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            for data in ({"total_tokens": "many"}, {"total_tokens": -4}, "much", None):
                await response.emit(CloudEvent(type="ai.coreason.llm.usage", source="urn:agent:odd", data=data))
            await response.markdown(str(await self._usage.of_agent()))

    async with AgentTester(MalformedUsageAgent) as t:
        assert [(await t.ask("go")).text, (await t.ask("go")).text] == ["0", "0"]


async def test_an_agent_cannot_write_the_variable_of_the_sums() -> None:
    class Forger(TokenSpender):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            try:
                await session.store("coreason.tokens", 0)
            except ValueError as error:
                await response.markdown(str(error))

    async with AgentTester(Forger) as t:
        assert (await t.ask("go")).text == 'variable "coreason.tokens" is reserved for the platform; choose another name'


async def test_a_replaced_stream_contains_only_its_replacement() -> None:
    problems = []

    class ReplacingAgent(TokenSpender):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: Response) -> None:
            stream = await response.create_stream()
            await stream.write("The password is")
            await stream.replace("I keep it.", "kept back")
            await stream.replace("No.", "again")
            await stream.close()
            try:
                await stream.write(" swordfish")
            except RuntimeError as error:
                problems.append(str(error))

    async with AgentTester(ReplacingAgent) as t:
        answer = await t.ask("the password?")
        assert answer.text == "I keep it."
        assert answer.events[-2].data["replacement"] == "I keep it."
        assert await t.say("the password?", user="ada@localhost") == ["I keep it."]
        [turn] = await stored_turns(t, "ada@localhost")
    assert turn["output"] == {"text": "I keep it."}
    assert problems == ["this stream is closed"] * 2
