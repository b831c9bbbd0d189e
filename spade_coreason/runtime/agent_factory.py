"""The factory of agents: `module:attribute` names a class, a factory or an instance, and parameters are filled by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..config import describe_error, load_attribute, load_manifest, suggest_agent_name
from ..contracts import Agent, AgentDefinition
from ..domain.environment.library_logs import except_package
from ..domain.texts.enumeration import did_you_mean
from ..exceptions import ConfigError
from .function_agent import FunctionAgent

AGENT_REQUIREMENTS = 'an agent has an attribute "manifest" and a coroutine assist(request, session, response)'


@dataclass(frozen=True, slots=True)
class Injectables:
    """The arguments that the platform has for the constructor of an agent.

    `peers`, `people`, `memory`, `knowledge`, `files`, `usage` and `topic_store` are functions, called only if the constructor
    has a parameter of that name. `manifest` takes precedence over `manifest_file`; without both, it is made from the name and
    the docstring.
    """

    manifest: AgentDefinition | None = None
    manifest_file: Path | None = None
    peers: Callable[[], object] | None = None
    people: Callable[[], object] | None = None
    memory: Callable[[], object] | None = None
    knowledge: Callable[[], object] | None = None
    files: Callable[[], object] | None = None
    usage: Callable[[], object] | None = None
    topic_store: Callable[[], object] | None = None

    @property
    def has_manifest(self) -> bool:
        """True if a manifest or its file is given."""
        return self.manifest is not None or self.manifest_file is not None


INJECTABLE_NAMES = ("manifest", "peers", "people", "memory", "knowledge", "files", "usage", "topic_store")


def load_agent(spec: str, *, place: str, project: Path, injectables: Injectables, options: Mapping[str, object]) -> Agent:
    """Import `spec` (`module:attribute`), from the directory `project` first, and return its agent.

    A class or a factory is called with the injectables that its parameters name, and with `options`. An instance is
    returned as it is. `place` is the place of the agent in the configuration (`config/platform.yaml: agents[2]`), or "".

    Every fault is a `ConfigError` of one line: the module is missing or raises, the attribute is missing or no agent, an
    option is unknown, or a parameter has no value.
    """
    agent_spec = _AgentSpec(spec, place, project, injectables, options)
    return agent_spec.build(agent_spec.find())


def find_agent(spec: str, *, place: str, project: Path) -> object:
    """Import the object that `spec` names, without making an agent of it. `ConfigError` as for `load_agent`."""
    return _AgentSpec(spec, place, project, Injectables(), {}).find()


def find_agents(specs: Iterable[tuple[str, str]], project: Path) -> None:
    """Import the objects of all pairs of place and spec. One `ConfigError` names all that are not found."""
    errors = []
    for place, spec in specs:
        try:
            find_agent(spec, place=place, project=project)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise ConfigError.combine(errors)


def build_agent(target: object, *, injectables: Injectables, options: Mapping[str, object]) -> Agent:
    """Return the agent of a class, a factory or an instance. `ConfigError` as for `load_agent`."""
    named = target.func if isinstance(target, partial) else target
    name = getattr(named, "__name__", type(named).__name__)
    return _AgentSpec(str(name), "", Path.cwd(), injectables, options).build(target)


def _is_instance(target: object) -> bool:
    # Statically, because a property may run any code; `check` reads it.
    return not inspect.isclass(target) and all(inspect.getattr_static(target, name, None) for name in ("manifest", "assist"))


@dataclass(frozen=True, slots=True)
class _AgentSpec:
    """The arguments of one call of `load_agent`, which its errors name."""

    spec: str
    place: str
    project: Path
    injectables: Injectables
    options: Mapping[str, object]

    def place_of(self, key: str) -> str:
        if self.place:
            return f"{self.place}.{key}"
        return "" if key == "agent" else key

    def make_error(self, problem: str, key: str = "agent") -> ConfigError:
        return ConfigError(self.place_of(key), problem)

    # Import

    def find(self) -> Any:
        name, colon, path = self.spec.partition(":")
        if not (name and colon and path):
            raise self.make_error(f'"{self.spec}" does not name an agent; {suggest_agent_name(self.spec, self.project)}')
        except_package(name)
        return load_attribute(self.spec, self.project, self.place_of("agent"))

    # Construction

    def build(self, target: Any) -> Agent:
        if isinstance(target, FunctionAgent) and target.extra_parameters:
            target = target.as_factory
        if not _is_instance(target):
            return self.check(self.instantiate(target))
        self.refuse_options_for_instance()
        return self.check(target)

    def instantiate(self, target: Any) -> Any:
        if inspect.iscoroutinefunction(target):
            raise self.make_error(f"{self.spec} is a coroutine function, not an agent; put @agent(...) above it")
        if not callable(target):
            raise self.no_agent_error(f"it is {_describe_type(target)}; {AGENT_REQUIREMENTS}")
        arguments = self.collect_arguments(target)
        try:
            return target(**arguments)
        except ConfigError as error:
            if not error.place or error.place.startswith("options"):
                mistakes = (error, *error.others)
                raise ConfigError.combine(self.make_error(each.problem, each.place or "agent") for each in mistakes) from error
            raise
        except BaseException as error:  # a constructor is code of the user, and no cancellation arrives here
            raise self.make_error(
                f"{self.spec} cannot be created: {describe_error(error, self.project)}; correct its code"
            ) from error

    def collect_arguments(self, target: Any) -> dict[str, object]:
        try:
            parameters = list(inspect.signature(target).parameters.values())
        except (TypeError, ValueError) as error:
            raise self.make_error(f"the parameters of {self.spec} are unknown; use a class or a function") from error
        named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        accepts_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.check_options(named, accepts_any)
        injected = {
            name: injectable
            for name in INJECTABLE_NAMES
            if name in named and (injectable := self.get_injectable(named[name], target)) is not None
        }
        arguments = {**injected, **self.options}
        for parameter in parameters:
            required = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            )
            if required and (parameter.name not in arguments or parameter.kind is parameter.POSITIONAL_ONLY):
                raise self.missing_error(parameter)
        return arguments

    def check_options(self, parameters: Mapping[str, inspect.Parameter], accepts_any: bool) -> None:
        for name in self.options:
            if name in INJECTABLE_NAMES:
                other = "; name the file with manifest:" if name == "manifest" else ""
                raise self.make_error(f"the platform sets {name} itself; remove it{other}", f"options.{name}")
            if name not in parameters and not accepts_any:
                known = [other for other in parameters if other not in INJECTABLE_NAMES]
                hint = did_you_mean(name, known, f"it takes {', '.join(known) or 'none'}")
                raise self.make_error(f"unknown option of {self.spec}; {hint}", f"options.{name}")
        if self.injectables.has_manifest and "manifest" not in parameters:
            problem = f'{self.spec} has its own manifest; remove this one, or add a parameter "manifest"'
            raise self.make_error(problem, "manifest")

    def get_injectable(self, parameter: inspect.Parameter, target: Any) -> object | None:
        if parameter.name == "manifest":
            configured = self.injectables.manifest or self.read_manifest_file()
            has_default = parameter.default not in (parameter.empty, None)
            return configured or (None if has_default else _manifest_of(target, self.spec))
        create: Callable[[], object] | None = getattr(self.injectables, parameter.name)
        return None if create is None else create()

    def read_manifest_file(self) -> AgentDefinition | None:
        if self.injectables.manifest_file is None:
            return None
        try:
            return load_manifest(self.injectables.manifest_file)
        except ConfigError as error:
            raise self.make_error(str(error), "manifest") from error

    def missing_error(self, parameter: inspect.Parameter) -> ConfigError:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            return self.make_error(f'{self.spec} takes "{parameter.name}" by position only; remove the "/" after it')
        if parameter.name in INJECTABLE_NAMES:
            return self.make_error(f"{self.spec} needs {parameter.name}, which is not available here; give it a default")
        return self.make_error(f"is missing, and {self.spec} needs it; set a value", f"options.{parameter.name}")

    # Check

    def refuse_options_for_instance(self) -> None:
        for name in self.options:
            problem = f"{self.spec} is already an agent and takes no options; name its class instead, or remove the options"
            raise self.make_error(problem, f"options.{name}")
        if self.injectables.has_manifest:
            problem = f"{self.spec} is already an agent with its own manifest; remove the other one"
            raise self.make_error(problem, "manifest")

    def check(self, agent: Any) -> Agent:
        try:
            missing = [name for name in ("manifest", "assist") if getattr(agent, name, None) is None]
        except BaseException as error:  # a property is code of the user
            raise self.make_error(
                f"{self.spec} has no manifest: {describe_error(error, self.project)}; correct its code"
            ) from error
        if missing:
            raise self.no_agent_error(f'it is {_describe_type(agent)} without "{missing[0]}"; {AGENT_REQUIREMENTS}')
        if not isinstance(agent, Agent):
            raise self.no_agent_error(
                f"it is {_describe_type(agent)} that has them only through __getattr__; {AGENT_REQUIREMENTS}"
            )
        assist: Any = agent.assist
        if inspect.isasyncgenfunction(assist):
            raise self.no_agent_error("its assist is a generator; answer with await response.markdown(...), not with yield")
        if not callable(assist) or not (inspect.iscoroutinefunction(assist) or _has_async_call(type(assist))):
            raise self.no_agent_error(
                'its assist is not a coroutine; write "async def assist(self, request, session, response)"'
            )
        try:
            inspect.signature(assist).bind(None, None, None)
        except TypeError as error:
            problem = f"its assist cannot be called with (request, session, response): {error}"
            raise self.no_agent_error(f"{problem}; {AGENT_REQUIREMENTS}") from error
        return agent

    def no_agent_error(self, problem: str) -> ConfigError:
        return self.make_error(f"{self.spec} is not an agent: {problem}")


def _has_async_call(kind: Any) -> bool:
    return inspect.iscoroutinefunction(kind.__call__)


def _describe_type(agent: object) -> str:
    name = type(agent).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _manifest_of(target: Any, spec: str) -> AgentDefinition:
    target = target.func if isinstance(target, partial) else target
    name = getattr(target, "__name__", None) or spec.rpartition(":")[2]
    # The docstring of the class itself, because that of a base class does not describe it. A dataclass without a docstring
    # has its signature there.
    text = (vars(target) if inspect.isclass(target) else {"__doc__": getattr(target, "__doc__", None)}).get("__doc__") or ""
    lines = [] if text.startswith(f"{name}(") else inspect.cleandoc(text).splitlines()
    examples = getattr(target, "examples", ())
    return AgentDefinition.simple(
        name, description=next(iter(lines), ""), examples=examples if isinstance(examples, list | tuple) else ()
    )
