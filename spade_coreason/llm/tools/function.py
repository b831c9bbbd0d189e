"""A Python function as a tool of a language model: its schema from its annotations, its description from its docstring."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError

from ...concurrency import DaemonThreads
from ...config import describe_error
from ...contracts import AgentRequest, RiskLevel, Session, SessionHandle
from ...domain.texts.enumeration import did_you_mean
from ...exceptions import ConfigError
from .parameters import build_parameters

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

log = logging.getLogger(__name__)

MAX_DESCRIPTION_CHARACTERS = 1024
"""The most that OpenAI takes. It refuses a request with a longer description; the rest is cut."""
KEY_PARAMETER = "idempotency_key"
"""The parameter of a tool that gets the idempotency key of a call."""
_TURN_PARAMETERS: Mapping[str, tuple[Any, ...]] = {"request": (AgentRequest,), "session": (Session, SessionHandle)}
"""The parameters of a tool that get the request and the session of its turn, with their annotations."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RISK_ATTRIBUTE = "__tool_risk__"
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?):\s*$", re.M)
_ARGUMENT = re.compile(r"^[^\S\n]+(\w+)(?:[^\S\n]*\([^)\n]*\))?:\s*(.+)$", re.M)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a model may call. ConfigError for an invalid name.

    `call(arguments)` returns the result: a value that can be written as JSON or has a text.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its arguments, as a request has it (`build_parameters`)."""
    call: Callable[[dict[str, Any]], Awaitable[Any]]
    takes_idempotency_key: bool = False
    """True if `call` gets the argument `idempotency_key`, which the model does not see: a text that is the same if the call is
    repeated after a crash."""
    turn_parameters: frozenset[str] = frozenset()
    """The arguments of `call` that the model does not see: `request`, `session` or both, those of the turn."""
    risk: RiskLevel = RiskLevel.STANDARD
    """The risk of a call. From the risk `ToolApprovals.from_risk` on, a person approves each call before it runs."""
    check: Callable[[dict[str, Any]], object] | None = None
    """Raises pydantic's ValidationError for arguments of the model that do not fit. No one is asked to approve such a call."""
    origin: Any = None
    """The origin of a tool of others, such as its server and its hash: a JSON value. An approval counts for this one only."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            problem = "is not a valid tool name; use at most 64 letters, digits, _ and -"
            raise ConfigError("options.tools", f'"{self.name}" {problem}')
        object.__setattr__(self, "risk", _parse_risk(self.risk))

    def for_turn(self, request: AgentRequest, session: SessionHandle) -> Tool:
        """Return the tool of one turn, whose calls get the request and the session if the tool wants them."""
        values: dict[str, Any] = {"request": request, "session": session}
        given = {name: values[name] for name in self.turn_parameters}
        return replace(self, call=lambda arguments: self.call({**arguments, **given})) if given else self

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as an element of `tools` in a request."""
        description = self.description[:MAX_DESCRIPTION_CHARACTERS]
        function = {"name": self.name, "description": description, "parameters": self.parameters}
        return {"type": "function", "function": function}


def _parse_risk(risk: RiskLevel | str) -> RiskLevel:
    try:
        return RiskLevel(risk)
    except ValueError as error:
        raise ConfigError("options.tools", f"the risk of a tool is safe, standard or critical, not {risk!r}") from error


def tool(*, risk: RiskLevel | Literal["safe", "standard", "critical"]) -> Callable[[FunctionT], FunctionT]:
    """Declare the risk of a function as a tool: `@tool(risk="critical")`. Without it the risk is "standard".

    From the risk `approvals.from_risk` on, "critical" by default, a person approves each call before it runs. ConfigError for
    an unknown risk.
    """
    parsed = _parse_risk(risk)

    def declare(function: FunctionT) -> FunctionT:
        setattr(function, _RISK_ATTRIBUTE, parsed)
        return function

    return declare


def build_tool(spec: Tool | Callable[..., Any] | str, threads: DaemonThreads) -> Tool:
    """Build a tool from a Tool, a function or "module:function". A plain function runs in a thread.

    Each parameter needs an annotation that pydantic can make a schema of. Parameters `request: AgentRequest` and
    `session: Session` get those of the turn, and `idempotency_key` gets the key of the call. The model does not see them. The
    first paragraphs of the docstring describe the tool. Its section "Args:" and `Annotated[…, Field(description=…)]` describe
    the parameters. ConfigError for anything else.
    """
    function = import_function(spec, "options.tools") if isinstance(spec, str) else spec
    if isinstance(function, Tool):
        return _with_accepted_parameters(function)
    name = getattr(function, "__name__", "")
    if not callable(function) or inspect.isclass(function) or not name:
        raise ConfigError("options.tools", f"{function!r} is not a function; write one with annotations and a docstring")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError("options.tools", f"{name} is a generator; use return instead of yield")
    description, descriptions = _parse_docstring(function)
    arguments, turn_parameters = _build_arguments_model(function, name, descriptions)
    is_async = inspect.iscoroutinefunction(function)
    takes_key = KEY_PARAMETER in inspect.signature(function).parameters
    platform_parameters = turn_parameters | {KEY_PARAMETER} if takes_key else turn_parameters

    async def call(raw_arguments: dict[str, Any]) -> Any:
        given = {name: raw_arguments[name] for name in platform_parameters}
        validated = arguments.model_validate({name: value for name, value in raw_arguments.items() if name not in given})
        values = {info.alias or field: getattr(validated, field) for field, info in arguments.model_fields.items()} | given
        if is_async:
            return await function(**values)
        result = await threads.run(function, **values)
        return await result if inspect.isawaitable(result) else result

    parameters = _strip_titles(arguments.model_json_schema())
    risk = getattr(function, _RISK_ATTRIBUTE, RiskLevel.STANDARD)
    built = Tool(name, description, parameters, call, takes_key, turn_parameters, risk, arguments.model_validate)
    return _with_accepted_parameters(built)


def _with_accepted_parameters(tool: Tool) -> Tool:
    """Return a tool whose schema every server accepts. ConfigError if that is impossible."""
    if len(tool.description) > MAX_DESCRIPTION_CHARACTERS:
        log.warning("the description of the tool %s is cut at %s characters", tool.name, f"{MAX_DESCRIPTION_CHARACTERS:,}")
    try:
        return replace(tool, parameters=build_parameters(tool.parameters))
    except ValueError as error:
        problem = f"{tool.name}: its parameters need a JSON Schema of an object: {error}"
        raise ConfigError("options.tools", problem) from error


def _build_arguments_model(
    function: Callable[..., Any], name: str, descriptions: Mapping[str, str]
) -> tuple[type[BaseModel], frozenset[str]]:
    """Return the model of the arguments that the language model gives, and the names of those that the turn gives."""
    turn_parameters: set[str] = set()
    try:
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigError(
                    "options.tools", f"{name}: {parameter} cannot be passed by name; write it as a plain parameter"
                )
            if parameter.name == KEY_PARAMETER:
                continue  # the platform gives it
            if hints.get(parameter.name) in _TURN_PARAMETERS.get(parameter.name, ()):
                turn_parameters.add(parameter.name)
                continue
            if parameter.name == "self":
                problem = f"is a method of a class; give a function, or a method of an object, such as desk.{name}"
                raise ConfigError("options.tools", f"{name} {problem}")
            if parameter.name not in hints:
                raise ConfigError(
                    "options.tools", f"{name}: {parameter.name} needs an annotation, such as {parameter.name}: str"
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            # A name of ours, because pydantic's models have attributes such as json, schema and copy.
            described = Field(default, alias=parameter.name, description=descriptions.get(parameter.name))
            fields[f"argument_{len(fields)}"] = (hints[parameter.name], described)
        model = create_model(name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields)
        model.model_json_schema()
    except (PydanticUserError, NameError, TypeError) as error:
        problem = f"{name}: cannot build a schema of its parameters: {str(error).partition(chr(10))[0]}"
        raise ConfigError("options.tools", problem) from error
    return model, frozenset(turn_parameters)


def _parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    text = inspect.getdoc(function) or ""
    first = _SECTION.search(text)
    arguments = re.search(r"^(?:Args|Arguments|Parameters):\s*\n((?:[ \t]+.*\n?)+)", text, re.M)
    descriptions = {name: description.strip() for name, description in _ARGUMENT.findall(arguments[1])} if arguments else {}
    return (text[: first.start()] if first else text).strip(), descriptions


def _strip_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: {name: _strip_titles(element) for name, element in value.items()}
            if key == "properties"
            else _strip_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_strip_titles(element) for element in schema] if isinstance(schema, list) else schema


def import_function(path: str, place: str) -> Any:
    """Import "module:function". ConfigError if it does not exist or its module cannot be imported."""
    module_name, _, name = path.partition(":")
    remedy = 'write it like "tools:opening_hours"'
    if not module_name or module_name.startswith(".") or not name:
        raise ConfigError(place, f'"{path}" names no function; {remedy}')
    try:
        module = import_module(module_name)
    except BaseException as error:  # the code of a module may raise anything, and no cancellation arrives here
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(place, f'"{path}" names no function ({error}); {remedy}') from error
        problem = f"{module_name} cannot be imported: {describe_error(error, Path.cwd())}; correct the module"
        raise ConfigError(place, problem) from error
    if not hasattr(module, name):
        public = (other for other in vars(module) if not other.startswith("_"))
        hint = did_you_mean(name, public, "correct the name after the colon")
        raise ConfigError(place, f'{module_name} has no "{name}"; {hint}')
    return getattr(module, name)
