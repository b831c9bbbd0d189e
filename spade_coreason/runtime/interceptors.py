"""Load interceptors from the configuration, and chain them around `assist`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ..config import describe_error, load_attribute
from ..contracts import Agent, AgentRequest, Interceptor, Next, Response, Session
from ..domain.environment.library_logs import except_package
from ..exceptions import ConfigError

InterceptorSource: TypeAlias = Interceptor | Callable[..., Interceptor]
"""An interceptor, or a class or function that makes one. A parameter `agent` of it gets the bare JID of the agent."""


def load_interceptors(specs: Sequence[str], project: Path, place: str, agent_jid: str) -> list[Interceptor]:
    """Import and make the interceptors that `specs` (`module:attribute`) name, for one agent (a bare JID).

    ConfigError if one is not found or cannot be made. `place` names the list in the configuration, for error messages.
    """
    for spec in specs:
        except_package(spec.partition(":")[0])
    return [
        make_interceptor(load_attribute(spec, project, f"{place}[{number}]"), f"{place}[{number}]", agent_jid, project)
        for number, spec in enumerate(specs)
    ]


def make_interceptor(source: InterceptorSource, place: str, agent_jid: str, project: Path) -> Interceptor:
    """Return the interceptor of a source, for one agent (a bare JID). ConfigError if the source makes none."""
    interceptor = source if isinstance(source, Interceptor) else _call(source, place, agent_jid, project)
    name = type(interceptor).__name__
    if not isinstance(interceptor, Interceptor):
        made = f"{getattr(source, '__name__', 'it')} returned a value of type {name}"
        raise ConfigError(place, f"{made}, not an interceptor; derive its class from spade_coreason.contracts.Interceptor")
    if not overrides(interceptor.receive, Interceptor.receive) and not overrides(interceptor.assist, Interceptor.assist):
        raise ConfigError(place, f"{name} overrides neither receive nor assist; define a method of exactly that name")
    if inspect.iscoroutinefunction(interceptor.receive):
        raise ConfigError(place, f"{name}.receive must not be a coroutine; write def receive, without async")
    if not inspect.iscoroutinefunction(inspect.unwrap(interceptor.assist)):
        raise ConfigError(place, f"{name}.assist is not a coroutine function; write async def assist")
    return interceptor


def overrides(method: Callable[..., object], base: Callable[..., object]) -> bool:
    """Return True if a method of an object, or a function that replaces it, is not that of the base class."""
    return getattr(method, "__func__", None) is not base


def _call(source: object, place: str, agent_jid: str, project: Path) -> object:
    if not callable(source):
        return source
    name = getattr(source, "__name__", repr(source))
    try:
        parameters = inspect.signature(source).parameters
        arguments = {"agent": agent_jid} if "agent" in parameters else {}
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        required = [p.name for p in parameters.values() if p.default is p.empty and p.kind in kinds and p.name not in arguments]
        if not required:
            return source(**arguments)
    except BaseException as error:  # code of the user, and no cancellation arrives here
        raise ConfigError(place, f"{name} cannot be created: {describe_error(error, project)}; correct its code") from error
    raise ConfigError(place, f"{name} needs {', '.join(required)}; add defaults, or name an instance")


def chain_around(
    agent: Agent, interceptors: Sequence[Interceptor], warn_of_return: Callable[[str, object], None]
) -> Next | None:
    """Return the agent's `assist` with the interceptors around it, the first one outermost; None if none is around it.

    `warn_of_return` is called with the name of an `assist` that has returned something, and with what it has returned.
    """
    around = [interceptor for interceptor in interceptors if overrides(interceptor.assist, Interceptor.assist)]
    if not around:
        return None

    async def assist_of_agent(request: AgentRequest, session: Session, response: Response) -> None:
        returned: object = await agent.assist(request, session, response)  # type: ignore[func-returns-value]  # it should
        if returned is not None:
            warn_of_return("assist", returned)

    chain: Next = assist_of_agent
    for interceptor in reversed(around):
        chain = _link(interceptor, chain, warn_of_return)
    return chain


def _link(interceptor: Interceptor, next: Next, warn_of_return: Callable[[str, object], None]) -> Next:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        returned: object = await interceptor.assist(request, session, response, next)  # type: ignore[func-returns-value]
        if returned is not None:
            warn_of_return(f"{type(interceptor).__name__}.assist", returned)

    return assist
