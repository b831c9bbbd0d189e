"""A platform with the page in the browser in this process, and people who are logged in to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx

from spade_coreason import AgentDefinition, AgentRequest, Files, Platform, Response, Session, load_settings
from spade_coreason.config import WebSettings
from spade_coreason.contracts.times import utc_now
from spade_coreason.exceptions import ApprovalError, FetchError
from spade_coreason.storage import LoginRepository
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.hosting import RunningPlatform
from tests.support.wait import TIMEOUT_S

DESK, PRIVATE = "desk@localhost", "private@localhost"
ADA, BOB, CAROL, DAVE = "ada@localhost", "bob@localhost", "carol@localhost", "dave@localhost"
"""People: Ada asks, Bob asks too, Carol and Dave approve."""

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A context without authorities: to load those of the system takes longer than a request."""


class PageDesk:
    """An agent that does what a query says, in JSON: `{"do": "say", …}`. `PageDesk.release` ends what is on hold."""

    manifest = AgentDefinition.simple("desk", description="Does what you say.")
    examples: tuple[str, ...] = ("hello",)
    seen: list[tuple[str, str]] = []  # noqa: RUF012 - each new agent begins it anew
    paid: list[str] = []  # noqa: RUF012 - as above
    release = asyncio.Event()

    def __init__(self, files: Files) -> None:
        PageDesk.seen, PageDesk.paid, PageDesk.release = [], [], asyncio.Event()
        self._files = files

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        query = str(request.payload["query"])
        PageDesk.seen.append((session.identity.id, query))
        wish: dict[str, Any] = json.loads(query) if query.startswith("{") else {"do": "echo"}
        text = wish.get("text", query)
        match wish["do"]:
            case "think":
                await response.thought(text)
            case "data":
                await response.data(wish["data"], title=text, view_hint=wish.get("hint", "JSON"))
            case "ask":
                answer = await response.ask_person(text, choices=wish.get("choices", ()), schema=wish.get("schema"))
                text = f"answered: {answer.text}"
            case "fetch":
                try:
                    text = (await self._files.fetch(text)).data.decode()
                except FetchError as error:
                    text = f"not fetched: {error.problem}"
            case "pay":
                try:
                    await session.run_approved("pay", self.pay, text, approvers="finance")
                except ApprovalError as error:
                    text = f"not paid: {error}"
                else:
                    text = "paid"
            case "hold":
                stream = await response.create_stream()
                await stream.write(text)
                await PageDesk.release.wait()
                await stream.write(" at last")
                await stream.close()
                return
        await response.markdown(text)

    async def pay(self, what: str) -> str:
        """Pay."""
        PageDesk.paid.append(what)
        return "paid"


class Secretive:
    """An agent to which only Ada has access."""

    manifest = AgentDefinition.simple("private", description="Is for Ada alone.")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        await response.markdown("a secret of the private agent")


@dataclass
class Visitor:
    """A person in the page: both secrets, and the address of the page."""

    url: str
    cookie: tuple[str, str] = ("", "")
    key: str = ""
    origin: str | None = None
    """The origin of the requests; by default that of the page."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def client(self) -> httpx.AsyncClient:
        """Return a client with what a browser of the person sends."""
        headers = {"Origin": self.url if self.origin is None else self.origin, "X-Page-Key": self.key, **self.headers}
        if self.cookie[1]:
            headers["Cookie"] = "=".join(self.cookie)
        given = {name: value for name, value in headers.items() if value}
        return httpx.AsyncClient(base_url=self.url, headers=given, timeout=TIMEOUT_S, trust_env=False, verify=_NO_TLS)

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """Send a request of the page."""
        async with self.client() as http:
            return await http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})

    async def ask(self, text: str, agent: str = DESK, **fields: Any) -> httpx.Response:
        """Send a message to an agent."""
        return await self.post("/chat/ask", agent=agent, text=text, **fields)

    @asynccontextmanager
    async def feed(self, *places: Sequence[Any]) -> AsyncIterator[OpenFeed]:
        """Open a feed."""
        wanted = json.dumps({"places": places or [[DESK, "", 40]]})
        headers = {"Content-Type": "application/json"}
        async with self.client() as http, http.stream("POST", "/chat/feed", content=wanted, headers=headers) as reply:
            yield OpenFeed(reply)

    async def turns(self, number: int, agent: str = DESK, thread: str = "") -> list[dict[str, Any]]:
        """Wait until a conversation has so many turns, and return them."""
        async with self.feed([agent, thread, 2000]) as feed:
            return (await feed.find_turns(number))[:number]


class OpenFeed:
    """A feed that is read, and what it has told."""

    def __init__(self, reply: httpx.Response) -> None:
        self.reply = reply
        self.states: list[dict[str, Any]] = []
        self._lines = reply.aiter_lines()

    def __aiter__(self) -> OpenFeed:
        return self

    async def __anext__(self) -> dict[str, Any]:
        async with asyncio.timeout(TIMEOUT_S):
            state: dict[str, Any] = json.loads(await anext(self._lines))
        self.states.append(state)
        return state

    async def find(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Wait for a state of a kind, with some fields."""
        async for state in self:
            if state["type"] == kind and all(state.get(name) == value for name, value in fields.items()):
                return state
        raise AssertionError(f"the feed has ended before {kind}: {self.states[-3:]}")

    async def find_part(self) -> dict[str, Any]:
        """Wait until an answer has grown, and return what is new of its first part."""
        while not (answer := await self.find("answer"))["parts"]:
            pass
        return dict(answer["parts"][0])

    async def find_turns(self, number: int) -> list[dict[str, Any]]:
        """Wait until so many turns are stored."""
        turns: dict[str, dict[str, Any]] = {}
        while len(turns) < number:
            turns |= {turn["id"]: turn for turn in (await self.find("turns"))["turns"]}
        return list(turns.values())

    async def find_question(self, agent: str = DESK) -> dict[str, Any]:
        """Wait for an open question, and return it."""
        while True:
            for one in (await self.find("agents"))["agents"]:
                if one["jid"] == agent and one["questions"]:
                    return dict(one["questions"][-1])

    async def read_end(self) -> None:
        """Read until the server ends the feed."""
        async for _ in self:
            pass


async def decide(visitor: Visitor, code: str, decision: str = "approve", text: str = "", agent: str = DESK) -> tuple[int, Any]:
    """Decide in the page. Return the status, and why it does not count; "" if it does."""
    reply = await visitor.post("/chat/answer", agent=agent, code=code, decision=decision, text=text)
    found = reply.json()
    return reply.status_code, found["error"]["message"] if "error" in found else "" if found["is_taken"] else found["text"]


class RunningPage(RunningPlatform):
    """A platform with the page: `desk` is for all, and `private` for Ada."""

    web: WebSettings

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path, web: Mapping[str, Any] | None = None, **settings: Any) -> AsyncIterator[Self]:
        """Run it on an embedded server."""
        agents = [
            {"jid": DESK, "agent": f"{__name__}:PageDesk"},
            {"jid": PRIVATE, "agent": f"{__name__}:Secretive", "access": {"allow": [ADA]}},
        ]
        file = directory / "platform.yaml"
        values = {
            "server": {"mode": "embedded"},
            "data_dir": str(directory / "data"),
            "conversation": {"max_interactions": 0},
            "agents": agents,
            "access": {"allow": ["*"], "groups": {"finance": [CAROL, DAVE]}},
            "web": {"port": find_free_ports(1)[0], **(web or {})},
            **settings,
        }
        file.write_text(json.dumps(values))
        async with Platform(load_settings(file, directory, {})) as platform:
            running = cls(platform)
            assert platform.settings.web is not None
            running.web = platform.settings.web
            yield running

    @property
    def url(self) -> str:
        """The public address."""
        return self.web.public_url

    @property
    def logins(self) -> LoginRepository:
        """The stored logins."""
        assert self.platform.database is not None
        return LoginRepository(self.platform.database)

    async def make_link(self, person: str) -> str:
        """Return the secret of a link."""
        return await self.logins.create_link(person, utc_now())

    def stranger(self) -> Visitor:
        """Return somebody who has opened the page and is not logged in."""
        return Visitor(self.url)

    async def log_in(self, person: str) -> Visitor:
        """Let a person use a link."""
        return await log_in(self.url, await self.make_link(person))


async def log_in(url: str, link: str) -> Visitor:
    """Let somebody use a link."""
    reply = await Visitor(url).post("/login", link=link)
    assert reply.status_code == 200, reply.text
    [cookie] = reply.cookies.items()
    return Visitor(url, cookie, reply.json()["key"])


def wish(do: str, **fields: Any) -> str:
    """Return a query for the desk."""
    return json.dumps({"do": do, **fields})
