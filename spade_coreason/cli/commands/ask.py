"""The command `spade-coreason ask`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ...domain.texts.terminal_text import clean_running_text
from ...exceptions import ConfigError, PeerParkedError, PeerTimeoutError, PeerUnavailableError
from ..account import Account, account_options, resolve_account
from ..answers import AnswerText
from ..completion import complete_agents
from ..context import define_command as define, json_option, run_async
from ..errors import exit_code
from ..terminal.answer_writer import open_answer, shows_markdown
from ..terminal.console import (
    add_style,
    check_encoding,
    decode_input,
    disable_echo,
    print_cleaned,
    print_json,
    print_line,
    warn,
)

if TYPE_CHECKING:
    from ...contracts import AgentRequest
    from ...runtime import PeerEvent

_COMMAND = re.compile(r"/[a-z]+\b(?!/)", re.I)


@define("ask", context_settings={"allow_extra_args": True})
@click.argument("agent", metavar="JID", shell_complete=complete_agents)
@click.argument("text")
@json_option("Print every event of the answer as a line of JSON.")
@click.option("--thread", help="The thread of the conversation.  [default: none, which is one conversation for each account]")
@click.option(
    "--timeout",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds to wait for the answer, and for a platform that is starting.",
)
@click.option(
    "--request-id",
    type=click.UUID,
    metavar="ID",
    help="The id of a request that was sent before, with the same text and thread: print its reply, and do not run it again.",
)
@account_options
def command(
    agent: str,
    text: str,
    as_json: bool,
    thread: str | None,
    timeout: float,
    request_id: UUID | None,
    **account_values: Any,
) -> int:
    """Ask an agent one question and print its answer.

    JID is the agent's address. A name alone means an agent on your own server. TEXT is the question; "-" reads it from
    standard input. The whole text goes to the agent: commands such as /help work in `chat` only. Without --jid, the question
    comes from the guest account of the platform that runs here (see -c and --data).

    \b
      spade-coreason ask weather@localhost "Berlin"
      spade-coreason ask echo@example.org hello --jid me@example.org

    On a terminal with colours, the Markdown of the answer is formatted. Otherwise, or with NO_COLOR, it is printed unchanged.

    Exit code: 0 answered, 1 the agent reports an error, 2 wrong usage, 3 no answer in time, 4 no connection or no agent,
    5 login refused, 6 the agent waits for a person. If the agent ends its turn without an answer, the code is 0 and a line on
    standard error says so.

    If the agent asks a person, what it said so far is printed, and a line on standard error has the id of the request. The
    same command with --request-id prints the reply once they have answered.
    """
    context = click.get_current_context()
    if context.args:
        whole = " ".join([text, *context.args])
        raise click.UsageError(f"TEXT is one argument; quote it: {shlex.quote(agent)} {shlex.quote(whole)}", context)
    from ...runtime import to_request

    question = _read_standard_input() if text == "-" else check_encoding(text, "TEXT")
    if _COMMAND.match(question) and sys.stderr.isatty():
        warn(f"commands work in `spade-coreason chat {shlex.quote(agent)}`; here the whole text goes to the agent")
    thread = check_encoding(thread, "--thread") if thread else None
    account = resolve_account(**account_values, timeout_s=timeout)
    return run_async(_ask(account, agent, to_request(question, request_id), thread, timeout, as_json))


def _read_standard_input() -> str:
    question = decode_input(sys.stdin.buffer.read(), "TEXT")
    if not question:
        raise ConfigError("TEXT", 'standard input is empty; write a question there, or pass "" to send an empty one')
    return question


async def _ask(account: Account, agent: str, request: AgentRequest, thread: str | None, timeout_s: float, as_json: bool) -> int:
    jid = account.resolve_jid(agent)
    async with account.build_client(timeout_s) as client:
        events = client.stream(jid, request, thread=thread, timeout=timeout_s, thoughts=True)
        try:
            if as_json:
                async for event in events:
                    print_json({"type": event.type, "data": dict(event.data)}, indent=None)
            elif not await _print_answer(events):
                print_line(f"{jid} ended its turn without an answer", stream=sys.stderr)
        except PeerParkedError as error:
            how = f"When they have answered, repeat this command with --request-id {error.request_id}"
            print_line(f"{jid} waits for a person's answer. {how}", stream=sys.stderr)
            return exit_code(error)
        except (PeerTimeoutError, PeerUnavailableError):
            if reason := account.explain_silence(jid):
                warn(reason)
            raise
        except asyncio.CancelledError:  # Ctrl-C: the rest has no reader
            client.cancel(jid, request)
            raise
    return 0


async def _print_answer(events: AsyncIterator[PeerEvent]) -> bool:
    """Print an answer as it grows. Return False if there was none."""
    shows_thoughts = sys.stderr.isatty() and sys.stdout.isatty()
    answer = AnswerText()
    with disable_echo() if shows_markdown() else contextlib.nullcontext():
        writer = open_answer(wraps=False)
        try:
            async for event in events:
                writer.feed(answer.feed_pieces(event))
                if event.type == "block.thought" and shows_thoughts and not answer.has_text:
                    thought = clean_running_text(str(event.data.get("content", "")))
                    print_cleaned(add_style(thought, "dim", sys.stderr), sys.stderr)
        finally:
            writer.end()
    return answer.has_text
