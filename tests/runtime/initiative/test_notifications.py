"""Notifications: once, in their conversation, to people who may get them, and with a state that is true."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid5

import pytest

from spade_coreason import (
    AgentDefinition,
    AgentRequest,
    AgentTester,
    People,
    Response,
    Session,
)
from spade_coreason.contracts import (
    DataBlock,
    MarkdownBlock,
    MemoryConfig,
    MemoryStrategy,
    NotificationState,
    ThinkingBlock,
    UserErrorBlock,
)
from spade_coreason.domain.identifiers import NOTIFICATION_NAMESPACE
from spade_coreason.domain.initiative.notifications import NotificationPolicy, QuietHours
from spade_coreason.domain.preferences import PREFERENCES_SCOPE, Preferences
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.llm import LLMAgent
from spade_coreason.runtime.initiative.notifications import MAX_CONTENT_BYTES
from spade_coreason.testing import FakeModel, Policy, Rules
from tests.support.clock import Clock
from tests.support.errors import ExpectedErrors
from tests.support.initiative import BOB, START, STRANGER, TESTER, Interruption, ScriptedAgent, echo, scripted
from tests.support.wait import TIMEOUT_S

SENT, WAITING, REFUSED = NotificationState.SENT, NotificationState.WAITING, NotificationState.REFUSED
CANCEL, WAIT = ("cancel", "item-not-found"), ("wait", "resource-constraint")


def people_of(t: AgentTester) -> People:
    """Return the people as a task of the agent has them, outside of turns."""
    people = t.agent.people  # type: ignore[attr-defined]
    assert isinstance(people, People)
    return people


def texts(t: AgentTester, user: str | None = None) -> list[str]:
    """Return all texts that a person has received."""
    return [message.text for message in t.messages(user) if message.text is not None]


async def states(t: AgentTester) -> list[NotificationState]:
    await t.settled()
    return [one.state for one in await t.notifications()]


async def load_turns(t: AgentTester) -> list[dict[str, Any]]:
    """Return the stored turns of the only conversation."""
    repository = t.runners[t.jid].repository
    [record] = await repository.list_conversations()
    return [json.loads(text) for text in await repository.turns.load_history(record.id, 10)]


def send_back(t: AgentTester, message_id: str, kind: tuple[str, str], sender: str = BOB) -> None:
    """Send a message of the agent back, as a server does that does not deliver it."""
    error = f"<error type='{kind[0]}'><{kind[1]} xmlns='urn:ietf:params:xml:ns:xmpp-stanzas'/></error>"
    t.send_stanza(f"<message to='{t.jid}' type='error' id='{message_id}'>{error}</message>", user=sender)


# Once


async def run_twice(work: Callable[..., Any]) -> list[str]:
    """Run a turn that `work` interrupts, and again after a restart. Return the texts that Bob got."""
    interruption = Interruption()

    async def interrupted(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await work(agent, request, interruption)
        await response.markdown("done")

    async with AgentTester(scripted(interrupted)) as t:
        asking = asyncio.create_task(t.ask("go"))
        async with asyncio.timeout(TIMEOUT_S):
            await interruption.reached.wait()
        await t.restart(grace_s=0)
        assert (await asking).text == "done"
        await t.settled()
        assert len(await t.notifications()) == len(texts(t, BOB))
        return texts(t, BOB)


async def test_a_turn_that_runs_again_notifies_once() -> None:
    ids = []

    async def work(agent: ScriptedAgent, request: AgentRequest, interrupt: Interruption) -> None:
        ids.append((await agent.people.notify(BOB, "hello")).id)
        await interrupt(request)

    assert await run_twice(work) == ["hello"]
    assert len(ids) == 2
    assert ids[0] == ids[1]


async def test_two_notifications_of_a_turn_are_two() -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, interrupt: Interruption) -> None:
        await agent.people.notify(BOB, "hello")
        await interrupt(request)
        await agent.people.notify(BOB, "hello")

    assert await run_twice(work) == ["hello", "hello"]


async def test_a_second_run_with_another_text_is_a_mismatch(expected_errors: ExpectedErrors) -> None:
    expected_errors("the durable step 'people.notify' (use 1) was stored with the arguments")

    async def work(agent: ScriptedAgent, request: AgentRequest, interrupt: Interruption) -> None:
        await agent.people.notify(BOB, "something else" if request.metadata.get("redelivered") else "hello")
        await interrupt(request)

    with pytest.raises(PeerFailedError):
        await run_twice(work)


async def test_the_key_of_a_task_makes_a_repetition_harmless() -> None:
    async with AgentTester(scripted(echo)) as t:
        first = await people_of(t).notify(BOB, "the first counts", key="monday")
        assert first.id == str(uuid5(NOTIFICATION_NAMESPACE, f"{t.jid}\0{BOB}\0monday"))
        await t.restart()
        second = await people_of(t).notify(BOB, "not this one", key="monday")
        assert second.id == first.id
        assert await states(t) == [SENT]
        assert texts(t, BOB) == ["the first counts"]
        third = await people_of(t).notify(TESTER, "another person", key="monday")
        assert (third.person, third.state) == (TESTER, WAITING)


async def test_without_a_key_each_call_of_a_task_notifies() -> None:
    async with AgentTester(scripted(echo)) as t:
        assert (await people_of(t).notify(BOB, "hello")).state is WAITING
        await people_of(t).notify(BOB, "hello")
        assert await states(t) == [SENT, SENT]
        assert texts(t, BOB) == ["hello", "hello"]


async def test_the_outcome_can_be_read_and_that_of_another_id_is_an_error() -> None:
    async with AgentTester(scripted(echo)) as t:
        first = await people_of(t).notify(BOB, "hello")
        await t.settled()
        outcome = await people_of(t).outcome(first.id)
        assert (outcome.state, outcome.person, outcome.thread, outcome.reason, outcome.attempts) == (SENT, BOB, None, "", 1)
        with pytest.raises(LookupError, match="seven days"):
            await people_of(t).outcome(UUID(int=7))


# Contents and addresses


async def test_a_thread_is_that_of_the_message() -> None:
    async with AgentTester(scripted(echo)) as t:
        await people_of(t).notify(BOB, "hello", thread="garden")
        assert (await t.message(BOB)).thread == "garden"


async def test_blocks_of_all_kinds_are_sent_in_their_order() -> None:
    problem = UserErrorBlock(user_message="The disk is full.", code=500)
    async with AgentTester(scripted(echo)) as t:
        await people_of(t).notify(BOB, [MarkdownBlock(content="Report"), DataBlock(data={"free": 7}), problem])
        await t.settled()
        text = "\n".join(texts(t, BOB))
        assert text.index("Report") < text.index("free") < text.index("The disk is full.")
        await people_of(t).notify(BOB, DataBlock(data={"only": 1}))
        await t.settled()
        assert "only" in texts(t, BOB)[-1]


@pytest.mark.parametrize(
    ("to", "content", "problem"),
    [
        (BOB, "x" * MAX_CONTENT_BYTES, "limit"),
        (BOB, " \n", "nothing to send"),
        (BOB, [], "nothing to send"),
        (BOB, 7, "takes a text or blocks"),
        (BOB, [{"block_type": "PICTURE"}], "takes a text or blocks"),
        (f"{BOB}/phone", "hello", "not to one device"),
        ("", "hello", "people.notify"),
        ("bob@", "hello", "people.notify"),
        (None, "hello", "people.notify"),
    ],
)
async def test_what_cannot_be_sent_is_an_error_at_once(to: Any, content: Any, problem: str) -> None:
    async with AgentTester(scripted(echo)) as t:
        with pytest.raises(ValueError, match=problem):
            await people_of(t).notify(to, content)
        assert await t.notifications() == []


# Refusals


async def test_a_person_without_access_is_not_notified() -> None:
    async with AgentTester(scripted(echo)) as t:
        refused = await people_of(t).notify(STRANGER, "hello")
        await t.settled()
        assert refused.state is REFUSED
        assert refused.reason
        assert texts(t, STRANGER) == []


async def test_a_person_who_has_switched_notifications_off_gets_none() -> None:
    async with AgentTester(scripted(echo)) as t:
        await t.runners[t.jid].repository.save_variable(
            PREFERENCES_SCOPE, BOB, PREFERENCES_SCOPE, Preferences(notifications=False).to_json()
        )
        assert (await people_of(t).notify(BOB, "hello")).state is REFUSED
        assert (await people_of(t).notify(TESTER, "hello")).state is WAITING
        await t.settled()
        assert (texts(t, BOB), texts(t, TESTER)) == ([], ["hello"])


async def test_a_day_has_a_limit_for_each_person() -> None:
    policy = Policy(notifications=NotificationPolicy(per_day=2))
    async with AgentTester(scripted(echo), policy=policy, clock=Clock(START)) as t:
        found = [(await people_of(t).notify(BOB, str(number))).state for number in range(4)]
        assert found == [WAITING, WAITING, REFUSED, REFUSED]
        assert (await people_of(t).notify(TESTER, "another person")).state is WAITING
        await t.advance(timedelta(days=1, seconds=1))
        assert (await people_of(t).notify(BOB, "the next day")).state is WAITING
        await t.settled()
        assert texts(t, BOB) == ["0", "1", "the next day"]


# The conversation


async def test_the_history_has_it_without_a_request_and_the_reply_continues_it() -> None:
    seen: list[list[tuple[Any, Any]]] = []

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        for turns in (await session.history(10), await session.window()):
            seen.append([(turn.input, turn.output["text"]) for turn in turns])
        await response.markdown("good")

    async with AgentTester(scripted(work)) as t:
        first = await people_of(t).notify(TESTER, "The kettle boils.")
        await t.settled()
        assert await t.say("thanks") == ["good"]
        assert seen == [[(None, "The kettle boils.")]] * 2
        turn = (await load_turns(t))[0]
        assert turn["interaction_id"] == first.id
        assert (turn["meta"]["channel"], turn["meta"]["notification"]) == ("notification", first.id)
        assert "> None" not in "".join(await t.say("/history"))
        assert "> null" not in "".join(await t.say("/history"))


async def test_a_language_model_sees_it_as_what_it_has_said_itself() -> None:
    class Assistant(LLMAgent):
        def __init__(self, manifest: AgentDefinition, people: People) -> None:
            super().__init__(manifest)
            self.people = people

    model = FakeModel(["You are welcome."])
    async with AgentTester(Assistant, model=model) as t:
        await people_of(t).notify(TESTER, "The kettle boils.")
        await t.settled()
        await t.say("thanks")
    messages = [message for message in model.requests[0].messages if message["role"] != "system"]
    assert [(message["role"], message["content"]) for message in messages] == [
        ("assistant", "The kettle boils."),
        ("user", "thanks"),
    ]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_reply_to_one_in_a_thread_goes_to_that_thread(*, is_restarted: bool) -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown(" ".join(turn.output["text"] for turn in await session.history(10)))

    async with AgentTester(scripted(work), client_features={"replies"}) as t:
        await people_of(t).notify(TESTER, "Weeds!", thread="garden")
        notice = await t.message()
        if is_restarted:
            await t.restart()
        t.send("again?", reply_to=notice.id)
        answer = await t.message()
        assert (answer.text, answer.thread) == ("Weeds!", "garden")


async def test_it_counts_as_no_interaction_and_leaves_the_state() -> None:
    async with AgentTester(scripted(echo), policy=Policy(rules=Rules(max_interactions=2))) as t:
        for number in range(5):
            await people_of(t).notify(TESTER, str(number))
        await t.settled()
        assert await t.say("a") == ["you said a"]
        await t.settled()
        [before] = await t.conversations()
        await people_of(t).notify(TESTER, "once more")
        await t.settled()
        assert await t.conversations() == [before]
        assert await t.say("b") == ["you said b"]


async def test_a_conversation_that_has_ended_stays_ended() -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        session.end()
        await response.markdown("bye")

    async with AgentTester(scripted(work)) as t:
        await t.say("end")
        await t.settled()
        [before] = await t.conversations()
        await people_of(t).notify(TESTER, "still there?")
        await t.settled()
        assert await t.conversations() == [before]
        assert before.state == "completed"
        assert texts(t)[-1] == "still there?"


@pytest.mark.parametrize("strategy", list(MemoryStrategy))
async def test_no_memory_strategy_is_broken_by_turns_without_a_request(strategy: MemoryStrategy) -> None:
    windows: list[str] = []

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        windows.append(" ".join(str(turn.output.get("text")) for turn in await session.window()))
        await response.markdown("heard")

    policy = Policy(memory=MemoryConfig(strategy=strategy, limit=6, summary_prompt="Summarise."))
    async with AgentTester(scripted(work), policy=policy) as t:
        for number in range(12):
            await people_of(t).notify(TESTER, f"notice{number}")
            await t.settled()
            if number % 4 == 3:
                await t.say("heard")
                await t.settled()
        await t.say("heard")
        await t.restart()
        await t.say("heard")
    assert "notice11" in windows[-2]
    assert windows[-1].endswith("heard") or strategy is MemoryStrategy.VECTOR_STORE


# Order


async def test_it_comes_after_the_turn_that_runs_in_its_conversation_and_waits_for_no_other() -> None:
    release, running = asyncio.Event(), asyncio.Event()

    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        running.set()
        await release.wait()
        await response.markdown("the reply")

    async with AgentTester(scripted(work)) as t:
        t.send("go", user=BOB)
        await running.wait()
        await people_of(t).notify(BOB, "in the busy conversation")
        await people_of(t).notify(TESTER, "to another person")
        await people_of(t).notify(BOB, "in another conversation", thread="other")
        assert (await t.message(TESTER)).text == "to another person"
        assert (await t.message(BOB)).text == "in another conversation"
        release.set()
        await t.settled()
        assert t.unread(BOB) == ["the reply", "in the busy conversation"]


async def test_a_turn_notifies_its_own_person_after_its_reply() -> None:
    async def work(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
        await agent.people.notify(TESTER, "by the way")
        await response.markdown("the reply")

    async with AgentTester(scripted(work)) as t:
        t.send("go")
        await t.settled()
        assert t.unread() == ["the reply", "by the way"]


# Bounces


async def test_one_that_comes_back_for_good_is_bounced_also_after_a_restart() -> None:
    async with AgentTester(scripted(echo)) as t:
        for number in range(2):
            await people_of(t).notify(BOB, str(number))
        first, second = (await t.message(BOB)).id, (await t.message(BOB)).id
        assert await states(t) == [SENT, SENT]
        send_back(t, first, CANCEL)
        assert await states(t) == [NotificationState.BOUNCED, SENT]
        await t.restart()
        send_back(t, second, CANCEL)
        assert await states(t) == [NotificationState.BOUNCED] * 2
        [bounced, _] = await t.notifications()
        assert bounced.reason
        await t.restart()
        assert await states(t) == [NotificationState.BOUNCED] * 2
        assert texts(t, BOB) == ["0", "1"]


async def test_one_that_comes_back_for_now_is_sent_again_with_its_id_until_it_fails() -> None:
    async with AgentTester(scripted(echo), clock=Clock(START)) as t:
        await people_of(t).notify(BOB, "hello")
        ids = []
        for attempt in range(1, 6):
            ids.append((await t.message(BOB)).id)
            send_back(t, ids[-1], WAIT)
            await t.settled()
            [one] = await t.notifications()
            assert (one.state, one.attempts) == (WAITING if attempt < 5 else NotificationState.FAILED, attempt)
            await t.advance(timedelta(hours=3))
        assert len(set(ids)) == 1
        assert len(texts(t, BOB)) == 5
        assert len(await load_turns(t)) == 1


async def test_one_that_came_back_for_now_and_arrives_later_is_sent() -> None:
    async with AgentTester(scripted(echo), clock=Clock(START)) as t:
        await people_of(t).notify(BOB, "hello")
        send_back(t, (await t.message(BOB)).id, WAIT)
        await t.advance(timedelta(hours=3))
        assert await states(t) == [SENT]


async def test_a_bounce_of_another_sender_or_of_another_message_changes_nothing() -> None:
    async with AgentTester(scripted(echo)) as t:
        await people_of(t).notify(BOB, "hello")
        message = await t.message(BOB)
        for ident, sender in ((message.id, TESTER), (message.id, STRANGER), (str(UUID(int=7)), BOB), ("nonsense", BOB)):
            send_back(t, ident, CANCEL, sender)
        assert await states(t) == [SENT]


async def test_a_notification_that_fails_holds_up_no_other() -> None:
    async with AgentTester(scripted(echo), clock=Clock(START)) as t:
        await people_of(t).notify(BOB, "comes back")
        send_back(t, (await t.message(BOB)).id, WAIT)
        await t.settled()
        await people_of(t).notify(BOB, ThinkingBlock(content="not for chats"))
        await people_of(t).notify(BOB, "another")
        await people_of(t).notify(TESTER, "to another person")
        assert await states(t) == [WAITING, NotificationState.FAILED, SENT, SENT]


# Restarts


async def test_what_is_sent_is_not_sent_again_after_a_restart() -> None:
    async with AgentTester(scripted(echo)) as t:
        await people_of(t).notify(BOB, "hello")
        await t.settled()
        await t.restart()
        assert await states(t) == [SENT]
        assert texts(t, BOB) == ["hello"]


async def test_quiet_hours_delay_it_until_their_end() -> None:
    policy = Policy(notifications=NotificationPolicy(quiet=QuietHours.parse("11:00-15:00"), zone="Europe/Berlin"))
    async with AgentTester(scripted(echo), clock=Clock(START), policy=policy) as t:  # 13:00 in Berlin
        waiting = await people_of(t).notify(BOB, "hello")
        assert (waiting.state, waiting.due_at) == (WAITING, START + timedelta(hours=2))
        await t.advance(timedelta(hours=2, seconds=-1))
        assert texts(t, BOB) == []
        await t.advance(timedelta(seconds=1))
        assert texts(t, BOB) == ["hello"]
        assert await states(t) == [SENT]
