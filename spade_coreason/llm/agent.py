"""An agent backed by a language model: any server with OpenAI's chat completions API."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..concurrency import Threads
from ..contracts import AgentDefinition, AgentRequest, InlineToolDefinition, Interaction, ResponseHandler, SessionHandle
from ..domain.history import turn_text
from ..exceptions import ConfigError, CoReasonError, ModelError
from ..memory import AgentInteractionMemory, TokenCounter, Usage, counter
from ..runtime import Peers
from .budget import Budgets, BudgetUsedUp, Purse, Tally
from .context import Context, ContextTooLong
from .guardrails.admission import admitted
from .guardrails.checks import Checks
from .guardrails.declaration import Given
from .guardrails.guard import Guard, Guards
from .loop import Asker, LLMTurn
from .mcp.offers import Offer
from .mcp.servers import Servers
from .model.client import Client
from .model.fallback import Model
from .options import Endpoint, Limits, listed, options_of, texts
from .output import Speaker
from .prompts import instructions, question_shown
from .structured import response_format, structured, wanted
from .tools.builtin import RESERVED, ask_tool, memory_tools, recall_tool
from .tools.execution import Toolbox, ToolUse
from .tools.function import Tool, tool_of
from .tools.selection import Fitting

_REMEDIES = {
    "budget_caps": "its budgets are the option budgets",
    "allowed_domains": "whom it may ask are the options agents and mcp",
    "human_in_the_loop": "nobody is asked before a tool is called",
}


def unkept(manifest: AgentDefinition, tools: Collection[str]) -> Iterator[str]:
    """A line for each part of `policy`, and each tool of `dependencies.tools` that is described and none of `tools`."""
    for name, remedy in _REMEDIES.items():
        if manifest.policy is not None and getattr(manifest.policy, name):
            yield f"policy.{name} of the manifest is not kept to; {remedy}"
    for number, one in enumerate(manifest.dependencies.tools):
        if isinstance(one, InlineToolDefinition) and one.name not in tools:
            yield f"dependencies.tools[{number}] of the manifest: no tool is called {one.name}; give a function of this name"


log = logging.getLogger(__name__)

_THRESHOLD = 0.7


class LLMAgent:
    """Answers with a language model, streams what it says, calls tools, and remembers.

    `model`, else the manifest's `llm_config.model`, else OPENAI_MODEL of the environment, is asked at `endpoint` (an Endpoint,
    or a mapping with its fields), and `fallback_model` where it fails; prompt, persona and temperature are the manifest's.
    `tools` are functions, Tools or "module:function"; `mcp` are MCP servers by name, each with the fields of ServerOptions;
    `agents` are JIDs that the tool `ask_agent` may ask. `interaction_memory` gives it the memory tools and what was remembered;
    `show_tools` tells of each use of a tool as a thought. One of `termination_markers` in its answer ends the conversation and
    is not shown. `input_guardrails` and `output_guardrails` are Guardrails, mappings with their fields, or functions, and are
    applied in this order. `limits` are Limits and `budgets` Budgets, or mappings with their fields; `usage` is what lasting
    budgets are compared with; `count` counts tokens.

    What was asked and said is recorded as the guardrails let it through. A capability with an output schema answers with data.
    Errors of the model are one line to whoever asked; what it used is recorded by `response.emit` as `ai.coreason.llm.usage`,
    and each call of a tool and each decision of a guardrail by `response.audit`. No log of a level above debug has a word of
    what was said.
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
        mcp: Mapping[str, Any] | None = None,
        agents: Sequence[str] = (),
        interaction_memory: bool = True,
        show_tools: bool = True,
        termination_markers: Sequence[str] = (),
        input_guardrails: Sequence[Given] = (),
        output_guardrails: Sequence[Given] = (),
        budgets: Budgets | Mapping[str, Any] | None = None,
        usage: Usage | None = None,
        count: TokenCounter | None = None,
    ) -> None:
        self._manifest = manifest
        self._memory = memory if interaction_memory else None
        self._peers = peers
        self._agents = texts(agents, "options.agents")
        if self._agents and peers is None:
            raise ConfigError("options.agents", "there is nothing to ask them with; give the parameter peers")
        self._limits = options_of(Limits, limits, "options.limits")
        self._markers = texts(termination_markers, "options.termination_markers")
        self._shows_tools = show_tools
        models = [model or _model_of(manifest), *filter(None, [fallback_model])]
        self._client = Client(options_of(Endpoint, endpoint, "options.endpoint"))
        self._model = Model(self._client, models, self._limits.reply_characters)
        threads = Threads()
        self._tools = [tool_of(one, threads) for one in (*self.default_tools, *listed(tools, "options.tools"))]
        self.servers = Servers(mcp, manifest)
        """Its MCP servers."""
        _check_names(self._tools, self.servers)
        for line in unkept(manifest, {*RESERVED, *(tool.name for tool in self._tools)}):
            log.warning("%s: %s", manifest.metadata.name, line)
        self._count = count or counter("auto")
        self._fitting = Fitting(manifest.metadata.name, self._limits.context_tokens // 2, self._count)
        self._guards = Guards(input_guardrails, output_guardrails, Checks(self._model, threads, self._count))
        self._budgets = options_of(Budgets, budgets, "options.budgets")
        if self._budgets.last and usage is None:
            raise ConfigError(
                "options.budgets", "there is nothing that keeps count of more than a turn; give the parameter usage"
            )
        self._usage = usage
        self._further = _further(manifest)
        if self._limits.answer_tokens is not None:
            self._further[self._client.limit_field] = self._limits.answer_tokens

    @property
    def manifest(self) -> AgentDefinition:
        """What it is."""
        return self._manifest

    async def startup(self) -> None:
        """Opens the client, and begins the MCP servers; one that is away is tried again when it is needed."""
        await asyncio.to_thread(self._client.open)
        await self.servers.open()

    async def shutdown(self) -> None:
        """Closes its connections, and ends the programs of MCP servers."""
        await self.servers.close()
        await self._client.close()

    async def examine_mcp_servers(self) -> tuple[Sequence[Offer], Sequence[CoReasonError]]:
        """What its MCP servers offer, and what is wrong with them, of an agent that is not started."""
        return await self.servers.examine()

    async def examine_models(self) -> Sequence[CoReasonError]:
        """What is wrong with its models, as far as it costs no token, of an agent that is not started."""
        client = Client(self._client.endpoint)
        try:
            listed = await client.listed()
        except ModelError as error:
            return [error]
        finally:
            await client.close()
        unknown = [name for name in self._model.models if listed and name not in listed]
        some = ", ".join(sorted(listed or ())[:5])
        return [
            ModelError(f"the server {client.url}", f"lists no model {name!r}; it has {some}", may_pass=True) for name in unknown
        ]

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Answers one request. Cancelled, the request to the model is closed and its tools are cancelled."""
        name = self._manifest.metadata.name
        tally = Tally(name, self._model.models[0])
        purse = Purse(self._budgets, self._usage, tally, session.identity.id, _conversation(request, session))
        guard = self._guards.in_turn(name, response, purse)
        try:
            await self._answer(request, session, response, guard, purse)
        except ModelError as error:
            log.warning("%s: %s (%s)", name, error, self._client.url)
            after = f"; ask again in {error.retry_after_s:.0f} s" if error.retry_after_s else ""
            await response.error(f"My language model {error.problem}{after}.", {"model": error.where}, error.may_pass)
        except BudgetUsedUp as error:
            log.warning("%s: a budget is used up", name)
            await response.error(str(error), recoverable=True)
        except ContextTooLong as error:
            log.warning("%s: %s", name, error)
            await response.error(f"{str(error)[0].upper()}{str(error)[1:]}.")
        finally:
            await tally.report(response)

    async def _answer(
        self, request: AgentRequest, session: SessionHandle, response: ResponseHandler, guard: Guard, purse: Purse
    ) -> None:
        if not await admitted(request, response, guard, purse):
            return
        await self.servers.wake()
        capability = structured(self._manifest, request)
        toolbox = self._toolbox(request, session)
        further = {**self._further, "tools": toolbox.schemas}
        if capability is not None:
            further["response_format"] = response_format(capability)
        context = await self._context(request, session, guard, wanted(capability) if capability is not None else "")
        speaker = Speaker(response, self._markers, guard, is_silent=capability is not None)
        asker = Asker(self._model, context, speaker, purse, further)
        name = self._manifest.metadata.name
        tool_use = ToolUse(name, toolbox, response, guard, purse.tally, is_shown=self._shows_tools)
        turn = LLMTurn(asker, tool_use, context, speaker, response, self._limits)
        try:
            await turn.run(capability)
        finally:
            if speaker.is_over and callable(end := getattr(session, "end", None)):
                end()

    async def _context(self, request: AgentRequest, session: SessionHandle, guard: Guard, wanted: str) -> Context:
        further = [wanted]
        if away := self.servers.unknown:
            further.insert(0, f"The tools of {', '.join(away)} are not there now; say so where they would be needed.")
        head = instructions(self._manifest, self.default_prompt, further)
        remembered: Sequence[Mapping[str, Any]] = ()
        if self._memory is not None:
            remembered = await self._memory.aget_context_messages(_conversation(request, session))
        window = await _window(session)
        context = Context(head, remembered, window, self._count, self._limits.context_tokens)
        query = request.payload.get("query")
        if self._limits.passages and isinstance(query, str):
            known = {turn_text(turn) for turn in window}  # shown anyway
            found = await session.recall(query, self._limits.passages, _THRESHOLD)
            context.passages = await guard.found([passage for passage in found if passage not in known])
        context.tail += question_shown(request)
        return context

    def _toolbox(self, request: AgentRequest, session: SessionHandle) -> Toolbox:
        tools = [*self._tools, *self._fitting.those(self.servers.tools()), recall_tool(session)]
        if self._memory is not None:
            tools += memory_tools(self._memory, _conversation(request, session))
        if self._peers is not None and self._agents:
            tools.append(ask_tool(self._peers, self._agents, self._limits.tool_timeout_s))
        return Toolbox(tools, self._limits)


def _model_of(manifest: AgentDefinition) -> str:
    config = manifest.config.llm_config
    name = config.model if config is not None else os.environ.get("OPENAI_MODEL")
    if not name:
        problem = "no model is named; give its name here, in the manifest as config.model_config.model, or as OPENAI_MODEL"
        raise ConfigError("options.model", problem)
    return name


def _further(manifest: AgentDefinition) -> dict[str, Any]:
    """The fields of every request to the model that the manifest says."""
    config = manifest.config.llm_config
    if config is None or "temperature" not in config.model_fields_set:  # some models take none but their own
        return {}
    return {"temperature": config.temperature}


async def _window(session: SessionHandle) -> list[Interaction]:
    """What the memory policy hands to a model; of another platform's session its newest turns."""
    window = getattr(session, "window", None)
    found: list[Interaction] = await window() if callable(window) else await session.history(20)
    return found


def _conversation(request: AgentRequest, session: SessionHandle) -> str:
    return str(request.metadata.get("conversation_id") or session.session_id)


def _check_names(tools: Sequence[Tool], servers: Servers) -> None:
    names = [tool.name for tool in tools]
    for name in names:
        if name in RESERVED:
            raise ConfigError("options.tools", f'"{name}" is the name of a tool of the platform; rename yours')
        if servers.owns(name):
            raise ConfigError("options.tools", f'"{name}" is a name for a tool of an MCP server; rename yours')
        if names.count(name) > 1:
            raise ConfigError("options.tools", f'two tools are called "{name}"; rename one')
