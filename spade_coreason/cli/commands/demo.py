"""The command `spade-coreason demo`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...concurrency import cancel_tasks
from ...exceptions import ConfigError, ServerError
from ..account import data_option
from ..context import define_command as define
from ..foreground import run_agents
from ..logging import show_tracebacks
from ..settings import config_option, load_demo_settings, with_page
from ..terminal.console import print_line

if TYPE_CHECKING:
    from ...app import Platform
    from ...config import Settings


@define("demo")
@config_option("config/demo.yaml, else the built-in one")
@data_option
@click.option("--port", type=click.IntRange(1, 65535), help="The port of the local server.  [default: any free port]")
def command(file: Path | None, data: Path | None, port: int | None) -> int:
    """Chat with ready-made agents on a local server.

    Starts a local server with the agents echo, notes, relay and assistant, and a chat with them. Your conversations are stored
    in the data directory. The assistant uses the language model of OPENAI_API_KEY (or OPENAI_BASE_URL) and OPENAI_MODEL. If
    none is set, a local script stands in for the model, and says so.

    Without a terminal, the demo asks its own questions and prints the conversation. Its exit code is then 0 only if every
    answer was right.

    \b
      spade-coreason demo
      spade-coreason demo < /dev/null
    """
    show_tracebacks()
    settings = load_demo_settings(file, data)
    if not settings.server.is_local:
        raise ConfigError(
            settings.place("server.mode"), "the demo needs a local server; use `up` and `chat` with this configuration"
        )
    if port is not None:
        settings = settings.model_copy(update={"server": settings.server.model_copy(update={"port": port})})
    return run_agents(_demo(settings))


async def _demo(settings: Settings) -> int:
    from ..chat.chat import is_terminal
    from ..demo.model import choose_model

    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    settings, model_line = choose_model(settings)
    if not is_terminal():
        from ..demo.script import play_demo

        return await play_demo(settings, model_line)
    await _chat(settings, model_line)
    print_line(f"Stopped. Your notes are stored in {_format_data_dir(settings)}/; run the demo again and ask for them.")
    return 0


async def _chat(settings: Settings, model_line: str) -> None:
    from ...app import Platform
    from ..chat.chat import Chat
    from ..chat.incoming_texts import IncomingTexts
    from ..chat.roster import ChatRoster
    from ..demo.links import print_guest_link, show_approver_links
    from ..demo.script import build_guest_client
    from ..terminal.banner import print_guest, print_model, print_platform

    texts = IncomingTexts()
    async with Platform(with_page(settings)) as platform, build_guest_client(platform, texts.put) as client:
        agents = platform.agent_descriptions
        if not agents:
            raise ConfigError(settings.place("agents"), "the list is empty; add an agent")
        print_platform(platform)
        print_model(model_line)
        print_guest(client.jid, len(agents))
        await print_guest_link(platform)
        first = next((number for number, (jid, _) in enumerate(agents) if jid.startswith("notes@")), 0)
        chat = Chat(client, ChatRoster(agents, first), texts, on_empty_line=partial(print_guest_link, platform))
        links = asyncio.create_task(show_approver_links(platform, texts))
        try:
            await _run_while_server_lives(platform, chat.run())
        finally:
            links.cancel()


async def _run_while_server_lives(platform: Platform, work: Coroutine[Any, Any, None]) -> None:
    """Wait for the chat to end; raise ServerError if its server ends first."""
    chat = asyncio.create_task(work)
    tasks: list[asyncio.Task[Any]] = [chat]
    if platform.server is not None:
        tasks.append(asyncio.create_task(platform.server.wait_until_ended()))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_tasks(*tasks)
    if chat not in done:
        raise ServerError(f"the {platform.server_description.partition(',')[0]} server ended; start the demo again")
    chat.result()


def _format_data_dir(settings: Settings) -> str:
    directory = settings.data_dir
    return str(directory.relative_to(settings.project)) if directory.is_relative_to(settings.project) else str(directory)
