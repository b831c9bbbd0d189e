"""The routes of the page: its files, the login, the feed, and what a person sends. Each protects itself.

A session has two secrets. One is a cookie, which scripts cannot read, and which other programs on the same host get, whatever
their port. The other one is stored by the page, and sent as a header: only pages of this very address have it. All that reads
content or changes something is a POST that has both, and the origin of this server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from ...config import PageSettings, WebSettings, describe_mistakes, format_key
from ...contracts.times import utc_now
from ...domain.channel_kinds import PAGE_CHANNEL
from ...domain.texts.translation import LANGUAGE, N_, is_translated, translate
from ...exceptions import ConfigError, ForbiddenError
from ...operations.initiative.questions import answer_question, decide_approval
from ...runtime import describe_outcome
from ...storage import SESSION_LIFETIME, Database, LoginRepository, NewFile, PageSession, load_titles
from ..addresses import origin_of, split_host
from ..agents import DoorAgent, DoorAgents
from ..authentication import WrongSecrets
from ..caller import Caller
from ..errors import HttpError
from ..files import FILES_PATH, store_files
from ..limits import check_json, check_payload
from ..server import DoorRoutes
from ..streaming import EventStreamResponse
from .feed import Feed, GrowingAnswer, Hub, ShownConversation, describe_conversation, list_allowed, make_call
from .markdown import ELEMENTS

_PAGE = Path(__file__).parent / "chat.html"
_STATIC = Path(__file__).parent / "static"
_FILES = frozenset(_STATIC.iterdir())
_WORDS = re.compile(r"""(\bt\('|(?:aria-label|placeholder|title)="|>(?=[A-Z]))([^'"<>\n]+)""")
"""The texts for people in the files of the page, each after what stands before it."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_NO_LOGIN = N_(
    "You need a link, which works once within two minutes. Write /web to an agent in your chat app, or run the command"
    " spade-coreason web on the machine of the platform."
)
_KEY_HEADER = "x-page-key"
_KEY_CHARACTERS = 43
"""The characters of each of the two secrets of a session, which are 256 random bits."""
_MAX_FEEDS = 8
_MAX_FOUND = 30
_BUSY_S = 5.0

Thread = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f]*$")]


class UploadedFile(BaseModel):
    """A file that was stored for a message."""

    url: str
    name: str
    type: str
    size: int
    description: None = None


class Sent(BaseModel):
    """The body of a request of the page: each route reads a part of it."""

    link: str = ""
    agent: str = ""
    thread: Thread = ""
    id: UUID = Field(default_factory=uuid4)
    text: str = ""
    files: list[UploadedFile] = Field([], max_length=20)
    code: str = Field("", max_length=40)
    decision: Literal["", "approve", "deny"] = ""
    places: list[tuple[str, Thread, Annotated[int, Field(ge=1, le=2000)]]] = Field([], max_length=20)


class Visit(NamedTuple):
    """A request of a person who is logged in."""

    login: PageSession
    caller: Caller
    agents: Mapping[str, DoorAgent]
    """All agents of the page, by their bare JIDs."""
    session: str
    """The secret of the session."""


Handler = Callable[[Visit, Sent], Awaitable[Any]]


def make_page_routes(agents: DoorAgents, settings: WebSettings, page: PageSettings) -> DoorRoutes:
    """Return the routes of the page, for the agents behind it."""
    made = _PageRoutes(agents, settings, page)
    handlers = {
        "/chat/me": made.describe,
        "/chat/feed": made.open_feed,
        "/chat/ask": made.ask,
        "/chat/cancel": made.cancel,
        "/chat/answer": made.answer,
        "/chat/search": made.search,
        "/chat/commands": made.list_commands,
        "/logout": made.log_out,
    }
    return DoorRoutes(
        open_routes=(
            Route("/", made.send_page),
            Route("/login", made.send_page),
            Route("/static/{name}", made.send_static),
            Route("/login", made.log_in, methods=["POST"]),
            Route("/login/name", made.name_person, methods=["POST"]),
            Route("/chat/file/{agent}/{id:uuid}/{name}", made.store_file, methods=["POST"]),
            *(Route(path, made.guard(handler), methods=["POST"]) for path, handler in handlers.items()),
        ),
        stop=made.hub.stop,
    )


class _PageRoutes:
    def __init__(self, agents: DoorAgents, settings: WebSettings, page: PageSettings) -> None:
        self._agents = agents
        self._url = settings.public_url
        self._limits = settings.limits
        self._approval_age = timedelta(hours=page.approvals_h)
        address = urlsplit(self._url)
        self._is_tls = address.scheme == "https"
        # A cookie is for all ports of a host: two platforms of one machine need two names.
        self._cookie = "__Host-page" if self._is_tls else f"page-{address.port or 80}"
        self._wrong = WrongSecrets("link")
        self._open_feeds = Counter[str]()
        self.hub = Hub()
        self._page = _PAGE.read_text("utf-8")
        self._words = [word for _, word in _WORDS.findall((_STATIC / "chat.js").read_text("utf-8"))]

    async def send_page(self, request: Request) -> Response:
        """Send the page in the language of the browser. It has one address, because a browser stores its secret for that."""
        wanted = urlsplit(self._url)
        if split_host(request.headers.get("host", ""), wanted.scheme) != split_host(wanted.netloc, wanted.scheme):
            return RedirectResponse(self._url + request.url.path)
        language = _use_language(request)
        page = _WORDS.sub(lambda found: found[1] + escape(translate(found[2])), self._page)
        given = {"words": {word: translate(word) for word in self._words}, "elements": list(ELEMENTS)}
        page = page.replace("{language}", escape(language or "en")).replace("{given}", escape(to_json(given).decode()))
        return HTMLResponse(page, headers=_HEADERS)

    async def send_static(self, request: Request) -> Response:
        """Send a file of the page."""
        if (path := _STATIC / request.path_params["name"]) not in _FILES:
            raise HttpError(404, "there is no such file")
        return FileResponse(path)

    # The login

    @property
    def _database(self) -> Database:
        assert self._agents.host is not None
        assert self._agents.host.database is not None
        return self._agents.host.database

    @property
    def _logins(self) -> LoginRepository:
        return LoginRepository(self._database)

    async def name_person(self, request: Request) -> Response:
        """Name the person for whom a link is, without using it: a preview of the link must not use it up."""
        return _answer({"account": await self._look_up(request, self._logins.find_person)})

    async def log_in(self, request: Request) -> Response:
        """Use a link, and begin a session."""
        secret = await self._look_up(request, self._logins.redeem)
        response = _answer({"key": secret[_KEY_CHARACTERS:]})
        age_s, cookie = int(SESSION_LIFETIME.total_seconds()), secret[:_KEY_CHARACTERS]
        response.set_cookie(self._cookie, cookie, age_s, secure=self._is_tls, httponly=True, samesite="strict")
        return response

    async def _look_up(self, request: Request, find: Callable[[str, datetime], Awaitable[str | None]]) -> str:
        """Return the person or secret that `find` has for the link of a request. Raise HttpError without one."""
        if (found := await find((await self._read(request)).link, utc_now())) is None:
            wait_s = self._wrong.count(request.client.host if request.client else "")
            text = translate("This link was used, or is older than two minutes.")
            raise HttpError(403 if wait_s is None else 429, f"{text} {translate(_NO_LOGIN)}", retry_after_s=wait_s)
        return found

    async def _visit(self, request: Request) -> Visit:
        cookie, key = request.cookies.get(self._cookie, ""), request.headers.get(_KEY_HEADER, "")
        are_complete = len(cookie) == len(key) == _KEY_CHARACTERS
        login = await self._logins.find(cookie + key, utc_now()) if are_complete else None
        if login is None:
            raise HttpError(401, translate(_NO_LOGIN))
        request.scope["state"]["slot"].show_key(login.person)
        agents = {agent.jid: agent for agent in self._agents.list_agents(PAGE_CHANNEL)}
        caller = Caller(login.person, login.person, "", frozenset(agents), names_users=False, is_person=True)
        return Visit(login, caller, agents, cookie + key)

    def guard(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler of requests of people who are logged in. What it returns is sent as JSON."""

        async def handle(request: Request) -> Response:
            sent, visit = await self._read(request), await self._visit(request)
            try:
                return _answer(await handler(visit, sent))
            except (ForbiddenError, ConfigError) as error:
                raise HttpError(403, str(error)) from error
            except ConnectionError as error:
                text = translate("The agent cannot be reached at the moment. Try again in a moment.")
                raise HttpError(503, text, retry_after_s=_BUSY_S) from error

        return handle

    async def _read(self, request: Request) -> Sent:
        self._check_origin(request)
        body = await request.body()
        check_json(body, self._limits)
        try:
            return Sent.model_validate_json(body or b"{}")
        except ValidationError as error:
            key, problem = next(iter(describe_mistakes(error, Sent).items()))
            raise HttpError(400, f"reload the page: it has sent something wrong ({format_key(key)}: {problem})") from error

    def _check_origin(self, request: Request) -> None:
        """Refuse what the page of another site sends. The setting `cors_origins` is for doors, and not for the page."""
        _use_language(request)
        if request.headers.get("origin") != origin_of(self._url):
            raise HttpError(403, f"only the page itself can send this; open {self._url}")

    # What a person does

    async def _find(self, visit: Visit, name: str) -> DoorAgent:
        agent = visit.agents.get(name)
        if agent is None or not await agent.requests.is_allowed(visit.caller):
            raise HttpError(404, translate("There is no such agent, or you have no access to it."))
        return agent

    async def describe(self, visit: Visit, sent: Sent) -> dict[str, Any]:
        """Return the account."""
        return {"account": visit.login.person}

    async def log_out(self, visit: Visit, sent: Sent) -> None:
        """End the session."""
        await self._logins.end(visit.session)

    async def open_feed(self, visit: Visit, sent: Sent) -> Response:
        """Send the states for the page until it is closed."""
        person = visit.login.person
        if self._open_feeds[person] >= _MAX_FEEDS:
            text = translate("You have opened this page in too many browsers. Close one.")
            raise HttpError(429, text, retry_after_s=_BUSY_S)
        places = [ShownConversation(*each) for each in {each[:2]: each for each in sent.places}.values()]
        feed = Feed(self.hub, visit.agents, visit.caller, visit.session, places, f"{self._url}{FILES_PATH}/")
        self._open_feeds[person] += 1
        return EventStreamResponse(feed.lines(), on_end=partial(self._open_feeds.subtract, [person]))

    async def store_file(self, request: Request) -> Response:
        """Store a file, which a message with the same id may have then."""
        self._check_origin(request)
        visit, given = await self._visit(request), request.path_params
        agent = await self._find(visit, given["agent"])
        file = NewFile(given["name"][:200], request.headers.get("content-type", "")[:100], await request.body())
        [stored] = await store_files(agent.repository.callers, visit.caller, given["id"], [file], self._url)
        return _answer(stored)

    async def ask(self, visit: Visit, sent: Sent) -> dict[str, Any]:
        """Put a message in. Once this is answered, it is stored. The same id with the same content is the same message."""
        agent, files = await self._find(visit, sent.agent), [file.model_dump() for file in sent.files]
        if any(not file["url"].startswith(f"{self._url}{FILES_PATH}/") for file in files):
            raise HttpError(400, "a file was not stored here; add it again")
        payload: dict[str, Any] = {"query": sent.text or "\n".join(file["url"] for file in files)}
        payload |= {"attachments": files} if files else {}
        check_payload(payload)
        metadata = {"language_tag": tag} if (tag := LANGUAGE.get()) else {}
        thread = sent.thread or None
        reply = await agent.ask(visit.caller, payload, request_id=sent.id, thread=thread, metadata=metadata, waits=True)
        try:
            if reply.stored is None:
                refusal = (await anext(reply)).data
                raise HttpError(int(refusal.get("code", 503)), str(refusal.get("message")), retry_after_s=_BUSY_S)
            await reply.stored
            if not await agent.is_same(visit.caller, sent.id, payload):
                raise HttpError(400, "the id of this message is that of another one; send it with a new id")
        except BaseException:
            reply.close()
            raise
        at = utc_now().isoformat()
        self.hub.follow(GrowingAnswer(reply, agent.jid, sent.thread, payload, at))
        return {"at": at}

    async def cancel(self, visit: Visit, sent: Sent) -> bool:
        """Cancel a message that is not answered. Return False if there is none."""
        return await (await self._find(visit, sent.agent)).requests.cancel(visit.caller, sent.id)

    async def answer(self, visit: Visit, sent: Sent) -> dict[str, Any]:
        """Answer a question, or decide about a call. Return whether it counts, and a sentence for the person."""
        agent, person = await self._find(visit, sent.agent), visit.login.person
        call, own = make_call(agent, visit.caller), {"agent": agent.jid, "person": person, "code": sent.code}
        if not sent.decision:
            found = await answer_question(call, answer_question.read_arguments({**own, "text": sent.text}))
        elif utc_now() >= visit.login.created_at + self._approval_age:
            raise HttpError(403, translate("Your login is too old to decide this. Log in with a fresh link."))
        else:
            decision = {**own, "is_approved": sent.decision == "approve", "reason": sent.text}
            found = await decide_approval(call, decide_approval.read_arguments(decision))
        self.hub.wake(person)
        return {"is_taken": found.outcome == "taken", "text": describe_outcome(found, person, sent.decision).text}

    async def search(self, visit: Visit, sent: Sent) -> list[dict[str, Any]]:
        """Return the conversations in which a text stands."""
        own, person = await list_allowed(visit.agents.values(), visit.caller), visit.login.person
        found = await load_titles(self._database, person, list(own), _MAX_FOUND, sent.text[:200].strip())
        return [describe_conversation(each, person) for each in found]

    async def list_commands(self, visit: Visit, sent: Sent) -> list[tuple[str, str]]:
        """Return the commands that the person may send to an agent, with what they do."""
        return await (await self._find(visit, sent.agent)).requests.list_commands(visit.caller, LANGUAGE.get())


def _use_language(request: Request) -> str | None:
    """Use the language of the browser in this task, also for a feed. Return its tag; None for English."""
    tag = request.headers.get("accept-language", "").partition(",")[0].partition(";")[0].strip()
    LANGUAGE.set(tag if is_translated(tag) else None)
    return LANGUAGE.get()


def _answer(found: Any) -> Response:
    return found if isinstance(found, Response) else Response(to_json(found), media_type="application/json")
