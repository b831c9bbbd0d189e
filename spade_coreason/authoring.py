"""The short way to write an agent: a decorator over one coroutine."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, overload

from .contracts import AgentDefinition, AgentRequest, MemoryConfig, ResponseHandler, SessionHandle

Assist: TypeAlias = Callable[..., Awaitable[None]]

_REQUEST = ("request", "session", "response")


class FunctionAgent:
    """An agent made of a coroutine function `(request, session, response)`: an AgentInterface like any other."""

    def __init__(self, function: Assist, manifest: AgentDefinition) -> None:
        self._function = function
        self._manifest = manifest
        self.__doc__ = function.__doc__
        self.__name__ = manifest.metadata.name

    @property
    def manifest(self) -> AgentDefinition:
        """What it is."""
        return self._manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        """Runs the coroutine."""
        await self._function(request, session, response)

    def __repr__(self) -> str:
        return f"<agent {self.__name__}>"


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

    The name is the function's, the description the first line of its docstring, unless given. Anything but a coroutine
    function of `(request, session, response)` is a TypeError. An agent that needs peers or options is written as a class.
    """

    def make(function: Assist) -> FunctionAgent:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"@agent: {getattr(function, '__name__', function)!s} must be `async def`")
        try:
            inspect.signature(function).bind(*_REQUEST)
        except TypeError:
            raise TypeError(f"@agent: {function.__name__} must take (request, session, response)") from None
        first_line = (inspect.getdoc(function) or "").partition("\n")[0]
        manifest = AgentDefinition.simple(
            name or function.__name__,
            version=version,
            description=description if description is not None else first_line,
            memory=memory,
        )
        return FunctionAgent(function, manifest)

    return make if function is None else make(function)
