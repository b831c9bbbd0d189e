"""Unfinished turns after a restart."""

from __future__ import annotations

import asyncio

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, ResponseHandler, SessionHandle, agent
from spade_coreason.contracts import ConversationState
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.runtime import collect_answer
from spade_coreason.testing import Policy, Rules
from tests.support.stanzas import collect_replies, message

ALICE = "alice@localhost"
BOB = "bob@localhost"


class HangingAgent:
    """Hangs the first time."""

    manifest = AgentDefinition.simple("working")

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if not request.metadata.get("redelivered"):
            await response.thought("begun")
            self.begun.set()
            await asyncio.Event().wait()
        await response.markdown(f"{request.payload['query']}, redelivered; {len(await session.history())} before")


async def test_unfinished_turns_run_again_in_order_after_a_restart_marked_as_redelivered() -> None:
    hanging = HangingAgent()
    async with AgentTester(hanging, user=ALICE) as t:
        t.send_stanza(message("one", "1"))
        t.send_stanza(message("two", "2", is_unique=True))
        await hanging.begun.wait()
        await t.restart(grace_s=0)
        await t.settled()
        assert t.unread() == ["one, redelivered; 0 before", "two, redelivered; 1 before"]
        await t.restart()
        assert await collect_replies(t, message("two", "2", is_unique=True)) == []


async def test_a_program_gets_its_answer_from_the_second_run_which_counts_once() -> None:
    hanging = HangingAgent()
    async with AgentTester(hanging) as t:
        asking = asyncio.create_task(t.ask("one"))
        await hanging.begun.wait()
        await t.restart(grace_s=0)
        assert (await asking).text == "one, redelivered; 0 before"
        (only,) = await t.conversations()
        assert only.interaction_count == 1


@pytest.mark.parametrize("reply_kind", ["blocks", "a stream"])
async def test_the_differing_text_of_a_second_run_counts(reply_kind: str) -> None:
    class ChangingAgent(HangingAgent):
        async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
            again = bool(request.metadata.get("redelivered"))
            words = ["the same, ", "but better"] if again else ["the same, ", "worse, ", "and worse"]
            if reply_kind == "blocks":
                for word in words:
                    await response.markdown(word)
            else:
                stream = await response.create_stream()
                for word in words:
                    await stream.write(word)
            if not again:
                self.begun.set()
                await asyncio.Event().wait()

    changing = ChangingAgent()
    async with AgentTester(changing) as t:
        stream, events = t.stream("one"), []
        async for event in stream:
            events.append(event)
            if "and worse" in event.data.values():  # the first run has sent all it has
                await t.restart(grace_s=0)
        answer = collect_answer(t.jid, events)
        assert sum("the same, " in event.data.values() for event in events) == 1
        if reply_kind == "a stream":
            assert answer.text == "the same, but better"
        else:
            assert answer.text == "the same,\n\nbut better\n\nand worse"  # a block that left cannot be taken back


async def test_interrupted_turns_are_reported_if_so_configured() -> None:
    hanging = HangingAgent()
    async with AgentTester(hanging, policy=Policy(rules=Rules(on_restart="report"))) as t:
        t.send_stanza(message("one", "1"), user=ALICE)
        asking = asyncio.create_task(t.ask("one", user=BOB))
        await hanging.begun.wait()
        await t.restart(grace_s=0)
        with pytest.raises(PeerFailedError, match="interrupted before I could answer this"):
            await asking
        await t.settled()
        assert t.unread(ALICE) == ["I was interrupted before I could answer this. Please ask again."]
        assert [record.interaction_count for record in await t.conversations()] == [0, 0]
        await t.restart()
        await t.settled()
        assert t.unread(ALICE) == []


async def test_within_the_grace_period_a_turn_is_finished() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @agent
    async def slow(request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        begun.set()
        await release.wait()
        await response.markdown(f"finished {request.metadata.get('redelivered')}")

    async with AgentTester(slow) as t:
        asking = asyncio.create_task(t.ask("x"))
        await begun.wait()
        restarting = asyncio.create_task(t.restart(grace_s=5))
        await asyncio.sleep(0)
        release.set()
        await restarting
        assert (await asking).text == "finished None"
        (only,) = await t.conversations()
        assert (only.state, only.interaction_count) == (ConversationState.ACTIVE, 1)
