"""The command `spade-coreason tools`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...domain.jid import bare_jid
from ...exceptions import ConfigError, CoReasonError
from ...operations.host import describe_agents
from .. import errors
from ..completion import complete_agents
from ..context import define_command as define, json_option, run_async
from ..settings import config_option, load_platform_settings
from ..terminal.console import print_json, print_line, print_table

if TYPE_CHECKING:
    from ...config import Settings


@define("tools")
@click.argument("agent", required=False, shell_complete=complete_agents)
@config_option("config/platform.yaml")
@json_option("Print a JSON list of records.")
def command(agent: str | None, file: Path | None, as_json: bool) -> int:
    """List the tools of the agents' MCP servers, with their hashes.

    Starts the MCP servers of AGENT (its JID or its name; default: all agents), lists their tools, and stops them. To require
    a tool, copy its uri and hash to dependencies.tools of the manifest. The JSON records have the keys agent, server, tool,
    name, uri, hash and description.

    Exit code: 0 no problem, 1 a server does not answer or a tool cannot be used, 2 a tool differs from the manifest.

    \b
      spade-coreason tools
      spade-coreason tools assistant --json
    """
    return run_async(_show(load_platform_settings(file), agent, as_json))


async def _show(settings: Settings, agent_name: str | None, as_json: bool) -> int:
    from ..dry_run import HasMCPServers, build_unstarted_agent

    known = [bare_jid(agent.jid) for agent in settings.agents]
    if agent_name is not None and not any(agent_name in (jid, jid.partition("@")[0]) for jid in known):
        raise ConfigError("AGENT", f'there is no agent "{agent_name}"; {describe_agents(known)}')
    records: list[dict[str, Any]] = []
    code = 0
    for number, jid in enumerate(known):
        if agent_name is not None and agent_name not in (jid, jid.partition("@")[0]):
            continue
        try:
            agent = build_unstarted_agent(settings, number)
        except CoReasonError as error:
            errors.print_error(error)
            code = max(code, errors.exit_code(error))
            continue
        if not isinstance(agent, HasMCPServers):
            continue
        offers, problems = await agent.examine_mcp_servers()
        records += [
            {"agent": jid} | {key: getattr(offer, key) for key in ("server", "tool", "name", "uri", "hash", "description")}
            for offer in offers
        ]
        for problem in problems:
            errors.print_error(problem)
            code = max(code, errors.exit_code(problem))
    if as_json:
        print_json(records)
    elif records:
        print_table(("agent", "uri", "hash"), [(record["agent"], record["uri"], record["hash"]) for record in records])
    elif not code:
        print_line("No tools.")
    return code
