"""The decorator `agent`, which makes an agent of one coroutine function."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, TypeAlias, overload

from ..contracts import AgentDefinition, AgentRequest, MemoryConfig, ResponseHandler, SessionHandle

Assist: TypeAlias = Callable[..., Awaitable[None]]

_REQUIRED_PARAMETERS = ("request", "session", "response")


class FunctionAgent:
    """An agent made of a coroutine function `(request, session, response)`. It is a full `AgentInterface`.

    Further parameters of the function (`peers`, `memory`, `files`, options) are passed by name in each call.
    """

    def __init__(self, function: Assist, manifest: AgentDefinition, arguments: Mapping[str, Any] | None = None) -> None:
        self._function = function
        self._manifest = manifest
        self._arguments = dict(arguments or {})
        self.__doc__ = function.__doc__
        self.__name__ = manifest.metadata.name

    @property
    def manifest(self) -> AgentDefinition:
        """The description of the agent."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Run the function. A return value, which its type forbids, is returned too, so that the log can name it."""
        return await self._function(request, session, response, **self._arguments)

    @property
    def function(self) -> Assist:
        """The function of which the agent is made."""
        return self._function

    @property
    def extra_parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the function after the request, the session and the response."""
        parameters = list(inspect.signature(self._function).parameters.values())[len(_REQUIRED_PARAMETERS) :]
        return tuple(
            parameter if parameter.kind is Parameter.VAR_KEYWORD else parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for parameter in parameters
            if parameter.kind is not Parameter.VAR_POSITIONAL
        )

    @property
    def as_factory(self) -> Callable[..., FunctionAgent]:
        """The agent as a factory: called with the further arguments, it returns an agent that has them."""
        return _AgentFactory(self)

    def with_arguments(self, arguments: Mapping[str, Any]) -> FunctionAgent:
        """Return an agent of the same function and manifest, whose function also receives `arguments`."""
        return FunctionAgent(self._function, self._manifest, {**self._arguments, **arguments})

    def __repr__(self) -> str:
        return f"<agent {self.__name__}>"


class _AgentFactory:
    """A factory with the further parameters of an agent's function as its signature."""

    def __init__(self, agent: FunctionAgent) -> None:
        self._agent = agent
        self.__name__ = agent.__name__
        self.__signature__ = inspect.Signature(agent.extra_parameters)

    def __call__(self, **arguments: Any) -> FunctionAgent:
        return self._agent.with_arguments(arguments)


@overload
def agent(function: Assist, /) -> FunctionAgent: ...


@overload
def agent(
    *,
    name: str | None = None,
    version: str = "0.1.0",
    description: str | None = None,
    memory: MemoryConfig | None = None,
    examples: Sequence[str] = (),
) -> Callable[[Assist], FunctionAgent]: ...


def agent(
    function: Assist | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "0.1.0",
    description: str | None = None,
    memory: MemoryConfig | None = None,
    examples: Sequence[str] = (),
) -> Any:
    """Make an agent of a coroutine function: `@agent` or `@agent(description="Knows the weather")`.

    `name` is by default that of the function, and `description` the first line of its docstring. `memory` is the policy of
    the history. `examples` are messages that the page in the browser offers as buttons. The function takes `(request,
    session, response)`. Further parameters are filled by name, as in the constructor of an agent class: `peers`, `memory`
    (the `AgentInteractionMemory`), `knowledge`, `files`, `usage`, and the `options` of the configuration. `TypeError` for
    anything but such a coroutine function.
    """

    def make(function: Assist) -> FunctionAgent:
        function_name = _check_function(function)
        first_line = (inspect.getdoc(function) or "").partition("\n")[0]
        manifest = AgentDefinition.simple(
            name or function_name,
            version=version,
            description=description if description is not None else first_line,
            memory=memory,
            examples=examples,
        )
        return FunctionAgent(function, manifest)

    return make if function is None else make(function)


def _check_function(function: Any) -> str:
    """Return the name of a function that can become an agent. `TypeError` for anything else."""
    name = str(getattr(function, "__name__", None) or repr(function))  # a partial has no name
    if isinstance(function, FunctionAgent):
        raise TypeError(f"@agent: {name} is already an agent; use @agent once")
    if inspect.isclass(function):
        raise TypeError(f"@agent: {name} is a class; a class with `manifest` and `assist` needs no decorator")
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"@agent: {name} is a generator; answer with `await response.markdown(...)`, not with `yield`")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@agent: {name} must be a function written with `async def`")
    parameters = list(inspect.signature(function).parameters.values())
    first, extra = parameters[: len(_REQUIRED_PARAMETERS)], parameters[len(_REQUIRED_PARAMETERS) :]
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if len(first) < len(_REQUIRED_PARAMETERS) or any(parameter.kind not in by_position for parameter in first):
        raise TypeError(f"@agent: {name} must take (request, session, response) first")
    for parameter in extra:
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise TypeError(f"@agent: {name} takes {parameter.name} by position only; it is filled by name: remove the `/`")
        if parameter.name == "manifest":
            raise TypeError(
                f"@agent: {name} has a parameter `manifest`; use the arguments name, version and description of @agent instead"
            )
    return name
