"""The tools of one turn: run at once and in limited time. The model is told of every error."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from pydantic import ValidationError
from pydantic_core import to_json

from ...concurrency import DeadlineExceededError, run_with_timeout
from ...config import describe_mistakes, format_key
from ...contracts import ResponseHandler, SessionHandle
from ...domain.observability import spans
from ...domain.observability.tracing import TURN_TRACE, TurnTrace
from ...domain.texts.text import replace_lone_surrogates
from ...domain.texts.translation import translate
from ...exceptions import CoReasonError, StepUncertainError, StoreError
from ..budget import TurnUsage
from ..guardrails.guard import TurnGuard
from ..handlers import run_once, show_step
from ..model.completion import Completion, ToolCall
from ..options import Limits
from ..prompts import Message
from .approval import ApprovalGate
from .builtin import MEMORY_TOOL_NAMES
from .function import KEY_PARAMETER, Tool

log = logging.getLogger(__name__)

_UNKNOWN_TOOL = "(no such tool)"

OnCall: TypeAlias = Callable[[str, bool], Awaitable[None]]
"""Report a call: the name of the tool, and True if it succeeded."""


class Toolbox:
    """Tools by name. An error of a tool is its result. Each call is a durable step of the turn of `session`."""

    def __init__(self, tools: Sequence[Tool], limits: Limits, session: SessionHandle, gate: ApprovalGate) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._limits = limits
        self._session = session
        self._gate = gate

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    @property
    def max_calls(self) -> int:
        """The most calls that run at once."""
        return self._limits.calls

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The schemas of the tools, as a request has them."""
        return [tool.schema for tool in self._tools.values()]

    async def call_all(self, calls: Sequence[ToolCall], on_call: OnCall) -> list[dict[str, Any]]:
        """Run calls at once, and return their results as messages, in the order of the calls. When cancelled, cancel all.

        Before any of them runs, people approve those that need it. An approved call is not repeated after a crash: its result
        is an error then. StoreError if the result of a call cannot be stored.
        """
        limit = self._limits.calls
        tools = [self._tools.get(call.name) if number < limit else None for number, call in enumerate(calls)]
        # Here, in the task of assist: asking ends it, and a task of the group would cancel the others.
        decisions = await self._gate.decide(calls, tools)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._call_and_report(call, number, decisions[number], on_call))
                    for number, call in enumerate(calls)
                ]
        except BaseExceptionGroup as errors:  # the runner looks at the type of an error
            raise next(
                (error for error in errors.exceptions if isinstance(error, StoreError)), errors.exceptions[0]
            ) from errors
        return [
            {"role": "tool", "tool_call_id": call.id, "content": task.result()} for call, task in zip(calls, tasks, strict=True)
        ]

    async def _call_and_report(self, call: ToolCall, number: int, decision: str | None, on_call: OnCall) -> str:
        """Call a tool, unless it was not approved. `decision` is that of `ApprovalGate.decide`."""

        async def run(idempotency_key: str) -> str:
            if number >= self._limits.calls:
                text, is_good = f"error: not called; {self._limits.calls} calls at once is the limit", False
            elif decision:
                text, is_good = decision, False
            elif (trace := TURN_TRACE.get()) is None:
                text, is_good = await self._call(call, idempotency_key)
            else:
                text, is_good = await self._call_in_span(trace, call, idempotency_key)
            await on_call(call.name, is_good)
            return cast(str, replace_lone_surrogates(text))

        step, arguments = f"llm: tool {call.valid_name}", replace_lone_surrogates(call.arguments)
        if decision != "":
            return await run_once(self._session, step, run, arguments)
        try:
            result = await run_once(self._session, step, run, arguments, on_uncertain="fail")
        except StepUncertainError as error:
            log.error("the approved tool %s was cut off, and is not called again: %s", call.name, error)
            await on_call(call.name, False)
            return (
                f"error: the platform stopped while {call.name} ran. It may have done its work or not, and was not called"
                " again. Tell the person so; do not call it again before a person has looked"
            )
        return "error: it was called, and its result was too large to be kept" if result is None else result

    async def _call_in_span(self, trace: TurnTrace, call: ToolCall, idempotency_key: str) -> tuple[str, bool]:
        name = call.name if call.name in self._tools else _UNKNOWN_TOOL  # the model's own words
        attributes = {spans.OPERATION: spans.EXECUTE_TOOL, spans.TOOL: name, spans.TOOL_CALL: call.id}
        with trace.run(f"{spans.EXECUTE_TOOL} {name}", "internal", attributes) as span:
            span.set_text(spans.TOOL_ARGUMENTS, lambda: call.arguments)
            text, is_good = await self._call(call, idempotency_key)
            span.set_text(spans.TOOL_RESULT, lambda: text)
            if not is_good:
                span.fail("tool_error")
            return text, is_good

    async def _call(self, call: ToolCall, idempotency_key: str) -> tuple[str, bool]:
        if call.refusal:
            return f"error: {call.refusal}", False
        tool = self._tools.get(call.name)
        if tool is None:
            return f"error: there is no tool {call.name[:64]!r}; there is {', '.join(self._tools) or 'none'}", False
        arguments = call.parsed_arguments
        if not isinstance(arguments, dict):
            return "error: the arguments are no JSON object; call it again with one", False
        if tool.takes_idempotency_key:
            arguments = {**arguments, KEY_PARAMETER: idempotency_key}
        limit_s = self._limits.tool_timeout_s
        try:
            return self._render_result(await run_with_timeout(tool.call(arguments), limit_s)), True
        except ValidationError as error:
            key, problem = next(iter(describe_mistakes(error).items()))
            return f"error: {format_key(key) or 'arguments'}: {problem}; correct the arguments and call it again", False
        except DeadlineExceededError:
            log.warning("the tool %s took longer than %g s", tool.name, limit_s)
            return f"error: {tool.name} did not answer in {limit_s:g} s", False
        except CoReasonError as error:
            return self._render_result(f"error: {error}"), False
        except Exception as error:  # noqa: BLE001 - a tool is foreign code
            return self._describe_failure(tool, error), False

    def _describe_failure(self, tool: Tool, error: Exception) -> str:
        # The error may quote a person: send it to the model, do not log it.
        log.warning("the tool %s raised %s", tool.name, type(error).__name__)
        log.debug("the tool %s failed", tool.name, exc_info=error)
        try:
            description = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - foreign code makes the text, too
            description = type(error).__name__
        return self._render_result(f"error: {description}")

    def _render_result(self, result: Any) -> str:
        text = result
        if not isinstance(result, str):  # file names may have half characters, which JSON does not allow
            text = to_json(replace_lone_surrogates(result), fallback=str, inf_nan_mode="strings").decode()
        omitted = len(text) - self._limits.result_characters
        return text if omitted <= 0 else f"{text[: self._limits.result_characters]}\n(cut here; {omitted:,} characters more)"


class ToolRunner:
    """Run the tool calls of completions. `agent` is the actor in the audit trail."""

    def __init__(
        self,
        agent: str,
        toolbox: Toolbox,
        response: ResponseHandler,
        guard: TurnGuard,
        turn_usage: TurnUsage,
        *,
        shows_tools: bool,
    ) -> None:
        self._agent = agent
        self._toolbox = toolbox
        self._response = response
        self._guard = guard
        self._turn_usage = turn_usage
        self._shows_tools = shows_tools

    async def run(self, completion: Completion) -> list[Message]:
        """Run the calls of a completion, and return it with their results, in their order, as messages of the next request."""
        calls = completion.tool_calls[: self._toolbox.max_calls + 1]  # the first call above the limit gets an error
        self._turn_usage.tool_calls += len(calls)
        if self._shows_tools:
            names = (call.name for call in calls if call.name in self._toolbox)
            await self._show(Counter(name for name in names if name not in MEMORY_TOOL_NAMES))
        for call in calls:
            await self._guard.filter_tool_call(call)
        message: Message = {"role": "assistant", "content": completion.text or None}
        message["tool_calls"] = [call.message for call in calls]
        message |= completion.carried_fields(calls)
        results = await self._toolbox.call_all(calls, self._on_call)
        return [
            message,
            *[{**result, "content": await self._guard.filter_tool_result(result["content"])} for result in results],
        ]

    async def _show(self, names: Mapping[str, int]) -> None:
        """Show a line for each tool. Names that the model made up are not shown: they are its own words."""
        if not names:
            return
        lines = [
            translate("Using {name}…", name=name)
            if times == 1
            else translate("Using {name} ({times} times)…", name=name, times=times)
            for name, times in names.items()
        ]
        await show_step(self._response, "\n".join(lines))

    async def _on_call(self, tool: str, is_success: bool) -> None:
        await self._response.audit(self._agent, "tool.call", tool if tool in self._toolbox else _UNKNOWN_TOOL, is_success)
