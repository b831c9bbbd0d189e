"""The routes of the A2A door: below /a2a/NAME is the agent of this name, by both bindings."""

from __future__ import annotations

import logging
from http import HTTPStatus

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes import ServerCallContextBuilder, create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidRequestError, VersionNotSupportedError
from pydantic_core import from_json
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ..agents import DoorAgent, DoorAgents
from ..authentication import caller_of
from ..errors import HttpError
from ..limits import MAX_PAYLOAD_BYTES, find_rpc_id, read_json, too_long
from ..server import DoorRoutes
from .card import make_card
from .handler import CALLER, REQUEST, AgentHandler

DOOR = "a2a"
PATH = "/a2a"
_CARD_CACHE = "private, max-age=300"
_RETRY_AFTER_S = 5.0
_NO_JSON = "the body must be JSON; send Content-Type: application/json"
_NO_VERSION = "the request names no version of A2A; send the header A2A-Version: 1.0"
_NO_AGENT = "this key opens no agent of this name by A2A; correct the name, or let its operator open the door or the key for it"


def make_a2a_routes(agents: DoorAgents, url: str) -> DoorRoutes:
    """Make the routes of the agents behind the A2A door. `url` is the public address of the server."""
    for name in ("a2a.server", "a2a.utils"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # anyone can send what they warn of, and they quote that
    app = _A2ADoor(agents, url.rstrip("/"))
    return DoorRoutes(routes=(Route(f"{PATH}/{{agent}}", app), Route(f"{PATH}/{{agent}}/{{rest:path}}", app)))


class _A2ADoor:
    """The agents behind the A2A door, as an ASGI application. A key that does not open an agent finds none."""

    def __init__(self, agents: DoorAgents, url: str) -> None:
        self._agents = agents
        self._url = url
        self._routers: dict[str, tuple[DoorAgent, ASGIApp]] = {}
        self._handlers: dict[DoorAgent, AgentHandler] = {}
        """One for each agent, also if it is reached by its JID and by its name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["agent"]
        caller = caller_of(HTTPConnection(scope))
        agent = self._agents.find(DOOR, caller, name)
        if agent is None:
            raise HttpError(404, _NO_AGENT)
        try:
            is_allowed = await agent.requests.is_allowed(caller)
        except ConnectionError as error:
            text = "the agent does not run at the moment; try again"
            raise HttpError(503, text, retry_after_s=_RETRY_AFTER_S) from error
        if not is_allowed:
            raise HttpError(403, "you have no access to this agent; ask its operator")
        made_for, router = self._routers.get(name, (None, None))
        if router is None or made_for is not agent:
            handler = self._handlers.setdefault(agent, AgentHandler(agent, self._url))
            router = _make_router(agent, handler, f"{self._url}{PATH}/{name}")
            self._routers[name] = agent, router
        headers = HTTPConnection(scope).headers
        content_type = headers.get("content-type", "application/json")
        root = f"{scope.get('root_path', '')}{PATH}/{name}"
        path = scope["path"]
        body, receive = await read_json(scope, receive, "a2a_values")
        rpc = body if path == root else None
        if not content_type.partition(";")[0].strip().lower().endswith(("/json", "+json")):
            await _refuse(ContentTypeNotSupportedError(_NO_JSON), rpc)(scope, receive, send)
            return
        if not headers.get("a2a-version") and not path.endswith(AGENT_CARD_WELL_KNOWN_PATH):
            await _refuse(VersionNotSupportedError(_NO_VERSION), rpc)(scope, receive, send)
            return
        if len(body) > MAX_PAYLOAD_BYTES and _count_text(body) > MAX_PAYLOAD_BYTES:
            raise too_long()
        try:
            body.decode()
        except UnicodeDecodeError:  # the SDK would answer that it has failed
            await _refuse(InvalidRequestError("the body must be JSON in UTF-8"), rpc)(scope, receive, send)
            return
        # A client of JSON-RPC posts to the address of the agent, without a slash at its end.
        await router({**scope, "root_path": root, "path": path if path != root else f"{path}/"}, receive, send)


def _count_text(body: bytes) -> int:
    """Return the bytes of a body without its files. The SDK looks at each character of the others, for 30 ns."""
    try:
        fields = from_json(body)
        parts = fields.get("params", fields)["message"]["parts"]
        return len(body) - sum(len(part.get("raw", "")) for part in parts)
    except (ValueError, LookupError, TypeError, AttributeError):
        return len(body)


def _refuse(error: A2AError, rpc: bytes | None) -> JSONResponse:
    """Return an error, as JSON-RPC for its request."""
    if rpc is not None:
        return JSONResponse(build_error_response(find_rpc_id(rpc), error))
    payload = build_rest_error_payload(error)
    if isinstance(error, ContentTypeNotSupportedError):
        payload["error"]["code"] = HTTPStatus.UNSUPPORTED_MEDIA_TYPE  # the SDK has 400; the protocol wants 415 (5.4)
    return JSONResponse(payload, payload["error"]["code"])


class _CallContexts(ServerCallContextBuilder):
    """Call contexts for the handler: the caller, the HTTP request, and the version of the protocol."""

    def build(self, request: Request) -> ServerCallContext:
        return ServerCallContext(state={CALLER: caller_of(request), REQUEST: request, "headers": dict(request.headers)})


def _make_router(agent: DoorAgent, handler: AgentHandler, url: str) -> Router:
    contexts = _CallContexts()

    async def make_present_card(_: AgentCard) -> AgentCard:
        return make_card(agent.manifest, url)  # an agent may get another manifest while it runs

    routes: list[BaseRoute] = [
        *create_jsonrpc_routes(handler, "/", contexts),
        # After them come the paths of tenants, which this server does not have. They would take every path.
        *(route for route in create_rest_routes(handler, contexts) if isinstance(route, Route)),
        *create_agent_card_routes(make_card(agent.manifest, url), make_present_card, cache_control=_CARD_CACHE),
    ]
    return Router(routes, redirect_slashes=False)
