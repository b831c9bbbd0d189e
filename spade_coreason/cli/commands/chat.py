"""The command `spade-coreason chat`."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import click

from ...domain.jid import bare_jid
from ..account import Account, account_options, resolve_account
from ..completion import complete_agents
from ..context import define_command as define, run_async


@define("chat")
@click.argument("agent", metavar="JID", shell_complete=complete_agents)
@click.option(
    "--timeout",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds to wait for an answer, and for a platform that is starting.",
)
@account_options
def command(agent: str, timeout: float, **account_values: Any) -> int:
    """Chat with an agent in the terminal.

    JID is the agent's address. A name alone means an agent on your own server. Your conversation with the agent continues in
    the next chat. Without --jid you chat as the guest of the platform that runs here (see -c and --data).

    In the chat, Tab switches to the other agents of that platform, /help lists the commands, and /quit or Ctrl-D quits.
    Without a terminal, each line of standard input is sent, as a question or a command.

    \b
      spade-coreason chat notes@localhost
      spade-coreason chat notes@example.org --jid me@example.org
    """
    return run_async(_chat(resolve_account(**account_values, timeout_s=timeout), agent, timeout))


def _log_out_at_signals() -> None:
    """Cancel this task when its terminal is closed (SIGHUP) or at SIGTERM. A second signal ends the process at once.

    A session that is not ended stays on the server for ten minutes, and the messages for it slow Prosody down.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def log_out(number: signal.Signals) -> None:
        loop.remove_signal_handler(number)
        if task is not None:
            task.cancel()

    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            loop.add_signal_handler(number, log_out, number)


async def _chat(account: Account, agent: str, timeout_s: float) -> int:
    from ..chat.chat import Chat, chat_by_lines, is_terminal
    from ..chat.incoming_texts import IncomingTexts
    from ..chat.roster import ChatRoster
    from ..terminal.banner import print_agents, print_guest

    jid = account.resolve_jid(agent)
    _log_out_at_signals()
    texts = IncomingTexts()
    async with account.build_client(on_text=texts.put) as client:
        if not is_terminal():
            return await chat_by_lines(client, jid, timeout_s, texts)
        # The named agent comes first, as it was named: perhaps with a resource.
        agents = [
            (jid, account.agents.get(bare_jid(jid), "")),
            *(known for known in account.agents.items() if known[0] != bare_jid(jid)),
        ]
        print_agents(agents)
        print_guest(account.jid, len(agents))
        await Chat(client, ChatRoster(agents), texts, timeout_s).run()
    return 0
