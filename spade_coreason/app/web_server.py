"""The HTTP server of a platform, with the routes of the doors that its agents list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from .. import doors
from ..config import Settings, WebSettings
from ..domain.channel_kinds import PAGE_CHANNEL


def find_used_doors(settings: Settings) -> tuple[str, ...]:
    """Return the doors that agents list, each once, and the page."""
    return tuple(dict.fromkeys(door for agent in settings.agents for door in settings.doors_of(agent)))


def build_web_server(
    settings: WebSettings,
    find_caller: doors.FindCaller,
    find_problem: Callable[[], Awaitable[str | None]],
    agents: doors.DoorAgents,
    webhooks: doors.WebhookRing,
    used: Collection[str],
) -> doors.WebServer:
    """Build the server, with the doors that are `used`. Its libraries, of the extra `web`, are imported here and not before."""
    url, routes = settings.public_url, list[doors.DoorRoutes]()
    if "openai" in used:
        routes.append(doors.make_openai_routes(agents, url, settings.openai.system_prompt))
    if not {"openai", "a2a", PAGE_CHANNEL}.isdisjoint(used):
        routes.append(doors.make_file_routes(agents))
    if "webhook" in used:
        routes.append(doors.make_webhook_routes(agents, webhooks, url))
    if "a2a" in used:
        routes.append(doors.make_a2a_routes(agents, url))
    if "mcp" in used:
        routes.append(doors.make_mcp_routes(agents))
    if settings.page:
        routes.append(doors.make_page_routes(agents, settings, settings.page))
    return doors.WebServer(settings, find_caller, find_problem, routes)
