"""An agent backed by a language model: any server with OpenAI's chat completions API."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..contracts import AgentDefinition, AgentRequest, Interaction, ResponseHandler, SessionHandle
from ..exceptions import ConfigError, ModelError
from ..peers import Peers
from ..stores.memory import AgentInteractionMemory
from ..tokens import TokenCounter, counter
from ..turns import turn_text
from .context import Context, ContextTooLong, instructions, question_shown
from .model import Model
from .options import Endpoint, Limits, options_of
from .speaker import Speaker
from .structured import response_format, structured, wanted
from .threads import Threads
from .toolbox import RESERVED, Toolbox, ask_tool, memory_tools, recall_tool
from .tools import Tool, tool_of
from .turn import LLMTurn

log = logging.getLogger(__name__)

_THRESHOLD = 0.7


class LLMAgent:
    """Answers with a language model, streams what it says, calls tools, and remembers.

    `model`, else the manifest's `llm_config.model`, else OPENAI_MODEL of the environment, is asked at `endpoint` (an Endpoint,
    or a mapping with its fields), and `fallback_model` where it fails; prompt, persona and temperature are the manifest's.
    `tools` are functions, Tools or "module:function"; `agents` are JIDs that the tool `ask_agent` may ask. `interaction_memory`
    gives it the memory tools and what was remembered; `show_tools` tells of each use of a tool as a thought. One of
    `termination_markers` in its answer ends the conversation and is not shown. `limits` are Limits, or a mapping with its
    fields; `count` counts tokens.

    A capability with an output schema answers with data. Errors of the model are one line to whoever asked; what it used is
    recorded by `response.emit` as `ai.coreason.llm.usage`, and each call of a tool by `response.audit`. No log of a level above
    debug has a word of what was said.
    """

    default_prompt: ClassVar[str] = ""
    """Where the manifest has none."""
    default_tools: ClassVar[Sequence[Tool | Callable[..., Any]]] = ()
    """Those of a subclass, before the others."""

    def __init__(
        self,
        manifest: AgentDefinition,
        memory: AgentInteractionMemory | None = None,
        peers: Peers | None = None,
        *,
        model: str | None = None,
        fallback_model: str | None = None,
        endpoint: Endpoint | Mapping[str, Any] | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        tools: Sequence[Tool | Callable[..., Any] | str] = (),
        agents: Sequence[str] = (),
        interaction_memory: bool = True,
        show_tools: bool = True,
        termination_markers: Sequence[str] = (),
        count: TokenCounter | None = None,
    ) -> None:
        self._manifest = manifest
        self._memory = memory if interaction_memory else None
        self._peers = peers
        self._agents = _texts("agents", agents)
        if self._agents and peers is None:
            raise ConfigError("options.agents", "there is nothing to ask them with; give the parameter peers")
        self._limits = options_of(Limits, limits, "options.limits")
        self._markers = _texts("termination_markers", termination_markers)
        self._shows_tools = show_tools
        config = manifest.config.llm_config
        first = model or (config.model if config is not None else os.environ.get("OPENAI_MODEL"))
        if not first:
            problem = "no model is named; give its name here, in the manifest as config.model_config.model, or as OPENAI_MODEL"
            raise ConfigError("options.model", problem)
        self._model = Model(
            options_of(Endpoint, endpoint, "options.endpoint"),
            [first, *filter(None, [fallback_model])],
            self._limits.reply_characters,
        )
        threads = Threads()
        self._tools = [tool_of(one, threads) for one in (*self.default_tools, *_listed("tools", tools))]
        _check_names(self._tools)
        self._further: dict[str, Any] = {}
        if config is not None and "temperature" in config.model_fields_set:  # some models take none but their own
            self._further["temperature"] = config.temperature
        if self._limits.answer_tokens is not None:
            self._further["max_tokens"] = self._limits.answer_tokens
        self._count = count or counter("auto")

    @property
    def manifest(self) -> AgentDefinition:
        """What it is."""
        return self._manifest

    def startup(self) -> None:
        """Opens the client."""
        self._model.open()

    async def shutdown(self) -> None:
        """Closes its connections."""
        await self._model.close()

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Answers one request. Cancelled, the request to the model is closed and its tools are cancelled."""
        capability = structured(self._manifest, request)
        further = dict(self._further)
        if capability is not None:
            further["response_format"] = response_format(capability)
        speaker = Speaker(response, self._markers, is_silent=capability is not None)
        turn = LLMTurn(
            self._manifest.metadata.name,
            self._model,
            await self._context(request, session, wanted(capability) if capability is not None else ""),
            self._toolbox(request, session),
            response,
            speaker,
            self._limits,
            further=further,
            shows_tools=self._shows_tools,
        )
        try:
            await turn.run(capability)
        except ModelError as error:
            log.warning("%s: %s", self._manifest.metadata.name, error)
            after = f"; ask again in {error.retry_after_s:.0f} s" if error.retry_after_s else ""
            await response.error(f"My language model {error.problem}{after}.", {"model": error.where}, error.may_pass)
        except ContextTooLong as error:
            await response.error(f"{str(error)[0].upper()}{str(error)[1:]}.")
        finally:
            await turn.report()
        if speaker.is_over and callable(end := getattr(session, "end", None)):
            end()

    async def _context(self, request: AgentRequest, session: SessionHandle, wanted: str) -> Context:
        head = instructions(self._manifest, self.default_prompt)
        if wanted:
            head.append({"role": "system", "content": wanted})
        remembered: Sequence[Mapping[str, Any]] = ()
        if self._memory is not None:
            remembered = await self._memory.aget_context_messages(_conversation(request, session))
        window = await _window(session)
        context = Context(head, remembered, window, self._count, self._limits.context_tokens)
        query = request.payload.get("query")
        if self._limits.passages and isinstance(query, str):
            known = {turn_text(turn) for turn in window}  # shown anyway
            found = await session.recall(query, self._limits.passages, _THRESHOLD)
            context.passages = [passage for passage in found if passage not in known]
        context.tail += question_shown(request)
        return context

    def _toolbox(self, request: AgentRequest, session: SessionHandle) -> Toolbox:
        tools = [*self._tools, recall_tool(session)]
        if self._memory is not None:
            tools += memory_tools(self._memory, _conversation(request, session))
        if self._peers is not None and self._agents:
            tools.append(ask_tool(self._peers, self._agents, self._limits.tool_timeout_s))
        return Toolbox(tools, self._limits)


async def _window(session: SessionHandle) -> list[Interaction]:
    """What the memory policy hands to a model; of another platform's session its newest turns."""
    window = getattr(session, "window", None)
    found: list[Interaction] = await window() if callable(window) else await session.history(20)
    return found


def _conversation(request: AgentRequest, session: SessionHandle) -> str:
    return str(request.metadata.get("conversation_id") or session.session_id)


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise ConfigError(f"options.{name}", "is a list")
    return list(given)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    found = _listed(name, given)
    if not all(isinstance(one, str) and one for one in found):
        raise ConfigError(f"options.{name}", "is a list of texts")
    return tuple(found)


def _check_names(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    for name in names:
        if name in RESERVED:
            raise ConfigError("options.tools", f'"{name}" is the name of a tool of the platform; rename yours')
        if names.count(name) > 1:
            raise ConfigError("options.tools", f'two tools are called "{name}"; rename one')
