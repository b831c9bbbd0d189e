"""`spade-coreason chat`"""

from __future__ import annotations

from typing import Any

import click

from ...domain.jid import bare
from ..account import Account, account, reach_options
from ..completion import agents
from ..context import command as define, run


@define("chat")
@click.argument("agent", metavar="JID", shell_complete=agents)
@click.option(
    "--timeout",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds to wait for an answer.",
)
@reach_options
def command(agent: str, timeout: float, **reach: Any) -> int:
    """Chat with an agent in the terminal.

    JID is the agent's address; a name alone is an agent on your own server. You keep one conversation with it, also over
    several chats. Without --jid you are the guest of the platform that runs here (see -c and --data). In the chat Tab changes
    to the other agents of that platform, /help shows what there is, /quit or Ctrl-D leaves. Without a terminal every line of
    standard input is a question.

    \b
      spade-coreason chat notes@localhost
      spade-coreason chat notes@example.org --jid me@example.org
    """
    return run(_chat(account(**reach), agent, timeout))


async def _chat(who: Account, agent: str, timeout_s: float) -> int:
    from ..chat.chat import Chat, is_terminal, talk_by_lines
    from ..chat.roster import Company
    from ..serve import print_agents, print_guest

    jid = who.address_of(agent)
    async with who.client() as client:
        if not is_terminal():
            return await talk_by_lines(client, jid, timeout_s)
        # The one that was named first, as it was named: perhaps with a resource.
        agents = [(jid, who.agents.get(bare(jid), "")), *(known for known in who.agents.items() if known[0] != bare(jid))]
        print_agents(agents)
        print_guest(who.jid, len(agents))
        await Chat(client, Company(agents), timeout_s).run()
    return 0
