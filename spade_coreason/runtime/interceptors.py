"""Interceptors of an agent: found by their names in the configuration, made, and chained around `assist`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ..config import describe_error, load_attribute
from ..contracts import Agent, AgentRequest, Interceptor, Next, Response, Session
from ..exceptions import ConfigError

InterceptorSource: TypeAlias = Interceptor | Callable[..., Interceptor]
"""An interceptor, or a class or function that makes one. A parameter `agent` of it gets the bare JID of the agent."""


def load_interceptors(specs: Sequence[str], project: Path, place: str, agent_jid: str) -> list[Interceptor]:
    """Import and make the interceptors that `specs` (`module:attribute`) name, for one agent (a bare JID).

    ConfigError if one is not found or cannot be made. `place` is that of the list in the configuration.
    """
    return [
        make_interceptor(load_attribute(spec, project, f"{place}[{number}]"), f"{place}[{number}]", agent_jid, project)
        for number, spec in enumerate(specs)
    ]


def make_interceptor(source: InterceptorSource, place: str, agent_jid: str, project: Path) -> Interceptor:
    """Return the interceptor of a source, for one agent (a bare JID). ConfigError if the source makes none."""
    interceptor = source if isinstance(source, Interceptor) else _call(source, place, agent_jid, project)
    if not isinstance(interceptor, Interceptor):
        raise ConfigError(
            place, f"{interceptor!r} is no interceptor; derive its class from spade_coreason.contracts.Interceptor"
        )
    name = type(interceptor).__name__
    if inspect.iscoroutinefunction(interceptor.receive):
        raise ConfigError(place, f"{name}.receive must not wait; write def receive, without async")
    if not inspect.iscoroutinefunction(interceptor.assist):
        raise ConfigError(place, f"{name}.assist is no coroutine function; write async def assist")
    return interceptor


def _call(source: object, place: str, agent_jid: str, project: Path) -> object:
    if not callable(source):
        return source
    name = getattr(source, "__name__", repr(source))
    try:
        takes_agent = "agent" in inspect.signature(source).parameters
        return source(agent=agent_jid) if takes_agent else source()
    except Exception as error:  # code of the user
        raise ConfigError(place, f"{name} cannot be made: {describe_error(error, project)}; correct it there") from error


def chain_around(agent: Agent, interceptors: Sequence[Interceptor]) -> Next:
    """Return the agent's `assist` with the interceptors around it, the first one outermost."""
    assist: Next = agent.assist
    for interceptor in reversed(interceptors):
        if type(interceptor).assist is not Interceptor.assist:
            assist = _link(interceptor, assist)
    return assist


def _link(interceptor: Interceptor, next: Next) -> Next:
    async def assist(request: AgentRequest, session: Session, response: Response) -> None:
        return await interceptor.assist(request, session, response, next)

    return assist
