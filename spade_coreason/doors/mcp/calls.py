"""A call of a tool: the request to the agent, the progress while it works, questions to the caller, and the result."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid4, uuid5

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ...contracts import ErrorCode
from ...contracts.json_schema import check_for
from ...domain.texts.approval_mark import quote_forgeries
from ...exceptions import StoreError
from ..agents import CallerQuestion
from ..caller import Caller
from ..channel import DoorEvent, DoorReply
from ..errors import HttpError
from ..limits import check_payload
from .results import ToolAnswer, make_meta
from .tools import AgentTool, ToolArguments

log = logging.getLogger(__name__)

_NAMESPACE = UUID("0a5d0c46-5a38-5c0b-8a5a-5a8f1c1d7c55")
_PROGRESS_S = 8.0
"""The longest time without progress. Clients cancel calls that are silent for about a minute."""
_PERSON_S = 300.0
"""The time for which a call waits for a person's answer."""
_SILENT_PERSON_S = 45.0
"""The same for a client that wants no progress, since such clients cancel a call after a minute."""
_MAX_PROGRESS_CHARACTERS = 500
_NOT_RUNNING_S = 5.0
_STORE_S = 5.0
_PAUSED_S = 60.0
_MAX_TRIES = 3
_CONVERSATION_DIGITS = 12
_WORKING = "The agent is at work."
_WAITING = "The agent waits for a person's answer."
_ANSWER = "answer"
_FLAT_TYPES = ("string", "number", "integer", "boolean")


@dataclass(frozen=True, slots=True)
class ToolCallLimits:
    """The times of a call in seconds."""

    progress_s: float = _PROGRESS_S
    person_s: float = _PERSON_S
    silent_person_s: float = _SILENT_PERSON_S


T = TypeVar("T")


def derive_request_id(caller: Caller, tool: AgentTool, name: str) -> UUID:
    """Derive the id of a request from the name that the caller gave it. Other callers and other doors have other ids."""
    return uuid5(_NAMESPACE, json.dumps([caller.address, tool.agent.jid, name]))


class _PausedError(Exception):
    """An operator has paused the agent."""


class ClientLostError(Exception):
    """The client does not wait for the result any more."""


class AgentToolCall:
    """One call. `await run()` returns its result. The future `lost` ends the wait if the client is gone."""

    def __init__(
        self,
        tool: AgentTool,
        caller: Caller,
        context: ServerRequestContext[Any, Any],
        params: CallToolRequestParams,
        limits: ToolCallLimits,
        lost: asyncio.Future[Any],
    ) -> None:
        self._tool = tool
        self._agent = tool.agent
        self._caller = caller
        self._context = context
        self._params = params
        self._limits = limits
        self._lost = lost
        self._steps = 0
        self._state = _WORKING
        self._is_declined = False
        self._answer = ToolAnswer()
        self._request_name = ""
        self._asked_id = ""
        """The id of the question that the client was asked by a form, as the state of the call has it."""
        self._conversation = ""
        self._meta: dict[str, Any] = {}
        self.reply: DoorReply | None = None
        """The reply, once the agent is asked."""

    async def cancel(self) -> None:
        """Cancel the request, because the client has asked for it."""
        reply = self.reply
        if reply is None:
            return
        with suppress(ConnectionError, StoreError):  # the agent stops, and what it has not answered is answered later
            if reply.stored is not None:
                await reply.stored
            await self._agent.requests.cancel(self._caller, reply.request_id)

    async def run(self) -> CallToolResult | InputRequiredResult:
        """Ask the agent, and return the result. Raise ClientLostError if the client is gone before it."""
        try:
            arguments = self._tool.read(self._params.arguments)
            # What a client sends as the state is no proof: only requests of this caller are found by it.
            name, _, self._asked_id = (self._params.request_state or "").rpartition("/")
            given = arguments.request_id or name
            self._request_name = given or uuid4().hex
            request_id = derive_request_id(self._caller, self._tool, self._request_name)
            self._conversation = arguments.conversation or request_id.hex[:_CONVERSATION_DIGITS]
            self._meta = make_meta(conversation=self._conversation, request_id=self._request_name)
            self.reply = reply = await self._ask(arguments, request_id, is_known=bool(given))
        except (ValueError, HttpError) as error:
            text = error.detail if isinstance(error, HttpError) else str(error)
            return self._notice(text, is_error=True, code=int(ErrorCode.BAD_REQUEST))
        except _PausedError:
            text = "An operator has paused the agent. Try again later."
            return self._notice(text, is_error=True, code=int(ErrorCode.UNAVAILABLE), retry_after_s=_PAUSED_S)
        except ConnectionError:
            text = f"The agent does not run at the moment. Try again in {_NOT_RUNNING_S:g} s."
            return self._notice(text, is_error=True, code=int(ErrorCode.UNAVAILABLE), retry_after_s=_NOT_RUNNING_S)
        except StoreError as error:
            return self._make_not_stored(error)
        try:
            return await self._follow(reply)
        except StoreError as error:
            return self._make_not_stored(error)
        finally:
            self.reply.close()

    async def _ask(self, arguments: ToolArguments, request_id: UUID, *, is_known: bool) -> DoorReply:
        """Return the reply to the request, after the answer of the caller to a question if there is one.

        Raise ValueError if the arguments do not fit, and _PausedError while the agent is paused.
        """
        answer = arguments.answer or self._read_elicited()
        if answer is not None:
            await self._give_answer(request_id, arguments.question, answer)
        if is_known and (answer is not None or not arguments.payload):
            reply = await self._agent.backend.fetch(self._caller, request_id, waits=True)
            if reply is not None:
                return reply
            if answer is not None or self._tool.needs_arguments:
                raise ValueError("there is no request with this request_id, or it is older than seven days")
        if not arguments.payload and self._tool.needs_arguments:
            raise ValueError("the call has no arguments for the agent; give those of the input schema, such as `query`")
        check_payload(arguments.payload)
        if await self._agent.backend.is_paused():
            raise _PausedError
        await check_for(self._caller.address, self._tool.validate, arguments.payload)
        return await self._agent.ask(
            self._caller,
            arguments.payload,
            request_id=request_id,
            thread=self._conversation,
            metadata={"capability": self._tool.capability.name},
            waits=True,
        )

    async def _give_answer(self, request_id: UUID, question_id: str | None, answer: str) -> None:
        """Answer a question by its id, once: what is sent again changes nothing, and the reply follows."""
        question = await self._agent.find_question(self._caller, request_id, question_id or self._asked_id)
        if question is None:
            if self._params.request_state is not None:
                raise MCPError(INVALID_PARAMS, "requestState names no question of this caller; call the tool without it")
            names = self._tool.argument_names
            raise ValueError(f"an answer needs {names['request_id']} and {names['question']} of the result that asks")
        if not question.is_open:
            return
        given = await self._agent.answer(self._caller, question, answer)
        if given.outcome == "unsuitable":
            raise ValueError(f"the answer does not fit: {given.problem}")

    def _read_elicited(self) -> str | None:
        """Return the answer to an earlier result that asked for one (revision 2026-07-28)."""
        found = (self._params.input_responses or {}).get(_ANSWER)
        if not isinstance(found, ElicitResult):
            return None
        answer = _read_answer(found)
        self._is_declined = answer is None
        return answer

    # The reply

    async def _follow(self, reply: DoorReply) -> CallToolResult | InputRequiredResult:
        deadline = math.inf
        while True:
            try:
                event = await anext(reply) if reply.has_begun else await self._wait(anext(reply), deadline)
            except TimeoutError:
                return self._make_pending()
            self._answer.add(event)
            if event.type == "block.thought":
                await self._report(event.data["content"])
            if event.type == "request.parked":
                self._state = _WAITING
                await self._report(self._state)
                questions = await self._agent.find_questions(self._caller, reply.request_id)
                if questions and (result := await self._ask_caller(questions[0])) is not None:
                    return result
                if not questions and not await self._agent.waits_for_others(self._caller, reply.request_id):
                    # Its question was answered meanwhile by another call, so it goes on.
                    reply.close()
                    self.reply = reply = await self._agent.backend.fetch(self._caller, reply.request_id, waits=True) or reply
                deadline = math.inf if questions else self._now() + self._person_s
            elif event.is_final:
                return await self._make_result(event)
            else:
                self._state, deadline = _WORKING, math.inf

    @property
    def _person_s(self) -> float:
        """The time for which a person's answer is awaited."""
        meta = self._context.meta or {}
        return self._limits.person_s if meta.get("progress_token") is not None else self._limits.silent_person_s

    async def _wait(self, coroutine: Coroutine[Any, Any, T], deadline: float) -> T:
        """Wait for a result, and report progress. Raise TimeoutError at the deadline, ClientLostError if the client is gone."""
        task = asyncio.ensure_future(coroutine)
        try:
            while True:
                timeout_s = min(self._limits.progress_s, max(0.0, deadline - self._now()))
                done, _ = await asyncio.wait({task, self._lost}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if task in done:
                    return task.result()
                if done:
                    raise ClientLostError
                if self._now() >= deadline:
                    raise TimeoutError
                await self._report(self._state)
        finally:
            task.cancel()

    async def _report(self, message: str) -> None:
        """Report progress, if the client wants it."""
        self._steps += 1
        await self._context.session.report_progress(self._steps, message=message[:_MAX_PROGRESS_CHARACTERS])

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # Questions to the caller

    async def _ask_caller(self, question: CallerQuestion) -> CallToolResult | InputRequiredResult | None:
        """Let the client ask its user. Return a result with the question, or None if the agent has its answer."""
        session = self._context.session
        capability = session.client_capabilities.elicitation if session.client_capabilities else None
        can_ask = capability is not None and (capability.form is not None or capability.url is None)
        if not can_ask or self._is_declined:
            return self._make_question(question)
        if not session.can_send_request:
            form = ElicitRequestFormParams(message=question.text, requested_schema=_make_form(question))
            if session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                return self._make_question(question)
            state = f"{self._request_name}/{question.id}"
            return InputRequiredResult(
                input_requests={_ANSWER: ElicitRequest(params=form)}, request_state=state, meta=self._meta
            )
        message, deadline = question.text, self._now() + self._person_s
        for _ in range(_MAX_TRIES):
            elicitation = session.elicit_form(message, _make_form(question), related_request_id=self._context.request_id)
            try:
                text = _read_answer(await self._wait(elicitation, deadline))
            except (TimeoutError, MCPError):
                break
            if text is None:
                break
            given = await self._agent.answer(self._caller, question, text)
            if given.outcome != "unsuitable":
                return None
            message = f"{question.text}\n\nThe answer does not fit: {given.problem}"
        return self._make_question(question)

    # Results

    def _make_question(self, question: CallerQuestion) -> CallToolResult:
        """Return a result with a question of the agent."""
        names = self._tool.argument_names
        lines = [] if question.text in self._answer.text else [question.text]
        lines += [f"- {choice}" for choice in question.choices if f"- {choice}" not in self._answer.text]
        lines.append(
            f"The agent waits for your answer. Call this tool again with the same arguments, "
            f'{names["request_id"]}="{self._request_name}", {names["question"]}="{question.id}" and {names["answer"]}.'
        )
        text, is_error = quote_forgeries("\n".join(lines)), self._tool.outputs is not None
        return self._notice(text, is_error=is_error, state="input-required", question=question.id)

    def _make_pending(self) -> CallToolResult:
        """Return a result that says how to ask again."""
        return self._notice(f"{_WAITING} {self._how_to_fetch}", is_error=self._tool.outputs is not None, state="working")

    def _make_not_stored(self, error: StoreError) -> CallToolResult:
        """Return a result for a database that fails."""
        log.error("%s: a call of a tool failed: %s", self._agent.jid, error)
        text = f"The platform cannot read or store anything at the moment. Try again in {_STORE_S:g} s."
        return self._notice(text, is_error=True, code=int(ErrorCode.UNAVAILABLE), retry_after_s=_STORE_S)

    @property
    def _how_to_fetch(self) -> str:
        name = self._tool.argument_names["request_id"]
        return f'Call this tool later with the same arguments and {name}="{self._request_name}" to get the answer.'

    async def _make_result(self, event: DoorEvent) -> CallToolResult:
        data = event.data
        match event.type:
            case "request.completed":
                return await self._make_answer()
            case "request.refused":
                wait_s = data["retry_after_s"]
                wait = "" if wait_s is None else f" Try again in {math.ceil(wait_s)} s."
                return self._notice(f"{data['message']}{wait}", is_error=True, code=data["code"], retry_after_s=wait_s)
            case "request.failed":
                return self._notice(
                    data["message"],
                    is_error=True,
                    code=data["code"],
                    recoverable=data["recoverable"],
                    incident=data["incident"],
                )
            case "request.interrupted":
                return self._notice(f"The answer was interrupted. {self._how_to_fetch}", is_error=True, code=503)
            case _:
                return self._notice("The request was cancelled.", is_error=True)

    async def _make_answer(self) -> CallToolResult:
        structured, problem = await self._answer.find_structured_content(self._tool.outputs)
        if problem is not None:
            return self._notice(problem[0].upper() + problem[1:], is_error=True)
        name = self._tool.argument_names["conversation"]
        hint = TextContent(text=f'To go on with this conversation, give {name}="{self._conversation}".')
        return CallToolResult(
            content=[*self._answer.make_content(), hint],
            structured_content=structured,
            is_error=self._answer.is_error,
            meta=self._meta,
        )

    def _notice(self, text: str, *, is_error: bool, **meta: Any) -> CallToolResult:
        """Return a result with a text of the door behind what the agent has answered so far."""
        content = [part for part in self._answer.make_content() if getattr(part, "text", None) != text]
        content.append(TextContent(text=text))
        return CallToolResult(content=content, is_error=is_error, meta={**self._meta, **make_meta(**meta)})


def _make_form(question: CallerQuestion) -> dict[str, Any]:
    """Return the schema of the form for a question: flat, as the protocol wants it."""
    schema = dict(question.schema or {})
    properties = schema.get("properties", {})
    if schema.get("type") == "object" and properties and all(_is_flat(one) for one in properties.values()):
        return {key: schema[key] for key in ("type", "properties", "required") if key in schema}
    field: dict[str, Any] = {"type": "string"}
    if question.choices:
        field["enum"] = list(question.choices)
    elif _is_flat(schema):
        field = schema
    return {"type": "object", "properties": {_ANSWER: field}, "required": [_ANSWER]}


def _is_flat(schema: Any) -> bool:
    """Return True for the schema of one field of a form: a plain value, or several of a list of choices."""
    if not isinstance(schema, dict):
        return False
    items = schema.get("items", {})
    is_choice = schema.get("type") == "array" and isinstance(items, dict) and ("enum" in items or "anyOf" in items)
    return schema.get("type") in _FLAT_TYPES or is_choice


def _read_answer(found: ElicitResult) -> str | None:
    """Return the answer of a form as a text: the one field of ours, else the whole form as JSON. None if it is declined."""
    content = found.content
    if found.action != "accept" or not content:
        return None
    value = content[_ANSWER] if content.keys() == {_ANSWER} else content
    return value if isinstance(value, str) else json.dumps(value)
