"""Rights that end while something waits: a request that was received with access does not run without it."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session
from spade_coreason.contracts import AgentDefinition
from spade_coreason.domain.messages import RequestContext
from spade_coreason.exceptions import PeerRefusedError
from spade_coreason.testing import Policy
from spade_coreason.xmpp.codec import RoomMessage, room_request
from spade_coreason.xmpp.codec.decode import decode
from tests.support.transports import request_stanza
from tests.support.wait import TIMEOUT_S

BOSS = "boss@localhost"
CAROL = "carol@far.example"
REFUSAL = "You don't have access to me yet. Please ask my operator."


class Recorder:
    """An agent that notes each query."""

    def __init__(self, manifest: AgentDefinition) -> None:
        self.manifest = manifest
        self.queries: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        self.queries.append(request.payload["query"])
        await response.markdown("answered")


def run_recorder() -> AgentTester:
    return AgentTester(Recorder, policy=Policy(operators=frozenset({BOSS})))


async def texts_of(t: AgentTester, user: str) -> list[str]:
    await t.settled()
    return t.unread(user)


@pytest.mark.parametrize("restarts", [False, True])
async def test_what_waits_when_its_sender_loses_access_does_not_run(restarts: bool) -> None:
    async with run_recorder() as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("/pause", user=BOSS)
        t.send("secret?", user=CAROL)
        t.send("mine?", user="alice@localhost")
        await t.delivered()
        asking = None if restarts else asyncio.create_task(t.ask("secret, program?", user=f"{CAROL}/program"))
        await t.say(f"/reject {CAROL}", user=BOSS)
        if restarts:
            await t.restart()
        await t.say("/resume", user=BOSS)
        if asking is not None:
            with pytest.raises(PeerRefusedError, match="don't have access"):
                await asking
        assert (await texts_of(t, CAROL))[-1] == REFUSAL
        assert (await texts_of(t, "alice@localhost"))[-1] == "answered"
        assert isinstance(t.agent, Recorder)
        assert t.agent.queries == ["mine?"]
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.restart()
        await texts_of(t, CAROL)
        assert isinstance(t.agent, Recorder)
        assert t.agent.queries == []  # what was refused is done


async def test_a_silent_agent_does_not_tell_those_who_lose_access() -> None:
    has_begun = asyncio.Event()

    class Waiting(Recorder):
        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            has_begun.set()
            await asyncio.Event().wait()

    async with AgentTester(Waiting, policy=Policy(operators=frozenset({BOSS}))) as t:
        t.gateways[t.jid].access.is_silent = True
        await t.say(f"/admit {CAROL}", user=BOSS)
        t.send("running", user=CAROL)
        await has_begun.wait()
        await t.say("/pause", user=BOSS)
        t.send("waiting", user=CAROL)
        for number, deadline in enumerate((0.0, 1.0)):
            request = AgentRequest(session_id=uuid4(), payload={"query": "a program"}).dump()
            context = RequestContext(deadline=deadline)
            parts = {"source": "x", "thread": None, "stanza_id": str(number), "context": context}
            t.send_stanza(request_stanza(t.jid, request, **parts), user=CAROL)
        await t.delivered()
        t.unread(CAROL)
        await t.say(f"/reject {CAROL}", user=BOSS)
        await t.say("/resume", user=BOSS)
        await t.settled()
        assert [message for message in t.messages(CAROL) if decode(message.xml) is not None] == []


@pytest.mark.parametrize("user", [CAROL, f"{CAROL}/program"])
async def test_a_turn_that_runs_when_its_sender_loses_access_is_cancelled_and_tells_nothing_more(user: str) -> None:
    has_begun, may_end = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    class Streamer:
        def __init__(self, manifest: AgentDefinition) -> None:
            self.manifest = manifest

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            stream = await response.create_stream()
            await stream.write("a part. ")
            has_begun.set()
            await may_end.wait()
            await stream.write("secret")
            ended.append(request.payload["query"])

    async with AgentTester(Streamer, policy=Policy(operators=frozenset({BOSS}))) as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        asking = asyncio.create_task(t.ask("tell", user=user)) if "/" in user else None
        if asking is None:
            t.send("tell", user=user)
        other = asyncio.create_task(t.say("tell", user="alice@localhost"))
        async with asyncio.timeout(TIMEOUT_S):
            await has_begun.wait()
            while t.runners[t.jid].mailboxes.busy_count < 2:
                await t.delivered()
            await t.say(f"/reject {CAROL}", user=BOSS)
            if asking is not None:
                with pytest.raises(PeerRefusedError, match="don't have access"):
                    await asking
            may_end.set()
            assert await other == ["a part. secret"]
            texts = await texts_of(t, user)
        assert "secret" not in " ".join(texts)
        assert asking is not None or texts[-1] == REFUSAL
        assert ended == ["tell"]  # that of the other person


async def test_what_an_occupant_of_a_room_has_asked_does_not_run_without_access_and_the_room_is_told_nothing() -> None:
    room = "tea@rooms.localhost"
    async with run_recorder() as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("/pause", user=BOSS)
        for occupant, text in ((CAROL, "secret?"), ("alice@localhost", "mine?"), (None, "ours?")):
            message = RoomMessage(occupant or "anonymous", text, text, "", None, False, None, "", "")
            t.gateways[t.jid].receive_request(room_request(room, message, text, occupant))
        await t.say(f"/reject {CAROL}", user=BOSS)
        await texts_of(t, room)
        await t.say("/resume", user=BOSS)
        assert await texts_of(t, room) == ["alice@localhost: answered", "anonymous: answered"]
        assert isinstance(t.agent, Recorder)
        assert t.agent.queries == ["mine?", "ours?"]


async def test_what_waits_runs_if_its_sender_has_access_again() -> None:
    async with run_recorder() as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("/pause", user=BOSS)
        t.send("mine?", user=CAROL)
        await t.delivered()
        await t.say(f"/reject {CAROL}", user=BOSS)
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("/resume", user=BOSS)
        assert (await texts_of(t, CAROL))[-1] == "answered"


async def test_what_was_received_runs_while_the_roster_that_may_admit_its_sender_is_not_known() -> None:
    async with run_recorder() as t:
        await t.say(f"/admit {CAROL}", user=BOSS)
        await t.say("/pause", user=BOSS)
        t.send("mine?", user=CAROL)
        await t.delivered()
        access = t.gateways[t.jid].access
        access.is_known = False
        access.approved.discard(CAROL)
        await t.say("/resume", user=BOSS)
        assert (await texts_of(t, CAROL))[-1] == "answered"
