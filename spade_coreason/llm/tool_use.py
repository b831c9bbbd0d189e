"""The use of tools in a turn: shown to whoever asked, audited, and what they give guarded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..contracts import ResponseHandler
from .deltas import Reply
from .guard import Guard
from .messages import Message
from .tally import Tally
from .toolbox import Toolbox

_NO_TOOL = "(no such tool)"


class ToolUse:
    """`run` calls what a reply wants called. `agent` is who acts, in the audit trail."""

    def __init__(
        self, agent: str, toolbox: Toolbox, response: ResponseHandler, guard: Guard, tally: Tally, *, is_shown: bool
    ) -> None:
        self._agent = agent
        self._toolbox = toolbox
        self._response = response
        self._guard = guard
        self._tally = tally
        self._is_shown = is_shown

    async def run(self, reply: Reply) -> list[Message]:
        """The reply and the results of its calls, in their order, as the next request has them."""
        calls = reply.calls[: self._toolbox.most_calls + 1]  # the first that is too much is told so
        self._tally.tool_calls += len(calls)
        if self._is_shown:
            await self._show(Counter(call.name for call in calls if call.name in self._toolbox))
        for call in calls:
            await self._guard.called(call)
        said: Message = {"role": "assistant", "content": reply.text or None}
        said["tool_calls"] = [call.message for call in calls]
        results = await self._toolbox.call_all(calls, self._on_call)
        return [said, *[{**result, "content": await self._guard.given(result["content"])} for result in results]]

    async def _show(self, names: Mapping[str, int]) -> None:
        """A line for each tool; another platform's handler has no `step`. A name that the model made up is its own words."""
        if not names:
            return
        lines = [f"Using {name}{f' ({times} times)' if times > 1 else ''}…" for name, times in names.items()]
        await getattr(self._response, "step", self._response.thought)("\n".join(lines))

    async def _on_call(self, tool: str, is_good: bool) -> None:
        await self._response.audit(self._agent, "tool.call", tool if tool in self._toolbox else _NO_TOOL, is_good)
