"""An agent from `module:attribute`: a class, a factory or an instance, given the parts that it asks for by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import describe, find_attribute, how_to_name, load_manifest, nearest
from ..contracts import AgentDefinition, AgentInterface
from ..exceptions import ConfigError
from .function_agent import FunctionAgent

WHAT_AN_AGENT_IS = 'an agent has an attribute "manifest" and a coroutine assist(request, session, response)'


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What the platform has for an agent's constructor.

    `peers`, `memory`, `knowledge`, `files` and `usage` are made by calling them, and only if a parameter of that name asks
    for them. `manifest` goes before `manifest_file`; with neither, one is made from the name and the docstring.
    """

    manifest: AgentDefinition | None = None
    manifest_file: Path | None = None
    peers: Callable[[], object] | None = None
    memory: Callable[[], object] | None = None
    knowledge: Callable[[], object] | None = None
    files: Callable[[], object] | None = None
    usage: Callable[[], object] | None = None


PARTS = ("manifest", "peers", "memory", "knowledge", "files", "usage")


def load_agent(spec: str, *, place: str, project: Path, parts: AgentParts, options: Mapping[str, object]) -> AgentInterface:
    """Imports `spec` from `project` first and returns its agent.

    A class or a factory is called with the parts that its parameters name, and with `options`; an instance is taken as it
    is. `place` is where the agent is configured (`config/platform.yaml: agents[2]`), or "" if it is not. Whatever is wrong
    is a ConfigError of one line: the module is not there or raises, the attribute is missing or no agent, an option is
    unknown, a parameter is left without a value.
    """
    wanted = _Wanted(spec, place, project, parts, options)
    return wanted.build(wanted.find())


def find_agent(spec: str, *, place: str, project: Path) -> object:
    """Imports what `spec` names, and makes nothing of it. ConfigError as for `load_agent`."""
    return _Wanted(spec, place, project, AgentParts(), {}).find()


def find_agents(placed: Iterable[tuple[str, str]], project: Path) -> None:
    """`find_agent` for each place and what is named there; one ConfigError for all that are not found."""
    mistakes = []
    for place, spec in placed:
        try:
            find_agent(spec, place=place, project=project)
        except ConfigError as error:
            mistakes.append(error)
    if mistakes:
        raise ConfigError.of(mistakes)


def build_agent(found: object, *, parts: AgentParts, options: Mapping[str, object]) -> AgentInterface:
    """The agent that a class or a factory makes, or that an instance is; ConfigError as for `load_agent`."""
    name = getattr(found, "__name__", type(found).__name__)
    return _Wanted(str(name), "", Path.cwd(), parts, options).build(found)


def _is_instance(found: object) -> bool:
    # Statically: a property may do anything, and is looked at in `check`.
    return not inspect.isclass(found) and all(inspect.getattr_static(found, name, None) for name in ("manifest", "assist"))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One call of `load_agent`, with what its errors need."""

    spec: str
    place: str
    project: Path
    parts: AgentParts
    options: Mapping[str, object]

    def at(self, key: str) -> str:
        if self.place:
            return f"{self.place}.{key}"
        return "" if key == "agent" else key

    def error(self, problem: str, key: str = "agent") -> ConfigError:
        return ConfigError(self.at(key), problem)

    # Finding it

    def find(self) -> Any:
        name, colon, path = self.spec.partition(":")
        if not (name and colon and path):
            raise self.error(f'"{self.spec}" does not name an agent; {how_to_name(self.spec, self.project)}')
        return find_attribute(self.spec, self.project, self.at("agent"))

    # Making it

    def build(self, found: Any) -> AgentInterface:
        if isinstance(found, FunctionAgent) and found.further_parameters:
            found = found.configured
        if not _is_instance(found):
            return self.check(self.make(found))
        self.refuse_for_instance()
        return self.check(found)

    def make(self, found: Any) -> Any:
        if inspect.iscoroutinefunction(found):
            raise self.error(f"{self.spec} is a coroutine function, not an agent; put @agent(...) above it")
        if not callable(found):
            raise self.no_agent(f"it is {_a(found)}; {WHAT_AN_AGENT_IS}")
        arguments = self.arguments(found)
        try:
            return found(**arguments)
        except ConfigError as error:
            if not error.place or error.place.startswith("options"):
                raise ConfigError(self.at(error.place or "agent"), error.problem) from error
            raise
        except Exception as error:  # a constructor is somebody else's code
            raise self.error(f"{self.spec} cannot be made: {describe(error, self.project)}; correct it there") from error

    def arguments(self, found: Any) -> dict[str, object]:
        try:
            parameters = list(inspect.signature(found).parameters.values())
        except (TypeError, ValueError) as error:
            raise self.error(f"{self.spec} does not say what it is called with; write a class or a function") from error
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.check_options(named, takes_any)
        given = {name: part for name in PARTS if name in named and (part := self.part(named[name], found)) is not None}
        arguments = {**given, **self.options}
        for parameter in parameters:
            required = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            )
            if required and (parameter.name not in arguments or parameter.kind is parameter.POSITIONAL_ONLY):
                raise self.missing(parameter)
        return arguments

    def check_options(self, named: Mapping[str, inspect.Parameter], takes_any: bool) -> None:
        for name in self.options:
            if name in PARTS:
                other = "; name its file with manifest:" if name == "manifest" else ""
                raise self.error(f"the platform gives {name} itself; leave it out{other}", f"options.{name}")
            if name not in named and not takes_any:
                known = [other for other in named if other not in PARTS]
                near = nearest(name, known)
                hint = f'did you mean "{near}"?' if near else f"it takes {', '.join(known) or 'none'}"
                raise self.error(f"unknown option of {self.spec}; {hint}", f"options.{name}")
        if self.parts.manifest_file is not None and "manifest" not in named:
            problem = f'{self.spec} has a manifest of its own; leave this out, or give it a parameter "manifest"'
            raise self.error(problem, "manifest")

    def part(self, parameter: inspect.Parameter, found: Any) -> object | None:
        if parameter.name == "manifest":
            configured = self.parts.manifest or self.manifest_in_file()
            own = parameter.default not in (parameter.empty, None)
            return configured or (None if own else _manifest_of(found, self.spec))
        make: Callable[[], object] | None = getattr(self.parts, parameter.name)
        return None if make is None else make()

    def manifest_in_file(self) -> AgentDefinition | None:
        if self.parts.manifest_file is None:
            return None
        try:
            return load_manifest(self.parts.manifest_file)
        except ConfigError as error:
            raise self.error(str(error), "manifest") from error

    def missing(self, parameter: inspect.Parameter) -> ConfigError:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return self.error(f'{self.spec} takes "{parameter.name}" by position only; remove the "/" behind it')
        if parameter.name in PARTS:
            return self.error(f"{self.spec} asks for {parameter.name}, which there is none of here; give it a default")
        return self.error(f"is missing, and {self.spec} needs it; give it a value", f"options.{parameter.name}")

    # Looking at it

    def refuse_for_instance(self) -> None:
        for name in self.options:
            problem = f"{self.spec} is an agent already and takes no options; name its class instead, or leave it out"
            raise self.error(problem, f"options.{name}")
        if self.parts.manifest_file is not None:
            problem = f"{self.spec} is an agent already, with a manifest of its own; leave it out"
            raise self.error(problem, "manifest")

    def check(self, agent: Any) -> AgentInterface:
        try:
            lacking = [name for name in ("manifest", "assist") if getattr(agent, name, None) is None]
        except Exception as error:  # a property is somebody else's code
            raise self.error(f"{self.spec} has no manifest: {describe(error, self.project)}; correct it there") from error
        if lacking:
            raise self.no_agent(f'it is {_a(agent)} without "{lacking[0]}"; {WHAT_AN_AGENT_IS}')
        if not isinstance(agent, AgentInterface):
            raise self.no_agent(f"it is {_a(agent)} whose __getattr__ has them only; {WHAT_AN_AGENT_IS}")
        assist: Any = agent.assist
        if inspect.isasyncgenfunction(assist):
            raise self.no_agent("its assist is a generator; answer with await response.markdown(...), not with yield")
        if not callable(assist) or not (inspect.iscoroutinefunction(assist) or _is_awaited(type(assist))):
            raise self.no_agent('its assist is no coroutine; write "async def assist(self, request, session, response)"')
        try:
            inspect.signature(assist).bind(None, None, None)
        except TypeError as error:
            problem = f"its assist cannot be called with (request, session, response): {error}"
            raise self.no_agent(f"{problem}; {WHAT_AN_AGENT_IS}") from error
        return agent

    def no_agent(self, problem: str) -> ConfigError:
        return self.error(f"{self.spec} is no agent: {problem}")


def _is_awaited(kind: Any) -> bool:
    return inspect.iscoroutinefunction(kind.__call__)


def _a(agent: object) -> str:
    name = type(agent).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _manifest_of(found: Any, spec: str) -> AgentDefinition:
    name = getattr(found, "__name__", None) or spec.rpartition(":")[2]
    # Of the class itself: that of a base says nothing about it, and a dataclass without one gets its signature.
    text = (vars(found) if inspect.isclass(found) else {"__doc__": getattr(found, "__doc__", None)}).get("__doc__") or ""
    lines = [] if text.startswith(f"{name}(") else inspect.cleandoc(text).splitlines()
    return AgentDefinition.simple(name, description=next(iter(lines), ""))
