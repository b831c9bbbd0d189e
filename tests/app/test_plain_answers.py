"""Plain texts as answers over a `kill -9`, from two devices, and in forms: nothing is answered that was not shown."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import AsyncIterator, Callable, MutableSequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.app.test_initiative import Stored
from tests.support.deleting_agent import UNCLEAR
from tests.support.hosting import PlatformProcess
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.wait import eventually
from tests.support.workers import Hosting, WorkerPair, every_hosting, run_hosting
from tests.xmpp.profile.test_adhoc import open_menu, text_of

_CODE = re.compile(r"/answer ([A-Z0-9]{4})")


@dataclass
class Deleting:
    """A platform with an agent that asks before it deletes, and a person who has been asked about A."""

    platform: PlatformProcess | WorkerPair
    jid: str
    stored: Stored
    client: StockClient
    code: str = ""
    seen: set[str] = field(default_factory=set)

    async def begin(self) -> None:
        self.client.send("delete", self.jid)
        self.code = await self.read("Delete A?")
        await eventually(lambda: self.stored.query("SELECT count(*) FROM questions WHERE shown_at IS NOT NULL") == [(1,)])

    async def read(self, beginning: str) -> str:
        """Read the next text, which begins so, and return the code in it. Copies after a kill do not count."""
        while (message := await self.client.answer())["id"] in self.seen:
            pass
        self.seen.add(message["id"])
        text = str(message["body"])
        assert text.startswith(beginning)
        found = _CODE.search(text)
        return found[1] if found is not None else ""

    async def kill(self) -> None:
        await self.platform.signal(signal.SIGKILL)

    def list_questions(self) -> list[tuple[Any, ...]]:
        return self.stored.query("SELECT text, state FROM questions ORDER BY id")


OpenDeleting: TypeAlias = Callable[[Hosting], AbstractAsyncContextManager[Deleting]]


class KillsFirst(random.Random):
    """The order of faults of two workers: the first are kills."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        x.reverse()


@pytest.fixture
def deleting(real_server: XmppServer, get_postgres: Callable[[], Postgres], tmp_path: Path) -> OpenDeleting:
    @asynccontextmanager
    async def open_platform(hosting: Hosting) -> AsyncIterator[Deleting]:
        run = run_hosting(
            hosting,
            real_server,
            get_postgres,
            tmp_path,
            KillsFirst(),
            agent="tests.support.deleting_agent:DeletingAgent",
            options={},
        )
        async with StockClient(*await real_server.account(), real_server) as client, run as (platform, jid, url):
            opened = Deleting(platform, jid, Stored(url), client)
            await opened.begin()
            yield opened

    return open_platform


@pytest.mark.timeout(600)
@every_hosting
async def test_a_text_after_a_kill_answers_what_was_shown_before_it(hosting: Hosting, deleting: OpenDeleting) -> None:
    async with deleting(hosting) as d:
        await d.kill()
        await d.platform.start()
        d.client.send("ping", d.jid)
        await d.read("request: ping")
        d.client.send("yes", d.jid)
        code = await d.read("Delete B?")
        d.client.send("Yes.", d.jid)
        assert await d.read(UNCLEAR) == code
        assert d.list_questions() == [("Delete A?", "answered"), ("Delete B?", "open")]
        await d.kill()
        await d.platform.start()
        d.client.send(f"/answer {code} no", d.jid)
        await d.read("deleted: ['yes', 'no']")


@pytest.mark.timeout(600)
@every_hosting
async def test_a_text_that_comes_while_the_agent_is_killed_asks_for_the_code(hosting: Hosting, deleting: OpenDeleting) -> None:
    """It waits at the server, whose clock is another one than that of the platform."""
    async with deleting(hosting) as d:
        await d.kill()
        d.client.send("yes", d.jid)
        await d.platform.start()
        assert await d.read(UNCLEAR) == d.code
        assert d.list_questions() == [("Delete A?", "open")]
        d.client.send(f"answer {d.code} yes", d.jid)
        await d.read("Delete B?")


@pytest.mark.timeout(600)
async def test_a_text_after_a_kill_in_which_the_time_was_lost_asks_for_the_code(deleting: OpenDeleting) -> None:
    async with deleting("one platform") as d:
        await d.kill()
        d.stored.query("UPDATE questions SET shown_at = NULL")
        d.stored.query("UPDATE inbox SET state = 2, answer = NULL")  # the server has the question, so it is not sent again
        await d.platform.start()
        d.client.send("yes", d.jid)
        assert await d.read(UNCLEAR) == d.code
        assert d.list_questions() == [("Delete A?", "open")]


@pytest.mark.timeout(600)
async def test_a_form_after_a_kill_answers_the_question_that_it_shows(deleting: OpenDeleting, real_server: XmppServer) -> None:
    async with deleting("one platform") as d:
        await d.kill()
        await d.platform.start()
        async with open_menu(real_server, f"{d.jid}/agent", account=d.client._login) as menu:
            stage = await menu.run("answer")
            assert "Delete A?" in stage["form"]["instructions"]
            code = stage["form"].get_fields()["code"]["value"]
            d.client.send("yes", d.jid)
            await d.read("Delete B?")
            assert text_of(await menu.submit(stage, code=code, text="yes")) == "You have answered this already."
            assert d.list_questions() == [("Delete A?", "answered"), ("Delete B?", "open")]


@pytest.mark.timeout(600)
async def test_two_devices_of_one_person_answer_one_question(real_server: XmppServer, deleting: OpenDeleting) -> None:
    async with deleting("one platform") as d, StockClient(*d.client._login, real_server, resource="other") as other:
        d.client.send("yes", d.jid)
        await d.read("Delete B?")
        other.send("yes", d.jid)
        await d.read(UNCLEAR)
        assert d.list_questions() == [("Delete A?", "answered"), ("Delete B?", "open")]
