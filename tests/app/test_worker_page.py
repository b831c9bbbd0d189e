"""The page in the browser at any worker: people are logged in at all of them, and follow agents that another one serves."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.support.page import OpenFeed, Visitor, log_in
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import ANSWER_S
from tests.support.worker_doors import FarDoors, run_command, run_far_doors

ADA = "ada@example.org"


async def log_in_at(running: FarDoors, url: str) -> Visitor:
    link = await run_command(running.other_configuration, "web", ADA)
    return await log_in(url, link.partition("#")[2])


def text_of(feed: OpenFeed) -> str:
    """Return the texts that the feed has told, of the newest state of each part."""
    answers = (state for state in feed.states if state["type"] == "answer")
    parts = {part["part"]: str(part["blocks"]) for answer in answers for part in answer["parts"]}
    return "".join(parts.values())


async def test_a_person_asks_follows_and_answers_at_a_worker_that_does_not_serve_the_agent(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running:
        desk, far = running.workers.agents[0], await log_in_at(running, running.far.url)
        async with far.feed([desk, "", 40]) as feed:
            assert (await far.ask("hold", desk)).status_code == 200
            while "one" not in text_of(feed):
                await anext(feed)
            running.release()
            [turn] = await feed.find_turns(1)
            assert "one two" in str(turn["parts"])
            assert (await far.ask("ask", desk)).status_code == 200
            question = await feed.find_question(desk)
            assert question["choices"] == ["red", "blue"]
            answered = await far.post("/chat/answer", agent=desk, code=question["code"], text="blue")
            assert answered.json()["is_taken"]
            assert "painted blue" in str((await feed.find_turns(1))[-1]["parts"])
        commands = (await far.post("/chat/commands", agent=desk)).json()
        assert "/help" in [name for name, _ in commands]
        found = (await far.post("/chat/search", text="painted blue")).json()
        assert [one["agent"] for one in found] == [desk]


async def test_a_session_holds_at_all_workers_and_ends_at_all_of_them(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running:
        far = await log_in_at(running, running.far.url)
        near = Visitor(running.near.url, (f"page-{running.near.web.port}", far.cookie[1]), far.key)
        assert (await near.post("/chat/me")).json()["account"] == ADA
        assert (await far.post("/logout")).status_code == 200
        assert (await near.post("/chat/me")).status_code == 401


async def test_an_answer_goes_on_in_the_page_when_its_worker_is_killed(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async with run_far_doors(prosody, postgres, tmp_path) as running:
        desk, far = running.workers.agents[0], await log_in_at(running, running.far.url)
        async with far.feed([desk, "", 40]) as feed:
            assert (await far.ask("hold", desk)).status_code == 200
            await running.wait_for_turn("hold")
            await running.owner.signal(signal.SIGKILL)
            running.release()
            [turn] = await feed.find_turns(1)
            assert str(turn["parts"]).count("one two") == 1


async def test_a_person_gets_a_link_by_a_command_in_a_chat(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    jid, password = await prosody.account()
    async with run_far_doors(prosody, postgres, tmp_path) as running, StockClient(jid, password, prosody) as person:
        [link] = re.findall(r"http://\S+", str(await person.ask("/web", running.workers.agents[0], timeout_s=ANSWER_S)))
        url, _, secret = link.partition("/login#")
        assert (await (await log_in(url, secret)).post("/chat/me")).json()["account"] == jid
