"""The short way to write an agent: a decorator over one coroutine."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from inspect import Parameter
from typing import Any, TypeAlias, overload

from ..contracts import AgentDefinition, AgentRequest, MemoryConfig, ResponseHandler, SessionHandle

Assist: TypeAlias = Callable[..., Awaitable[None]]

_REQUIRED_PARAMETERS = ("request", "session", "response")


class FunctionAgent:
    """An agent made of a coroutine function `(request, session, response)`: an AgentInterface like any other.

    What the function takes besides (`peers`, `memory`, `files`, options) is given to it by name, at every call.
    """

    def __init__(self, function: Assist, manifest: AgentDefinition, arguments: Mapping[str, Any] | None = None) -> None:
        self._function = function
        self._manifest = manifest
        self._arguments = dict(arguments or {})
        self.__doc__ = function.__doc__
        self.__name__ = manifest.metadata.name

    @property
    def manifest(self) -> AgentDefinition:
        """What it is."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Runs the coroutine; what it returns, against its type, is given on to be named in the log."""
        return await self._function(request, session, response, **self._arguments)

    @property
    def extra_parameters(self) -> tuple[Parameter, ...]:
        """What the function takes besides the request, the session and the response."""
        found = list(inspect.signature(self._function).parameters.values())[len(_REQUIRED_PARAMETERS) :]
        return tuple(
            parameter if parameter.kind is Parameter.VAR_KEYWORD else parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for parameter in found
            if parameter.kind is not Parameter.VAR_POSITIONAL
        )

    @property
    def as_factory(self) -> Callable[..., FunctionAgent]:
        """The same agent as a factory: called with the further parameters, it makes an agent that has them."""
        return _AgentFactory(self)

    def with_arguments(self, arguments: Mapping[str, Any]) -> FunctionAgent:
        """An agent of the same function and manifest, whose function gets `arguments` too."""
        return FunctionAgent(self._function, self._manifest, {**self._arguments, **arguments})

    def __repr__(self) -> str:
        return f"<agent {self.__name__}>"


class _AgentFactory:
    """A factory whose signature says what the function of an agent takes."""

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
) -> Callable[[Assist], FunctionAgent]: ...


def agent(
    function: Assist | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "0.1.0",
    description: str | None = None,
    memory: MemoryConfig | None = None,
) -> Any:
    """Makes an agent of a coroutine function: `@agent` or `@agent(description="Knows the weather")`.

    The name is the function's, the description the first line of its docstring, unless given; `memory` is the policy of its
    history. The function takes `(request, session, response)`; further parameters are filled by name as those of an agent
    class are: `peers`, `memory` (its AgentInteractionMemory), `knowledge`, `files`, and the `options` of a configuration.
    TypeError for anything but such a coroutine function.
    """

    def make(function: Assist) -> FunctionAgent:
        what = _check_function(function)
        first_line = (inspect.getdoc(function) or "").partition("\n")[0]
        manifest = AgentDefinition.simple(
            name or what,
            version=version,
            description=description if description is not None else first_line,
            memory=memory,
        )
        return FunctionAgent(function, manifest)

    return make if function is None else make(function)


def _check_function(function: Any) -> str:
    """The name of a function that an agent can be made of; TypeError for anything else."""
    what = str(getattr(function, "__name__", None) or repr(function))  # a partial has no name
    if isinstance(function, FunctionAgent):
        raise TypeError(f"@agent: {what} is an agent already; write @agent once")
    if inspect.isclass(function):
        raise TypeError(f"@agent: {what} is a class; one with `manifest` and `assist` is an agent without it")
    if inspect.isasyncgenfunction(function):
        raise TypeError(f"@agent: {what} is a generator; answer with `await response.markdown(...)`, not with `yield`")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"@agent: {what} must be a function written with `async def`")
    parameters = list(inspect.signature(function).parameters.values())
    first, further = parameters[: len(_REQUIRED_PARAMETERS)], parameters[len(_REQUIRED_PARAMETERS) :]
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    if len(first) < len(_REQUIRED_PARAMETERS) or any(parameter.kind not in by_position for parameter in first):
        raise TypeError(f"@agent: {what} must take (request, session, response) first")
    for parameter in further:
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            raise TypeError(f"@agent: {what} takes {parameter.name} by position only; it is filled by name: remove the `/`")
        if parameter.name == "manifest":
            raise TypeError(f"@agent: {what} takes a manifest, and has one of its own; say it with name, version, description")
    return what
