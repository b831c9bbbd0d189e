"""An agent backed by a language model: any server with OpenAI's chat completions API."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..concurrency import DaemonThreads
from ..contracts import (
    AgentDefinition,
    AgentRequest,
    ErrorCode,
    InlineToolDefinition,
    Interaction,
    ResponseHandler,
    SessionHandle,
)
from ..domain.history import turn_text
from ..domain.messages import ROOT_SENDER
from ..domain.texts.durations import format_duration
from ..domain.texts.translation import translate
from ..exceptions import ConfigError, CoReasonError, ModelError
from ..memory import AgentInteractionMemory, TokenCounter, Usage, counter_for
from ..runtime import Files, Peers, fetch
from .budget import BudgetExceededError, BudgetMeter, Budgets, TurnUsage
from .context import Context, ContextTooLongError
from .guardrails.checks import GuardrailChecks
from .guardrails.declaration import GuardrailSpec
from .guardrails.guard import AgentGuardrails, TurnGuard, check_input
from .handlers import end_episode, load_window, show_step
from .loop import AgentLoop, ModelCaller
from .mcp.offers import Offer
from .mcp.servers import MCPServers
from .model.client import ModelClient
from .model.fallback import ModelWithFallback
from .model.stand_in import StandIn, find_stand_in
from .options import Endpoint, Limits, Pictures, ToolApprovals, parse_options, require_list, require_texts
from .output import ReplyStreamer
from .pictures import LoadedPictures, PictureLoader
from .prompts import build_system_messages, render_request
from .script import MODEL_NAME, REMEDY, ScriptStandIn
from .structured import build_response_format, build_schema_instruction, find_data_capability
from .tools.approval import ApprovalGate
from .tools.builtin import RESERVED_TOOL_NAMES, build_ask_agent_tool, build_memory_tools, build_recall_tool
from .tools.execution import Toolbox, ToolRunner
from .tools.function import Tool, build_tool
from .tools.selection import ToolSelection

log = logging.getLogger(__name__)

_MIN_SCORE = 0.7
_REMEDIES = {
    "budget_caps": "use the option `budgets`",
    "allowed_domains": "use the options `agents` and `mcp`",
}


def unsupported_manifest_parts(manifest: AgentDefinition, tool_names: Collection[str]) -> Iterator[str]:
    """List the parts of a manifest that have no effect, a line for each.

    These are parts of `policy`, and inline tools of `dependencies.tools` whose name is not in `tool_names`.
    """
    for name, remedy in _REMEDIES.items():
        if manifest.policy is not None and getattr(manifest.policy, name):
            yield f"policy.{name} of the manifest is not enforced; {remedy}"
    for number, tool in enumerate(manifest.dependencies.tools):
        if isinstance(tool, InlineToolDefinition) and tool.name not in tool_names:
            yield f"dependencies.tools[{number}] of the manifest is ignored: there is no function {tool.name}; add one"


class LLMAgent:
    """Answer with a language model: stream its completions, call tools and remember.

    Parameters:

    - `manifest`: the prompt, the persona and the temperature are the manifest's.
    - `memory`: the interaction memory. Unless `interaction_memory` is false, the model gets the memory tools and the stored
      facts.
    - `peers`: sends requests to other agents; needed with `agents`.
    - `model`: the model to ask. Default: `config.model_config.model` of the manifest, else OPENAI_MODEL of the environment.
      "script" is a script that plays a model, unless a server's URL is named.
    - `fallback_model`: is asked where `model` fails.
    - `endpoint`: an Endpoint, or a mapping with its fields.
    - `approvals`: the approvals of tool calls by people: ToolApprovals, or a mapping with its fields.
    - `limits` and `budgets`: Limits and Budgets, or mappings with their fields. A model that is not on this machine has a
      budget of a million tokens a day, unless `agent_day` is set.
    - `tools`: functions, Tools or "module:function".
    - `mcp`: MCP servers by name, each with the fields of ServerOptions.
    - `agents`: the JIDs that the tool `ask_agent` may ask.
    - `pictures`: true for a model that takes images, or Pictures, or a mapping with its fields. Off by default.
    - `files`: fetches the pictures. Without it they are fetched in the same way.
    - `show_tools`: send a thought for each use of a tool.
    - `termination_markers`: one of them in an answer ends the conversation. Markers are not shown.
    - `input_guardrails` and `output_guardrails`: Guardrails, mappings with their fields, or functions. They are applied in this
      order.
    - `usage`: the stored usage that lasting budgets are compared with.
    - `count`: counts the tokens of a text.

    Requests and replies are recorded as the guardrails let them through. A capability with an output schema replies with data.

    An error of the model is sent to the sender as one line. `response.emit` records the usage as `ai.coreason.llm.usage`.
    `response.audit` records each call of a tool and each decision of a guardrail. Logs above the level debug contain no word of
    a conversation.

    ConfigError names the key (`options.…`) of a wrong option.
    """

    default_prompt: ClassVar[str] = ""
    """The prompt where the manifest has none."""
    default_tools: ClassVar[Sequence[Tool | Callable[..., Any]]] = ()
    """The tools of a subclass, listed before the others."""

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
        approvals: ToolApprovals | Mapping[str, Any] | None = None,
        tools: Sequence[Tool | Callable[..., Any] | str] = (),
        mcp: Mapping[str, Any] | None = None,
        agents: Sequence[str] = (),
        interaction_memory: bool = True,
        pictures: bool | Pictures | Mapping[str, Any] | None = None,
        files: Files | None = None,
        show_tools: bool = True,
        termination_markers: Sequence[str] = (),
        input_guardrails: Sequence[GuardrailSpec] = (),
        output_guardrails: Sequence[GuardrailSpec] = (),
        budgets: Budgets | Mapping[str, Any] | None = None,
        usage: Usage | None = None,
        count: TokenCounter | None = None,
    ) -> None:
        self._manifest = manifest
        self._memory = memory if interaction_memory else None
        self._peers = peers
        self._agents = require_texts(agents, "options.agents")
        if self._agents and peers is None:
            raise ConfigError("options.agents", "there is nothing to ask them with; give the parameter peers")
        self._limits = parse_options(Limits, limits, "options.limits")
        self._approvals = parse_options(ToolApprovals, approvals, "options.approvals")
        self._termination_markers = require_texts(termination_markers, "options.termination_markers")
        self._shows_tools = show_tools
        stand_in = find_stand_in()
        models = [model or _model_name(manifest, stand_in), *filter(None, [fallback_model])]
        server = parse_options(Endpoint, endpoint, "options.endpoint")
        if stand_in is None and models[0] == MODEL_NAME and not server.find_url():
            stand_in = ScriptStandIn()
        self._client = ModelClient(server, stand_in)
        self._model = ModelWithFallback(self._client, models, self._limits.reply_characters)
        threads = DaemonThreads()
        own_tools = [self._bind_method(spec) for spec in self.default_tools]
        self._tools = [build_tool(spec, threads) for spec in (*own_tools, *require_list(tools, "options.tools"))]
        self.mcp_servers = MCPServers(mcp, manifest)
        """The MCP servers of the agent."""
        _check_tool_names(self._tools, self.mcp_servers)
        self._approved_tools = self._find_approved_tools()
        for line in unsupported_manifest_parts(manifest, {*RESERVED_TOOL_NAMES, *(tool.name for tool in self._tools)}):
            log.warning("%s: %s", manifest.metadata.name, line)
        self._count_tokens = count or counter_for("auto")
        self._tool_selection = ToolSelection(manifest.metadata.name, self._limits.context_tokens // 2, self._count_tokens)
        self._guardrails = AgentGuardrails(
            input_guardrails, output_guardrails, GuardrailChecks(self._model, threads, self._count_tokens)
        )
        self._pictures = None
        if pictures is not None and pictures is not False:
            self._pictures = parse_options(Pictures, {} if pictures is True else pictures, "options.pictures")
        self._picture_loader = PictureLoader(
            manifest.metadata.name,
            self._pictures,
            files.fetch if files is not None else fetch,
            has_notice=pictures is not False,
        )
        self._budgets = parse_options(Budgets, budgets, "options.budgets")
        if self._budgets.has_lasting and usage is None:
            raise ConfigError(
                "options.budgets", "there is nothing that keeps count of more than a turn; give the parameter usage"
            )
        if usage is not None and stand_in is None:
            self._budgets = self._budgets.for_server(self._client.url)
        self._usage = usage
        self._extra_fields = _manifest_fields(manifest)
        if self._limits.answer_tokens is not None:
            self._extra_fields[self._client.max_tokens_field] = self._limits.answer_tokens

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    async def startup(self) -> None:
        """Open the client and start the MCP servers. A server that is unavailable is retried when it is needed."""
        if isinstance(self._client.stand_in, ScriptStandIn):
            log.warning("%s: a script stands in for the language model. %s", self._manifest.metadata.name, REMEDY)
        if self._budgets.agent_day and "agent_day" not in self._budgets.model_fields_set:
            text = "%s: uses at most %s tokens a day, the default of options.budgets.agent_day; set that, or 0 for no limit"
            log.warning(text, self._manifest.metadata.name, f"{self._budgets.agent_day:,}")
        await asyncio.to_thread(self._client.open)
        await self.mcp_servers.open()

    async def shutdown(self) -> None:
        """Close the connections, and stop the programs of MCP servers."""
        await self.mcp_servers.close()
        await self._client.close()

    @property
    def approvers(self) -> str | None:
        """The group that approves tool calls (`options.approvals.approvers`); None for that of the settings."""
        return self._approvals.approvers

    async def examine_mcp_servers(self) -> tuple[Sequence[Offer], Sequence[CoReasonError]]:
        """List the tools and the errors of the MCP servers, for an agent that is not started."""
        return await self.mcp_servers.examine()

    async def examine_models(self) -> Sequence[CoReasonError]:
        """List the errors of the models that are found without using tokens, for an agent that is not started."""
        client = ModelClient(self._client.endpoint, self._client.stand_in)
        try:
            listed = await client.list_models()
        except ModelError as error:
            return [error]
        finally:
            await client.close()
        unknown = [name for name in self._model.models if listed and name not in listed]
        examples = ", ".join(sorted(listed or ())[:5])
        return [
            ModelError(f"the server {client.url}", f"has no model {name!r}; it lists {examples}", is_transient=True)
            for name in unknown
        ]

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Answer one request. When cancelled, close the request to the model and cancel its tools."""
        name = self._manifest.metadata.name
        turn_usage = TurnUsage(name, self._model.models[0], session)
        person = str(request.metadata.get(ROOT_SENDER) or session.identity.id)  # a budget counts for them, whoever asks
        meter = BudgetMeter(self._budgets, self._usage, turn_usage, person, _conversation_id(request, session))
        guard = self._guardrails.for_turn(name, response, meter)
        try:
            await self._answer(request, session, response, guard, meter)
        except ModelError as error:
            log.warning("%s: %s (%s)", name, error, self._client.route)
            text = translate("My language model {problem}.", problem=translate(error.problem))
            if error.retry_after_s:
                text += " " + translate("Ask again in {duration}.", duration=format_duration(error.retry_after_s))
            await response.error(text, {"model": error.where}, error.is_transient)
        except BudgetExceededError as error:
            log.warning("%s: a budget is used up (options.budgets): %s", name, error)
            await response.error(str(error), {"code": ErrorCode.TOO_MANY_REQUESTS}, recoverable=True)
        except ContextTooLongError as error:
            log.warning("%s: %s", name, error)
            await response.error(translate(error.args[0]))
        finally:
            await turn_usage.report(response)

    async def _answer(
        self, request: AgentRequest, session: SessionHandle, response: ResponseHandler, guard: TurnGuard, meter: BudgetMeter
    ) -> None:
        if not await check_input(request, response, guard, meter):
            return
        await self.mcp_servers.reconnect_due()
        capability = find_data_capability(self._manifest, request)
        toolbox = self._build_toolbox(request, session)
        extra_fields = {**self._extra_fields, "tools": toolbox.schemas}
        if capability is not None:
            extra_fields["response_format"] = build_response_format(capability)
        window = await load_window(session)
        pictures = await self._picture_loader.load(request.payload, window)
        for notice in pictures.notices:
            await show_step(response, notice)
        instruction = build_schema_instruction(capability) if capability is not None else ""
        context = await self._build_context(request, session, guard, window, pictures, instruction)
        streamer = ReplyStreamer(response, self._termination_markers, guard, is_silent=capability is not None)
        model_caller = ModelCaller(self._model, context, streamer, meter, extra_fields)
        name = self._manifest.metadata.name
        tool_runner = ToolRunner(name, toolbox, response, guard, meter.turn_usage, shows_tools=self._shows_tools)
        loop = AgentLoop(model_caller, tool_runner, context, streamer, response, self._limits)
        try:
            await loop.run(capability)
        finally:
            if streamer.has_termination_marker:
                end_episode(session)

    async def _build_context(
        self,
        request: AgentRequest,
        session: SessionHandle,
        guard: TurnGuard,
        window: Sequence[Interaction],
        pictures: LoadedPictures,
        schema_instruction: str,
    ) -> Context:
        instructions = [schema_instruction]
        if (language := request.metadata.get("preferred_language")) is not None:
            instructions.append(
                f"The person has chosen this language (BCP 47): {language}. Answer in it, unless they ask for another one."
            )
        if unlisted := self.mcp_servers.unlisted_names:
            instructions.insert(0, f"The tools of {', '.join(unlisted)} are unavailable; say so if you need them.")
        system_messages = build_system_messages(self._manifest, self.default_prompt, instructions)
        remembered: Sequence[Mapping[str, Any]] = ()
        if self._memory is not None:
            remembered = await self._memory.aget_context_messages(_conversation_id(request, session))
        context = Context(
            system_messages,
            remembered,
            window,
            self._count_tokens,
            self._limits.context_tokens,
            pictures,
            self._pictures.tokens if self._pictures is not None else 0,
        )
        query = request.payload.get("query")
        if self._limits.passages and isinstance(query, str):
            window_texts = {turn_text(turn) for turn in window}  # shown already
            recalled = await session.recall(query, self._limits.passages, _MIN_SCORE)
            context.passages = await guard.filter_passages([passage for passage in recalled if passage not in window_texts])
        context.tail += render_request(request, pictures)
        return context

    def _bind_method(self, spec: Tool | Callable[..., Any] | str) -> Any:
        """Return a tool that is a method of this class as a method of this agent, and any other tool unchanged."""
        name = getattr(spec, "__name__", "")
        is_method = inspect.isfunction(spec) and inspect.getattr_static(type(self), name, None) is spec
        return getattr(self, name) if is_method else spec

    def _build_toolbox(self, request: AgentRequest, session: SessionHandle) -> Toolbox:
        own_tools = [tool.for_turn(request, session) for tool in self._tools]
        tools = [*own_tools, *self._tool_selection.select(self.mcp_servers.tools()), build_recall_tool(session)]
        if self._memory is not None:
            tools += build_memory_tools(self._memory, _conversation_id(request, session))
        if self._peers is not None and self._agents:
            tools.append(build_ask_agent_tool(self._peers, self._agents, self._limits.tool_timeout_s))
        return Toolbox(tools, self._limits, session, ApprovalGate(self._approvals, self._approved_tools, session))

    def _find_approved_tools(self) -> frozenset[str]:
        """Return the tools that `human_in_the_loop` of the manifest names. ConfigError for an unknown name."""
        policy, nodes = self._manifest.policy, _node_ids(self._manifest)
        own = {*RESERVED_TOOL_NAMES, *(tool.name for tool in self._tools)}
        found = set()
        for number, name in enumerate(policy.human_in_the_loop if policy is not None else ()):
            tool = name if name in own else self.mcp_servers.find_tool_name(name)
            if tool is not None:
                found.add(tool)
            elif name in nodes:
                text = "%s: policy.human_in_the_loop[%d] of the manifest has no effect: nodes are not run; name tools"
                log.warning(text, self._manifest.metadata.name, number)
            else:
                remedy = "name a tool of the agent, mcp://server/tool, or the id of a node"
                raise ConfigError(f"policy.human_in_the_loop[{number}]", f'there is no tool or node "{name}"; {remedy}')
        return frozenset(found)


def _model_name(manifest: AgentDefinition, stand_in: StandIn | None) -> str:
    config = manifest.config.llm_config
    name = config.model if config is not None else os.environ.get("OPENAI_MODEL") if stand_in is None else stand_in.model
    if not name:
        problem = (
            "no model is named; name it here, as config.model_config.model in the manifest, or as OPENAI_MODEL; "
            f"the name {MODEL_NAME} stands for a script"
        )
        raise ConfigError("options.model", problem)
    return name


def _manifest_fields(manifest: AgentDefinition) -> dict[str, Any]:
    """Build the fields that the manifest adds to every request to the model."""
    config = manifest.config.llm_config
    if config is None or "temperature" not in config.model_fields_set:  # some models only accept their own
        return {}
    return {"temperature": config.temperature}


def _node_ids(manifest: AgentDefinition) -> set[str]:
    ids = (node.get("id") if isinstance(node, Mapping) else node for node in manifest.config.nodes)
    return {node_id for node_id in ids if isinstance(node_id, str)}


def _conversation_id(request: AgentRequest, session: SessionHandle) -> str:
    return str(request.metadata.get("conversation_id") or session.session_id)


def _check_tool_names(tools: Sequence[Tool], servers: MCPServers) -> None:
    names = [tool.name for tool in tools]
    for name in names:
        if name in RESERVED_TOOL_NAMES:
            raise ConfigError("options.tools", f'"{name}" is the name of a built-in tool; rename yours')
        if servers.may_own_tool(name):
            raise ConfigError("options.tools", f'"{name}" may be the name of a tool of an MCP server; rename yours')
        if names.count(name) > 1:
            raise ConfigError("options.tools", f'two tools are called "{name}"; rename one')
