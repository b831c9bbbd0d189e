"""The routes of the A2A door: below /a2a/NAME is the agent of this name, by both bindings."""

from __future__ import annotations

import logging

from a2a.server.context import ServerCallContext
from a2a.server.routes import ServerCallContextBuilder, create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..authentication import caller_of
from ..doors import DoorAgent, Doors
from ..errors import HttpRefusal
from ..server import DoorRoutes
from .card import make_card
from .handler import CALLER, AgentHandler

DOOR = "a2a"
PATH = "/a2a"
_CARD_CACHE = "private, max-age=300"
_RETRY_AFTER_S = 5.0


def make_routes(doors: Doors, url: str) -> DoorRoutes:
    """Make the routes of the agents behind the A2A door. `url` is the public address of the server."""
    logging.getLogger("a2a").setLevel(logging.CRITICAL)  # anyone can send what it warns of, and it quotes that
    app = A2ADoor(doors, url.rstrip("/") + PATH)
    return DoorRoutes(routes=(Route(f"{PATH}/{{agent}}", app), Route(f"{PATH}/{{agent}}/{{rest:path}}", app)))


class A2ADoor:
    """The agents behind the A2A door, as an ASGI application. A key that does not open an agent finds none."""

    def __init__(self, doors: Doors, url: str) -> None:
        self._doors = doors
        self._url = url
        self._routers: dict[str, tuple[DoorAgent, ASGIApp]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["agent"]
        agent = self._doors.find(DOOR, caller_of(HTTPConnection(scope)), name)
        if agent is None:
            raise HttpRefusal(404, "this key opens no agent of this name by A2A; correct the address")
        if not agent.is_open:
            raise HttpRefusal(503, "the agent does not run at the moment; try again", retry_after_s=_RETRY_AFTER_S)
        made_for, router = self._routers.get(name, (None, None))
        if router is None or made_for is not agent:
            router = _make_router(agent, f"{self._url}/{name}")
            self._routers[name] = agent, router
        root = f"{scope.get('root_path', '')}{PATH}/{name}"
        path = scope["path"]
        # A client of JSON-RPC posts to the address of the agent, without a slash at its end.
        await router({**scope, "root_path": root, "path": path if path != root else f"{path}/"}, receive, send)


class _CallContexts(ServerCallContextBuilder):
    """What the handler reads of a request: the caller, and the version of the protocol."""

    def build(self, request: Request) -> ServerCallContext:
        return ServerCallContext(state={CALLER: caller_of(request), "headers": dict(request.headers)})


def _make_router(agent: DoorAgent, url: str) -> Router:
    handler, contexts = AgentHandler(agent), _CallContexts()
    routes: list[BaseRoute] = [
        *create_jsonrpc_routes(handler, "/", contexts),
        # After them come the paths of tenants, which this server does not have. They would take every path.
        *(route for route in create_rest_routes(handler, contexts) if isinstance(route, Route)),
        *create_agent_card_routes(make_card(agent.manifest, url), cache_control=_CARD_CACHE),
    ]
    return Router(routes, redirect_slashes=False)
