"""A request that waits for an answer holds nothing: other turns run, and what limits turns does not touch it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import update

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session
from spade_coreason.contracts import QuestionState
from spade_coreason.domain.quotas import Quota, Quotas
from spade_coreason.exceptions import PeerParkedError
from spade_coreason.operations.host import StoppedAgent
from spade_coreason.storage.schema import ANSWERED, inbox, parked_requests
from spade_coreason.testing import PlatformLimits, Policy, Rules
from tests.support.hosting import Echo
from tests.support.initiative import START
from tests.support.questions import BOB, BOSS, TESTER, ChangingAgent, asked, code_of, nothing_is_left, parked
from tests.support.wait import TIMEOUT_S

OPERATED = Policy(operators=frozenset({BOSS}))
ID = UUID("6f9619ff-8b86-4011-b42d-00c04fc964ff")
ENDED = "was taken back. You need not answer it."


async def ask_or_echo(request: AgentRequest, session: Session, response: Response) -> None:
    """Ask the person behind the request for `ask`, bob for `ask bob`, and repeat all else."""
    query = request.payload["query"]
    if query.startswith("ask"):
        answer = await response.ask_person("Which?", choices=["red", "blue"], to=BOB if query == "ask bob" else None)
        await response.markdown(f"{answer.person} took {answer.text}")
    else:
        await response.markdown(query)


async def texts(t: AgentTester, user: str | None = None) -> list[str]:
    await t.settled()
    return t.unread(user)


async def test_other_turns_of_the_conversation_run_meanwhile() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo), policy=Policy(limits=PlatformLimits(concurrency=1))) as t:
        await t.say("ask")
        for number in range(3):
            assert await t.say(f"number {number}") == [f"number {number}"]
        assert await t.say("red") == ["tester@localhost took red"]
        record = (await t.conversations())[0]
        assert record.interaction_count == 4
        assert await nothing_is_left(t)


async def test_two_requests_of_one_conversation_wait_at_once() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        first, second = code_of(await t.say("ask")), code_of(await t.say("ask"))
        assert first != second
        assert await t.say("red") == ["red"]  # it is not clear which one this answers
        assert await t.say(f"/answer {second} blue") == ["tester@localhost took blue"]
        assert await t.say("1") == ["tester@localhost took red"]
        assert await nothing_is_left(t)


@pytest.mark.parametrize("idle", [timedelta(hours=2), timedelta(days=6)])
async def test_the_conversation_may_end_meanwhile(idle: timedelta) -> None:
    ended: list[str] = []

    def on_end(conversation_id: str, state: str) -> None:
        ended.append(state)

    rules = Rules(timeout_s=3600, max_interactions=2, cooldown_s=3600)
    async with AgentTester(
        ChangingAgent(ask_or_echo), policy=Policy(rules=rules), clock=lambda: START, on_conversation_end=(on_end,)
    ) as t:
        await t.say("ask")
        await t.advance(idle)
        await t.runners[t.jid].conversations.expiry.expire_idle()
        assert len(await parked(t)) == 1
        t.unread()
        assert await t.say("red") == ["tester@localhost took red"]
        assert ended == ["timeout"]
        assert await nothing_is_left(t)
        assert await t.say("and now?") == ["and now?"]


async def test_a_conversation_that_is_full_or_cools_down_takes_the_answer() -> None:
    rules = Rules(max_interactions=2, cooldown_s=3600)
    async with AgentTester(ChangingAgent(ask_or_echo), policy=Policy(rules=rules), clock=lambda: START) as t:
        await t.say("ask")
        await t.say("two")
        [refusal] = await t.say("three")
        assert refusal != "three"
        assert await t.say("red") == ["tester@localhost took red"]
        assert await nothing_is_left(t)


async def test_the_quota_of_messages_does_not_count_the_second_run() -> None:
    quotas = Quotas(user=Quota(messages_per_day=2))
    async with AgentTester(ChangingAgent(ask_or_echo), policy=Policy(quotas=quotas), clock=lambda: START) as t:
        await t.say("ask bob")
        assert await t.say("two") == ["two"]
        [refusal] = await t.say("three")
        assert refusal != "three"
        await texts(t, BOB)
        await t.say("red", user=BOB)
        assert await texts(t) == ["bob@localhost took red"]
        assert await nothing_is_left(t)


class Calling:
    """An agent that asks the agent under test, and reports what comes of it."""

    manifest = AgentDefinition.simple("calling")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        question = AgentRequest(session_id=ID, request_id=ID, payload={"query": "go"})
        try:
            await response.markdown((await self._peers.ask("agent@localhost", question, timeout=60)).text)
        except PeerParkedError as error:
            await response.markdown(f"parked: {error.request_id == str(ID)}")


class AskingPeer:
    """An agent that asks a person, and then a peer."""

    manifest = AgentDefinition.simple("asking")

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.deadlines: list[float] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.deadlines.append(request.metadata["deadline"])
        await response.ask_person("Which?", choices=["red"])
        answer = await self._peers.ask("echo@localhost", "hello")
        await response.markdown(answer.text)


async def test_a_deadline_that_is_over_does_not_stop_the_second_run() -> None:
    async with AgentTester(AskingPeer, peers={"echo": Echo, "calling": Calling}) as t:
        assert await t.say("go", to="calling@localhost") == ["parked: True"]
        [waiting] = await parked(t)
        await set_deadline_to_the_past(t, waiting.id, waiting.request)
        [question] = await texts(t)
        assert await t.say(f"/answer {code_of([question])} red") == ["Thank you. I go on with it."]
        await t.settled()
        [text] = await t.say("go", to="calling@localhost")
        assert text == "hello"
        assert isinstance(t.agent, AskingPeer)
        assert t.agent.deadlines[1] == 1.0
        assert await nothing_is_left(t)


async def set_deadline_to_the_past(t: AgentTester, row: int, request: str) -> None:
    """Store the request with a deadline that is over, as if days had passed."""
    text = re.sub(r'"deadline":[\d.]+', '"deadline":1.0', request)
    assert text != request
    await set_request(t, row, text)


async def set_request(t: AgentTester, row: int, request: str) -> None:
    """Store another request in place of one that waits."""
    change = update(parked_requests).where(parked_requests.c.id == row).values(request=request)
    await t.runners[t.jid].repository.database.write(lambda connection: connection.execute(change))


async def test_a_paused_agent_takes_the_answer_and_goes_on_later() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo), policy=OPERATED) as t:
        code = code_of(await t.say("ask"))
        await t.say("/pause", user=BOSS)
        await t.say(f"/answer {code} red")
        assert await asked(t) == []
        assert not any("took" in text for text in t.unread())
        await t.say("/resume", user=BOSS)
        assert await texts(t) == ["tester@localhost took red"]
        assert await nothing_is_left(t)


async def test_an_answer_that_waits_at_a_stop_counts_after_the_start() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo), policy=OPERATED) as t:
        code = code_of(await t.say("ask"))
        await t.say("/pause", user=BOSS)
        await t.say(f"/answer {code} red")
        await t.restart(grace_s=0)
        await t.say("/resume", user=BOSS)
        assert await texts(t) == ["tester@localhost took red"]
        assert await nothing_is_left(t)


async def test_a_stop_does_not_wait_for_an_answer() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        await t.say("ask")
        assert t.runners[t.jid].mailboxes.busy_count == 0
        async with asyncio.timeout(10):
            await t.restart(grace_s=3600)
        assert await t.say("red") == ["tester@localhost took red"]


# Access


async def test_a_requester_who_lost_access_gets_no_answer() -> None:
    carol = "carol@elsewhere.example"
    async with AgentTester(ChangingAgent(ask_or_echo), policy=OPERATED) as t:
        await t.say(f"/admit {carol}", user=BOSS)
        await t.say("ask bob", user=carol)
        await texts(t, BOB)
        await t.say(f"/reject {carol}", user=BOSS)
        t.unread(carol)
        await t.say("red", user=BOB)
        assert not any("took" in text for text in await texts(t, carol))
        assert await nothing_is_left(t, carol)


async def test_a_person_who_was_asked_and_lost_access_cannot_answer() -> None:
    carol = "carol@elsewhere.example"

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        answer = await response.ask_person("Which?", choices=["red", "blue"], to=carol)
        await response.markdown(f"{answer.person} took {answer.text}")

    async with AgentTester(ChangingAgent(assist), policy=OPERATED) as t:
        await t.say(f"/admit {carol}", user=BOSS)
        await t.say("ask")
        code = code_of(await texts(t, carol))
        await t.say(f"/reject {carol}", user=BOSS)
        await t.say(f"/answer {code} red", user=carol)
        await t.say("red", user=carol)
        assert await texts(t) == []
        assert len(await parked(t)) == 1
        await t.say(f"/admit {carol}", user=BOSS)
        await t.say(f"/answer {code} red", user=carol)
        assert await texts(t) == [f"{carol} took red"]


# The end of a request that waits


@pytest.mark.parametrize("how", ["/cancel", "/new", "a correction", "a retraction", "two corrections"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_request_that_was_taken_back_ends_and_who_was_asked_hears_so(how: str, restarts: bool) -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        message_id = t.send("ask bob")
        assert await texts(t) == ["I have asked bob@localhost, and go on when they have answered."]
        code = code_of(await texts(t, BOB))
        if restarts:
            await t.restart()
        if how == "a correction":
            t.send("never mind", corrects=message_id)
        elif how == "two corrections":
            t.send("ask bob", corrects=message_id)
            await t.settled()
            assert len(await parked(t)) == 1
            t.send("never mind", corrects=message_id)
        elif how == "a retraction":
            t.retract(message_id)
        else:
            await t.say(how)
        assert (await t.message(BOB)).text == f"The question {code} {ENDED}"
        await texts(t, BOB)
        assert await nothing_is_left(t)
        assert await asked(t, BOB) == []
        assert (await t.say(f"/answer {code} red", user=BOB)) == ["This was taken back. Your answer changes nothing."]
        t.unread()
        await t.settled()
        assert not any("took" in text for text in t.unread())
        assert await t.say("next") == ["next"]


async def test_cancel_says_that_it_has_stopped_something() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        assert await t.say("/cancel") == ["There is nothing to stop."]
        await t.say("ask")
        assert await t.say("/cancel") == ["Stopped."]
        assert await t.say("/cancel") == ["There is nothing to stop."]


async def test_only_requests_of_that_person_message_and_thread_end() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        await t.say("ask bob", thread="one")
        await t.say("ask bob", thread="two")
        message_id = t.send("ask bob", user=BOSS)
        await t.settled()
        t.retract(message_id)  # of another person
        t.retract("unknown")
        await t.say("/cancel", thread="three")
        await t.settled()
        assert len(await parked(t)) == 2
        await t.say("/cancel", thread="two")
        assert [waiting.thread for waiting in await parked(t)] == ["one"]
        assert len(await parked(t, BOSS)) == 1
        t.retract(message_id, user=BOSS)
        await t.settled()
        assert await parked(t, BOSS) == []


async def test_a_request_that_is_taken_back_while_it_is_parked_ends() -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        try:
            await response.ask_person("Which?", choices=["red", "blue"], to=BOB)
        finally:  # the turn has ended when this arrives, and its request is about to be moved
            asyncio.get_running_loop().call_soon(t.retract, "the message")

    async with AgentTester(ChangingAgent(assist)) as t:
        t.send("ask bob", id="the message")
        await t.settled()
        assert await nothing_is_left(t)
        assert await asked(t, BOB) == []


async def test_the_answer_comes_before_the_retraction() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        message_id = t.send("ask bob")
        await t.settled()
        code = code_of(await texts(t, BOB))
        t.unread()
        t.send(f"/answer {code} red", user=BOB)
        await t.settled()
        t.retract(message_id)
        await t.settled()
        assert await texts(t) == ["bob@localhost took red"]
        assert not any(ENDED in text for text in await texts(t, BOB))


async def test_a_program_takes_its_request_back() -> None:
    request = AgentRequest(session_id=uuid4(), payload={"query": "ask bob"})
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        with pytest.raises(PeerParkedError):
            await t.ask(request)
        await texts(t, BOB)
        t.retract(str(request.request_id))
        assert str((await t.message(BOB)).text).endswith(ENDED)
        assert await nothing_is_left(t)


@pytest.mark.parametrize("author", ["room@rooms.example/bob", ""])
async def test_another_author_of_a_room_takes_nothing_back(author: str) -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        t.send("ask bob", id="mine")
        await t.settled()
        [waiting] = await parked(t)
        request = waiting.request.replace("{", '{"author":"room@rooms.example/alice",', 1)
        await set_request(t, waiting.id, request)
        intake = t.runners[t.jid].intake
        for given, is_ended in ((author, False), ("room@rooms.example/alice", True)):
            ended = intake.cancel_request(waiting.owner, "mine", given)
            assert ended is not None
            await ended
            assert (await parked(t) == []) is is_ended


async def test_a_moderator_takes_back_what_anybody_asked() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        t.send("ask bob", id="mine")
        await t.settled()
        ended = t.runners[t.jid].intake.cancel_request(TESTER, "mine", None)
        assert ended is not None
        await ended
        assert await nothing_is_left(t)


@pytest.mark.parametrize("how", ["/cancel", "a correction", "a retraction"])
async def test_a_request_is_taken_back_while_it_goes_on_with_the_answer(how: str) -> None:
    is_there = asyncio.Event()

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        if request.payload["query"] == "never mind":
            await response.markdown("as you like")
            return
        await response.ask_person("Which?", choices=["red", "blue"])
        is_there.set()
        await asyncio.Event().wait()

    async with AgentTester(ChangingAgent(assist)) as t:
        message_id = t.send("ask")
        await t.settled()
        t.unread()
        t.send("red")
        await asyncio.wait_for(is_there.wait(), TIMEOUT_S)
        if how == "/cancel":
            assert await t.say("/cancel") == ["Stopped."]
        elif how == "a correction":
            t.send("never mind", corrects=message_id)
            assert await texts(t) == ["as you like"]
        else:
            t.retract(message_id)
        assert await nothing_is_left(t)
        assert await t.say("never mind") == ["as you like"]


async def test_a_reply_that_is_sent_again_after_a_start_leaves_the_journal() -> None:
    """The process ended after the request was parked, and before the server had the beginning of its reply."""

    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        await session.run_once("book", agent.call, "book")
        await ask_or_echo(request, session, response)

    agent = ChangingAgent(assist)
    async with AgentTester(agent) as t:
        [question] = await t.say("ask")
        [waiting] = await parked(t)
        reply = json.dumps([json.dumps({"to": f"{TESTER}/test", "id": "again", "text": question})])
        repository = t.runners[t.jid].repository
        await repository.inbox.flush()
        await repository.database.write(
            lambda connection: connection.execute(
                update(inbox).where(inbox.c.id == waiting.id).values(state=ANSWERED, answer=reply)
            )
        )
        await t.restart()
        await t.settled()
        assert t.unread() == [question]
        await t.runners[t.jid].repository.inbox.flush()
        await t.restart()
        assert await t.say("red") == ["tester@localhost took red"]
        assert agent.calls == ["book"]
        assert await nothing_is_left(t)


async def test_an_answer_that_was_stored_without_the_platform_lets_the_request_run_at_the_start() -> None:
    async with AgentTester(ChangingAgent(ask_or_echo)) as t:
        await t.say("ask")
        [question] = await asked(t)
        answer = {"text": "red", "person": TESTER, "value": None}
        stored = StoppedAgent(t.runners[t.jid].executor.context.host, t.jid)
        settled = await stored.settle(question, QuestionState.ANSWERED, answer, TESTER)
        assert settled is not None
        await t.restart()
        assert await texts(t) == ["tester@localhost took red"]
        assert await nothing_is_left(t)


async def test_work_that_runs_beside_the_conversation_asks_its_person_and_reports_all_in_the_end() -> None:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        if "schedule" not in request.metadata:
            await session.later({"query": "count the stock"})
            return
        await response.markdown("counted")
        answer = await response.ask_person("Order more?", choices=["yes", "no"])
        await response.markdown(f"ordered: {answer.text}")

    async with AgentTester(ChangingAgent(assist), clock=lambda: START) as t:
        await t.say("go")
        [question] = await texts(t)
        await t.restart()
        await t.advance(timedelta(days=1))
        assert await t.say(f"/answer {code_of([question])} yes") == ["Thank you. I go on with it."]
        report = "\n".join(await texts(t))
        assert report.index("counted") < report.index("ordered: yes")
        assert report.count("counted") == 1
        assert await nothing_is_left(t, t.jid)
