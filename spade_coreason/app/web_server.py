"""The HTTP server of a platform, with the routes of the doors that its agents list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from ..config import Settings, WebSettings
from ..domain.channel_kinds import PAGE_CHANNEL

if TYPE_CHECKING:
    from ..doors import DoorAgents, DoorRoutes, FindCaller, WebhookRing, WebServer


def find_used_doors(settings: Settings) -> tuple[str, ...]:
    """Return the doors that agents list, each once, and the page."""
    return tuple(dict.fromkeys(door for agent in settings.agents for door in settings.doors_of(agent)))


def build_web_server(
    settings: WebSettings,
    find_caller: FindCaller,
    find_problem: Callable[[], Awaitable[str | None]],
    agents: DoorAgents,
    webhooks: WebhookRing,
    used: Collection[str],
) -> WebServer:
    """Build the server, with the doors that are `used`. Its libraries, of the extra `web`, are imported here and not before."""
    from ..doors import WebServer

    routes: list[DoorRoutes] = []
    if "openai" in used:
        from ..doors import make_openai_routes

        routes.append(make_openai_routes(agents, settings.public_url, settings.openai.system_prompt))
    if not {"openai", "a2a", PAGE_CHANNEL}.isdisjoint(used):
        from ..doors import make_file_routes

        routes.append(make_file_routes(agents))
    if "webhook" in used:
        from ..doors import make_webhook_routes

        routes.append(make_webhook_routes(agents, webhooks, settings.public_url))
    if "a2a" in used:
        from ..doors import make_a2a_routes

        routes.append(make_a2a_routes(agents, settings.public_url))
    if "mcp" in used:
        from ..doors import make_mcp_routes

        routes.append(make_mcp_routes(agents))
    if settings.page:
        from ..doors import make_page_routes

        routes.append(make_page_routes(agents, settings, settings.page))
    return WebServer(settings, find_caller, find_problem, routes)
