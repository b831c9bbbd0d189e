"""Plans, questions, approvals and notifications move with their agent to another worker: none is lost, and none comes twice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from datetime import timedelta
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, People, Response, Session, every
from spade_coreason.exceptions import LeaseLostError
from tests.app.test_initiative import Mailbag
from tests.support.databases import execute
from tests.support.line_log import append_line, read_lines
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.workers import Workers, run_workers


class PlanningAgent:
    """An agent that reminds, notifies, asks and pays, and waits for a file beside its log."""

    def __init__(self, people: People, log: str, person: str) -> None:
        self.manifest = AgentDefinition.simple("planning")
        self._people = people
        self._log = Path(log)
        self._person = person

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Do what the first word says, under the name that is the second."""
        verb, name = str(request.payload["query"]).split()
        if verb == "plan":
            await session.remind(timedelta(days=1), f"remind {name}")
            await self._people.notify(self._person, f"{name} is told")
        elif verb == "ask":
            await session.run_approved("pay", self._pay, f"{name} early", approvers="approvers")
            answer = await response.ask_person(f"Which color for {name}?", choices=["red", "blue"])
            verb = f"ask for {answer.text} at {os.getpid()} and"
        elif verb == "buy":
            await session.run_approved("pay", self._pay, f"{name} late", approvers="approvers")
        elif verb == "wait":
            while not self._log.with_name("go on").exists():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            verb = f"wait at {os.getpid()} and"
        await response.markdown(f"{verb} {name}: done")

    @every("0 0 1 1 *")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Notify of the time."""
        await self._people.notify(self._person, f"tick at {request.metadata['due_at']}")

    async def _pay(self, name: str) -> None:
        append_line(self._log, name, os.getpid())


class Plans:
    """The plans of agents for a person and an approver, and their outcome."""

    def __init__(self, workers: Workers, log: Path, person: StockClient, approver: StockClient) -> None:
        self._workers = workers
        self._log = log
        self._person = person
        self._approver = approver
        self.mail = Mailbag(person)
        self._asked = Mailbag(approver)

    async def begin(self, agent: str, name: str) -> None:
        """Let an agent notify, plan something, ask after an approved payment, and wait for the approval of another one."""
        for verb in ("plan", "ask", "buy"):
            self._person.send(f"{verb} {name}", agent, thread=f"{verb} {name}")
        self._approver.send(f"/approve {await _find_code(self._asked, f'{name} early')}", agent)
        await self.mail.wait_for({f"{name} is told", f"plan {name}: done"})
        await _find_code(self.mail, f"for {name}?")
        await _find_code(self._asked, f"{name} late")
        assert [line[0] for line in read_lines(self._log) if name in line[0]] == [f"{name} early"]

    def let_all_be_due(self, agent: str) -> None:
        """Let everything that an agent has planned be due now, without its knowledge."""
        now = int(time.time() * 1e6)
        execute(
            self._workers.url, f"UPDATE tasks SET due_at = {now}, wake_at = {now} WHERE kind = 'schedule' AND agent = '{agent}'"
        )

    async def answer(self, agent: str, name: str) -> None:
        """Answer the question, and approve the other payment."""
        code = await _find_code(self.mail, f"for {name}?")  # while the worker is frozen, the order of texts is not known
        self._person.send(f"/answer {code} red", agent, thread=f"ask {name}")
        self._approver.send(f"/approve {await _find_code(self._asked, f'{name} late')}", agent)

    async def wait_for_takeover(self, agent: str, old: int) -> None:
        """Wait until another worker has an agent."""
        await eventually(lambda: self._workers.find_process(agent) not in (0, old))

    async def check(self, agent: str, name: str, old: int, *, ticks: int) -> None:
        """Check that everything of `begin` came once, although another worker has the agent now."""
        await self.wait_for_takeover(agent, old)
        new = self._workers.find_process(agent)
        ends = {f"remind {name}: done", f"ask for red at {new} and {name}: done", f"buy {name}: done"}
        await self.mail.wait_for(ends)
        await eventually(lambda: self._count_ticks() == ticks)
        assert [line for line in read_lines(self._log) if name in line[0]] == [[f"{name} early", old], [f"{name} late", new]]
        self.check_texts(name)

    def check_texts(self, name: str) -> None:
        """Check that no text under a name came as two messages, and no tick."""
        for mail in (self.mail, self._asked):
            mail.collect()
            found = {text: ids for text, ids in mail.ids.items() if name in text or text.startswith("tick at ")}
            assert found.keys()
            assert {text: ids for text, ids in found.items() if len(ids) != 1} == {}

    def _count_ticks(self) -> int:
        self.mail.collect()
        return sum(text.startswith("tick at ") for text in self.mail.ids)


async def _find_code(mail: Mailbag, text: str) -> str:
    """Wait for a question with a text, and return its code."""

    def find() -> list[str]:
        mail.collect()
        return [code[1] for each in mail.ids if text in each and (code := re.search(r"/(?:answer|approve) (\w+)", each))]

    await eventually(lambda: find() != [])
    [found] = find()
    return found


async def test_what_is_due_parked_and_waits_for_approval_moves_with_the_agent(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    log = tmp_path / "planning.log"
    async with (
        StockClient(*await prosody.account(), prosody) as alice,
        StockClient(*await prosody.account(), prosody) as boss,
        run_workers(
            prosody,
            postgres,
            tmp_path,
            agents=3,
            agent="tests.app.test_worker_handovers:PlanningAgent",
            options={"log": str(log), "person": alice.jid},
            further={"access": {"groups": {"approvers": [boss.jid]}}, "limits": {"grace_s": 60}},
        ) as workers,
    ):
        plans = Plans(workers, log, alice, boss)
        first = await workers.start()
        moving, busy, idle = workers.agents

        # A worker joins, and takes the first agent.
        await plans.begin(moving, "join")
        plans.let_all_be_due(moving)
        second = await workers.start()
        await plans.wait_for_takeover(moving, first.pid)
        await plans.answer(moving, "join")
        await plans.check(moving, "join", first.pid, ticks=1)
        assert workers.find_process(moving) == second.pid
        assert plans.mail.copies == 0

        # A worker is frozen for longer than its lease, and people answer meanwhile.
        await plans.begin(moving, "freeze")
        os.kill(second.pid, signal.SIGSTOP)
        plans.let_all_be_due(moving)
        await plans.answer(moving, "freeze")
        await plans.check(moving, "freeze", second.pid, ticks=2)
        os.kill(second.pid, signal.SIGCONT)
        assert await second.wait() == LeaseLostError.exit_code

        # A worker is stopped. It hands over its idle agent while the other one is busy.
        third, copies = await workers.start(), plans.mail.copies
        await workers.wait_for(1, 2)
        await plans.begin(idle, "stop")
        alice.send("wait here", busy)
        await eventually(lambda: execute(workers.url, f"SELECT * FROM inbox WHERE state = 0 AND agent = '{busy}'") != [])
        plans.let_all_be_due(idle)
        stopping = asyncio.create_task(first.signal(signal.SIGTERM))
        await plans.wait_for_takeover(idle, first.pid)
        await plans.answer(idle, "stop")
        await plans.check(idle, "stop", first.pid, ticks=3)
        assert (workers.find_process(idle), workers.find_process(busy)) == (third.pid, first.pid)
        log.with_name("go on").touch()
        pid = first.pid
        assert await stopping == 0
        await plans.mail.wait_for({f"wait at {pid} and here: done"})
        await eventually(lambda: workers.find_process(busy) == third.pid)
        plans.check_texts("stop")
        assert plans.mail.copies == copies
