"""The routes of the OpenAI-compatible door."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID, uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...domain.jid import jid_domain
from ...exceptions import StoreError
from ..agents import CallerQuestion, DoorAgent, DoorAgents
from ..authentication import caller_of
from ..caller import Caller
from ..channel import DoorReply
from ..files import store_files
from ..limits import read_json
from ..server import DoorRoutes
from ..streaming import EventStreamResponse, wait_while_connected
from .answers import Answer, Piece, show_question
from .chat import ChatWriter
from .conversations import Conversations, Place, derive_request_id, read_conversation_name
from .errors import AnswerError, find_error, not_readable, not_running, not_stored, paused, response_id
from .messages import UserMessage, digest_body, leave_out_documents, read_body, read_chat, read_response
from .responses import ResponseWriter, read_response_id
from .streams import COMMENT, END, KEEP_ALIVE_S, encode_event, read_with_pauses
from .tasks import answer_task

_DOOR = "openai"
_MAX_KEY_CHARACTERS = 255
_LARGE_BYTES = 65_536
"""The size from which on a body is parsed in a thread: one with a picture takes a tenth of a second."""
_CLIENT_GONE = 499
"""The status that nginx logs for a client that is gone. It is never received."""

Writer: TypeAlias = ChatWriter | ResponseWriter


def make_openai_routes(
    agents: DoorAgents, url: str, system_prompt: Literal["ignore", "refuse"] = "ignore", keep_alive_s: float = KEEP_ALIVE_S
) -> DoorRoutes:
    """Return the routes of the door. `url` is the public address of the server."""
    door = _OpenAIDoor(agents, url, system_prompt, keep_alive_s)
    routes: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("GET", "/v1/models", door.list_models),
        ("GET", "/v1/models/{model}", door.find_model),
        ("POST", "/v1/chat/completions", door.complete_chat),
        ("POST", "/v1/responses", door.create_response),
        ("GET", "/v1/responses/{response}", door.find_response),
        ("DELETE", "/v1/responses/{response}", door.delete_response),
        ("POST", "/v1/responses/{response}/cancel", door.cancel_response),
    ]
    return DoorRoutes(routes=tuple(Route(path, _answering(handler), methods=[method]) for method, path, handler in routes))


def _answering(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers errors in the form of OpenAI."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except AnswerError as error:
            return error.make_response()
        except ConnectionError:
            return not_running().make_response()
        except StoreError:
            return not_stored().make_response()

    return handle


@dataclass(slots=True)
class _Asked:
    """A request on its way to an agent."""

    agent: DoorAgent
    caller: Caller
    question: UserMessage
    conversations: Conversations
    place: Place
    reply: DoorReply
    note: str = ""
    """A text that ends the answer: what is wrong with the answer to a question."""
    answered: CallerQuestion | None = None
    """The question that the client has answered."""


class _OpenAIDoor:
    def __init__(self, agents: DoorAgents, url: str, system_prompt: str, keep_alive_s: float) -> None:
        self._agents = agents
        self._url = url
        self._refuses_system_prompts = system_prompt == "refuse"
        self._keep_alive_s = keep_alive_s

    # Models

    async def list_models(self, request: Request) -> Response:
        """List the agents that the key opens."""
        caller = caller_of(request)
        agents = self._agents.list_agents(_DOOR, caller)
        data = [self._describe_model(caller, agent) for agent in sorted(agents, key=lambda agent: agent.jid)]
        return JSONResponse({"object": "list", "data": data})

    async def find_model(self, request: Request) -> Response:
        """Describe one agent."""
        caller = caller_of(request)
        return JSONResponse(self._describe_model(caller, self._find_agent(caller, request.path_params["model"])))

    def _describe_model(self, caller: Caller, agent: DoorAgent) -> dict[str, Any]:
        name = agent.name if self._agents.find(_DOOR, caller, agent.name) is agent else agent.jid
        return {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": jid_domain(agent.jid),
            "name": agent.manifest.metadata.name,
        }

    def _find_agent(self, caller: Caller, name: object) -> DoorAgent:
        agent = self._agents.find(_DOOR, caller, name) if isinstance(name, str) else None
        if agent is None:
            given = (
                "there is no such model, or your key does not open it" if isinstance(name, str) else "`model` names no agent"
            )
            text = f"{given}; GET /v1/models lists those of your key"
            raise AnswerError(404, text, "model_not_found", param="model")
        return agent

    # Requests

    async def complete_chat(self, request: Request) -> Response:
        """Answer the last message of a chat."""
        body, question, digest = await _read(request, "chat", read_chat)
        caller = caller_of(request)
        agent = self._find_agent(caller, body.get("model"))
        if body.get("n") not in (None, 1):
            raise AnswerError(400, "an agent gives one answer: `n` must be 1", param="n")
        options = body.get("stream_options")
        includes_usage = isinstance(options, dict) and options.get("include_usage") is True
        request_id = self._choose_id(request, caller, agent)
        writer = ChatWriter(f"chatcmpl-{request_id.hex}", str(body["model"]), int(time.time()), includes_usage=includes_usage)
        if (task := answer_task(question)) is not None:
            return self._answer_task(task, writer, is_stream=body.get("stream") is True)
        name = read_conversation_name(dict(request.headers))
        asked = await self._ask(request, agent, question, request_id, digest, name=name)
        return await self._answer(request, asked, writer, is_stream=body.get("stream") is True)

    async def create_response(self, request: Request) -> Response:
        """Answer the input of a response."""
        body, question, digest = await _read(request, "responses", read_response)
        caller = caller_of(request)
        agent = self._find_agent(caller, body.get("model"))
        previous = self._read_previous(body)
        name = read_conversation_name(dict(request.headers), body.get("conversation"))
        request_id = self._choose_id(request, caller, agent)
        writer = ResponseWriter(request_id, str(body["model"]), int(time.time()), previous)
        is_stream = body.get("stream") is True
        if (task := answer_task(question)) is not None:
            return self._answer_task(task, writer, is_stream=is_stream)
        waits = is_stream or body.get("background") is not True
        asked = await self._ask(
            request, agent, question, request_id, digest, name=None if previous else name, previous=previous, waits=waits
        )
        if not waits:
            asked.reply.close()
            return JSONResponse(writer.write(Answer(), "in_progress"), headers=_headers(asked))
        return await self._answer(request, asked, writer, is_stream=is_stream)

    def _read_previous(self, body: dict[str, Any]) -> UUID | None:
        given = body.get("previous_response_id")
        if given is None:
            return None
        if body.get("conversation") is not None:
            raise AnswerError(400, "send `conversation` or `previous_response_id`, not both", param="previous_response_id")
        return read_response_id(given) or UUID(int=0)

    def _choose_id(self, request: Request, caller: Caller, agent: DoorAgent) -> UUID:
        key = request.headers.get("idempotency-key")
        if key is None:
            return uuid4()
        if not key or len(key) > _MAX_KEY_CHARACTERS:
            raise AnswerError(400, f"an Idempotency-Key has 1 to {_MAX_KEY_CHARACTERS} characters", param="Idempotency-Key")
        return derive_request_id(caller, agent.jid, key)

    async def _ask(
        self,
        request: Request,
        agent: DoorAgent,
        question: UserMessage,
        request_id: UUID,
        body: bytes,
        *,
        name: str | None = None,
        previous: UUID | None = None,
        waits: bool = True,
    ) -> _Asked:
        """Pass a question to the agent, and wait until it is stored. Raise AnswerError if it is refused.

        `waits` tells that the client waits for the answer.
        """
        if question.system_prompt and self._refuses_system_prompts:
            raise AnswerError(
                400, "system prompts are refused here, since the agent has its own; send messages without one", "system_prompt"
            )
        if not agent.backend.is_open:
            raise not_running()
        caller = caller_of(request)
        # Nobody would read the answer to a new request when a pause ends.
        is_paused = await agent.backend.is_paused()
        is_repeated = is_paused and await agent.requests.find_state(caller, request_id) is not None
        if waits and is_paused and not is_repeated:
            raise paused()
        conversations = Conversations(agent, caller)
        place = await conversations.enter(question, request_id, body, name=name, previous=previous)
        if place.is_answer:
            return await self._answer_question(agent, caller, question, conversations, place)
        if is_repeated and (earlier := await agent.backend.fetch(caller, request_id)) is not None:
            return _Asked(agent, caller, question, conversations, place, earlier)
        attachments = [
            *question.links,
            *await store_files(agent.repository.callers, caller, request_id, question.files, self._url),
        ]
        payload: dict[str, Any] = {"query": question.text or "\n".join(each["url"] for each in attachments)}
        if attachments:
            payload["attachments"] = attachments
        reply = await agent.ask(caller, payload, request_id=request_id, thread=place.thread)
        asked = _Asked(agent, caller, question, conversations, place, reply)
        try:
            if reply.stored is None:
                await self._raise_refusal(asked)
            else:
                await reply.stored
        except BaseException:
            reply.close()
            raise
        return asked

    async def _raise_refusal(self, asked: _Asked) -> None:
        """Raise the error for a request that was not stored, and forget it unless it repeats one that was."""
        async for event in asked.reply:
            error = find_error(event, asked.place.request_id)
            if error is not None:
                if asked.place.is_new:
                    await asked.conversations.leave(asked.place)
                    if asked.question.files:
                        await asked.agent.repository.callers.delete_files(asked.caller.address, asked.place.request_id)
                raise error
        raise not_stored()

    async def _answer_question(
        self, agent: DoorAgent, caller: Caller, question: UserMessage, conversations: Conversations, place: Place
    ) -> _Asked:
        """Take a text as the answer to a question of the agent, and read on in the reply that waits for it."""
        note = ""
        answered = await agent.find_question(caller, place.target, place.question) if place.question else None
        if answered is not None and answered.is_open:
            outcome = await agent.answer(caller, answered, leave_out_documents(question.text))
            if outcome.outcome == "unsuitable":
                await conversations.leave(place)
                note, answered = f"This does not fit the question: {outcome.problem}", None
        reply = await agent.backend.fetch(caller, place.target)
        if reply is None:
            raise AnswerError(404, "the request that has asked this is not stored any more")
        return _Asked(agent, caller, question, conversations, place, reply, note, answered)

    # Answers

    def _answer_task(self, text: str, writer: Writer, *, is_stream: bool) -> Response:
        answer = Answer()
        pieces = answer.add_text(text)
        if not is_stream:
            return JSONResponse(writer.write(answer))

        async def write() -> AsyncGenerator[bytes, None]:
            for data in (*writer.begin(), *writer.write_pieces(pieces), *writer.end(answer)):
                yield _encode(writer, data)
            if isinstance(writer, ChatWriter):
                yield END

        return EventStreamResponse(write())

    async def _answer(self, request: Request, asked: _Asked, writer: Writer, *, is_stream: bool) -> Response:
        if is_stream:
            parts = self._write_stream(asked, writer)
            return EventStreamResponse(parts, headers=_headers(asked), on_end=asked.reply.close)
        answer = Answer(asked.answered)
        try:
            if not await wait_while_connected(request, self._read_all(asked, answer)):
                return Response(status_code=_CLIENT_GONE)
        finally:
            asked.reply.close()
        return JSONResponse(writer.write(answer), headers=_headers(asked))

    async def _read_all(self, asked: _Asked, answer: Answer) -> None:
        """Read the whole reply into an answer. Raise AnswerError if it ends otherwise."""
        async for event in asked.reply:
            answer.add(event)
        await self._finish(asked, answer)

    async def _write_stream(self, asked: _Asked, writer: Writer) -> AsyncGenerator[bytes, None]:
        answer = Answer(asked.answered)
        for data in writer.begin():
            yield _encode(writer, data)
        try:
            async for event in read_with_pauses(asked.reply, self._keep_alive_s):
                if event is None:
                    yield COMMENT
                    continue
                for data in writer.write_pieces(answer.add(event)):
                    yield _encode(writer, data)
            sent = len(answer.delivered)
            await self._finish(asked, answer)
            rest = answer.delivered[sent:]
            for data in (*writer.write_pieces([Piece("text", rest)] if rest else []), *writer.end(answer)):
                yield _encode(writer, data)
        except (AnswerError, ConnectionError, StoreError) as caught:
            error = caught if isinstance(caught, AnswerError) else not_stored()
            if isinstance(writer, ChatWriter):
                yield encode_event({"error": error.body})
            else:
                for data in writer.fail(error):
                    yield _encode(writer, data)
            return
        if isinstance(writer, ChatWriter):
            yield END

    async def _finish(self, asked: _Asked, answer: Answer) -> None:
        """Complete an answer whose reply has ended. Raise AnswerError if the request has failed."""
        question, target = None, asked.place.target
        while answer.last is not None and answer.last.type == "request.parked":
            question = await asked.conversations.find_question(target)
            if question is not None or await asked.agent.waits_for_others(asked.caller, target):
                break
            # Its question was answered meanwhile by another request, so it goes on.
            if (reply := await asked.agent.backend.fetch(asked.caller, target)) is None:
                break
            with closing(reply):
                async for event in reply:
                    answer.add(event)
        if answer.last is None:
            raise not_running()
        if answer.last.type == "request.refused" and asked.reply.stored is None:  # the fetch is refused, and not the request
            raise not_readable(answer.last)
        if (error := find_error(answer.last, asked.place.request_id)) is not None:
            raise error
        if answer.last.type == "request.parked":
            if asked.note:
                answer.add_text(asked.note)
            shown = _describe_wait(asked.place.request_id) if question is None else show_question(question)
            if shown not in answer.text:
                answer.add_text(shown)
        await asked.conversations.remember_history(asked.place, asked.question, answer.delivered, question)

    # Responses that are there already

    async def find_response(self, request: Request) -> Response:
        """Return a response as it is now, or with `?stream=true` its events until its end."""
        if "starting_after" in request.query_params:
            raise AnswerError(400, "`starting_after` is not supported; the stream begins anew", param="starting_after")
        found = await self._find_asked(request)
        request_id = found.place.request_id
        writer = ResponseWriter(request_id, self._describe_model(found.caller, found.agent)["id"], int(time.time()))
        if request.query_params.get("stream") == "true":
            return await self._answer(request, found, writer, is_stream=True)
        try:
            state = await found.agent.requests.find_state(found.caller, found.place.target)
            waits = state == "waiting" and await found.conversations.find_question(found.place.target) is None
            if state == "running" or waits:
                return JSONResponse(writer.write(Answer(), "in_progress"), headers=_headers(found))
            if state == "closed":
                return JSONResponse(writer.write(Answer(), "cancelled"), headers=_headers(found))
            answer = Answer()
            try:
                await self._read_all(found, answer)
            except AnswerError as error:
                if error.code == "interrupted":
                    raise
                return JSONResponse(writer.write(answer, "failed", error), headers=_headers(found))
        finally:
            found.reply.close()
        return JSONResponse(writer.write(answer), headers=_headers(found))

    async def delete_response(self, request: Request) -> Response:
        """Cancel a response that is not answered, and forget its id. Its turn stays in the conversation."""
        found = await self._find_asked(request)
        found.reply.close()
        await found.agent.requests.cancel(found.caller, found.place.target)
        await found.conversations.leave(found.place)
        return JSONResponse({"id": response_id(found.place.request_id), "object": "response", "deleted": True})

    async def cancel_response(self, request: Request) -> Response:
        """Cancel a response that is not answered."""
        found = await self._find_asked(request)
        found.reply.close()
        writer = ResponseWriter(found.place.request_id, self._describe_model(found.caller, found.agent)["id"], int(time.time()))
        if not await found.agent.requests.cancel(found.caller, found.place.target):
            raise AnswerError(400, "the response is complete, and cannot be cancelled")
        return JSONResponse(writer.write(Answer(), "cancelled"), headers=_headers(found))

    async def _find_asked(self, request: Request) -> _Asked:
        """Return the request of a response of the caller. Raise AnswerError without one."""
        caller = caller_of(request)
        request_id = read_response_id(request.path_params["response"])
        for agent in self._agents.list_agents(_DOOR, caller) if request_id is not None else []:
            conversations = Conversations(agent, caller)
            assert request_id is not None
            place = await conversations.find(request_id)
            reply = None if place is None else await agent.backend.fetch(caller, place.target)
            if place is not None and reply is not None:
                return _Asked(agent, caller, UserMessage(), conversations, place, reply)
        raise AnswerError(404, "there is no response with this id, or it is older than seven days", "response_not_found")


async def _read(
    request: Request, kind: str, read_message: Callable[[dict[str, Any]], UserMessage]
) -> tuple[dict[str, Any], UserMessage, bytes]:
    """Return the body of a request, its message, and the digest of what it asks. Raise HttpError."""
    data, _ = await read_json(request.scope, request.receive)

    def parse() -> tuple[dict[str, Any], UserMessage, bytes]:
        body = read_body(data)
        return body, read_message(body), digest_body(kind, body)

    return parse() if len(data) < _LARGE_BYTES else await asyncio.to_thread(parse)


def _headers(asked: _Asked) -> dict[str, str]:
    return {"x-request-id": str(asked.place.request_id)}


def _encode(writer: Writer, data: dict[str, Any]) -> bytes:
    return encode_event(data, None if isinstance(writer, ChatWriter) else data["type"])


def _describe_wait(request_id: UUID) -> str:
    return (
        "This waits for the answer of another person. Get the whole answer then, for seven days: it is that of the response"
        f" {response_id(request_id)} (request {request_id})."
    )
