"""The demo without a terminal: a conversation with the ready-made agents that checks every answer, over a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from ...domain.jid import local_part
from ...exceptions import ConfigError, PeerError
from ...runtime import PeerEvent, collect
from .. import errors
from ..answers import AnswerText, parse_steps
from ..banner import print_model, print_platform
from ..console import paint, write

if TYPE_CHECKING:
    from ...app import Platform
    from ...config import AgentSettings, Settings
    from ...xmpp import AgentClient

AGENTS = ("echo", "notes", "relay")
TIMEOUT_S = 15.0
_ECHO_SENTENCE = "every word of this comes back by itself"

ASSISTANT = "assistant"
ASSISTANT_TIMEOUT_S = 60.0

AnswerCheck = Callable[[str, list[PeerEvent]], bool]


def build_guest_client(platform: Platform) -> AgentClient:
    """A client with the platform's guest account."""
    from ...xmpp import AgentClient

    if platform.guest is None:
        raise ConfigError("server.mode", "only a local server has a guest account; use `chat` with --jid instead")
    jid, password = platform.guest
    at = platform.endpoint
    return AgentClient(
        jid,
        password,
        host=at.host,
        port=at.port,
        ca_file=at.ca_file,
        verify=at.verify,
        timeout_s=at.timeout_s,
        attempts=at.attempts,
    )


def expect_texts(*texts: str) -> AnswerCheck:
    """Right is an answer with all of these texts in it."""
    return lambda answer, events: all(text in answer for text in texts)


def expect_stream(sentence: str) -> AnswerCheck:
    """Right is an answer that is the sentence, and came in pieces."""
    return lambda answer, events: answer == sentence and sum(event.type == "stream.chunk" for event in events) > 1


def expect_tool(tool: str, text: str) -> AnswerCheck:
    """Right is an answer with this text in it, after a use of the tool."""
    return lambda answer, events: text in answer and any(tool in step for event in events for step in parse_steps(event))


def is_assistant(agent: AgentSettings) -> bool:
    """Whether it is the ready-made assistant, and no other agent of that name."""
    return local_part(agent.jid) == ASSISTANT and agent.agent.endswith(".assistant:AssistantAgent")


async def play_demo(settings: Settings, model_line: str = "") -> int:
    """Holds the conversation and prints it; 0 if every answer was right, else 1."""
    from ...app import Platform

    here = {local_part(agent.jid): agent.jid for agent in settings.agents}
    for name in AGENTS:
        if name not in here:
            raise ConfigError(settings.place("agents"), f'the demo by itself needs an agent "{name}"; run it in a terminal')
    has_assistant = any(map(is_assistant, settings.agents))
    # A thread of this run's own: what somebody told the agents before changes no answer.
    scene = _Transcript(here, f"demo-{uuid4()}")
    async with Platform(settings) as platform, build_guest_client(platform) as client:
        print_platform(platform)
        print_model(model_line)
        scene.print_title("Streaming: an answer comes word by word")
        await scene.ask(client, "echo", _ECHO_SENTENCE, expect_stream(_ECHO_SENTENCE))
        scene.print_title("Memory: what it was told, it knows")
        await scene.ask(client, "notes", "my plane leaves on Friday at 7", expect_texts("plane leaves on Friday at 7"))
        await scene.ask(
            client, "notes", "when does my plane leave?", expect_texts("You told me", "plane leaves on Friday at 7")
        )
        scene.print_title("Agents among themselves: relay asks echo and notes")
        await scene.ask(client, "relay", "my train leaves at noon", expect_texts("echo: my train leaves at noon", "notes: ✓"))
        if has_assistant:
            scene.print_title("A language model: it remembers by a tool")
            remembers = expect_tool("remember_interaction_info", "noon")
            await scene.ask(client, ASSISTANT, "Please remember: my train leaves at noon.", remembers)
    scene.print_title("A restart: the server and all agents are stopped and started again")
    async with Platform(settings) as platform, build_guest_client(platform) as client:
        await scene.ask(
            client, "notes", "when does my plane leave?", expect_texts("You told me", "plane leaves on Friday at 7")
        )
        await scene.ask(
            client,
            "relay",
            "when does my train leave?",
            expect_texts("echo: when does my train leave?", "notes: You told me", "train leaves at noon"),
        )
        if has_assistant:
            await scene.ask(client, ASSISTANT, "When does my train leave?", expect_texts("noon"))
    print()
    good = scene.asked_count - scene.wrong_count
    print(
        f"{good} of {scene.asked_count} answers were right."
        if scene.wrong_count
        else f"All {scene.asked_count} answers were right."
    )
    return 1 if scene.wrong_count else 0


class _Transcript:
    """The transcript, and the count of what was wrong."""

    def __init__(self, agents: dict[str, str], thread: str) -> None:
        self._agents = agents
        self._thread = thread
        self.asked_count = 0
        self.wrong_count = 0

    def print_title(self, text: str) -> None:
        print(f"\n{paint(text, 'bold')}", flush=True)

    async def ask(self, client: AgentClient, name: str, question: str, is_right: AnswerCheck) -> None:
        """Asks, prints the answer as it comes, and judges it."""
        self.asked_count += 1
        write(f"{name} ▸ {question}\n  ")
        limit_s = ASSISTANT_TIMEOUT_S if name == ASSISTANT else TIMEOUT_S
        text, events = AnswerText(), list[PeerEvent]()
        jid = self._agents[name]
        try:
            async for event in client.stream(jid, question, thread=self._thread, timeout=limit_s):
                events.append(event)
                write("".join(f"({step}) " for step in parse_steps(event)))
                write(re.sub(r"\n(?=[^\n])", "\n  ", text.feed(event)))
        except PeerError as error:
            write(errors.format_error(error))
            self._print_judgement(False, 0)
            return
        pieces = sum(event.type == "stream.chunk" for event in events)
        self._print_judgement(is_right(collect(jid, events).text, events), pieces)

    def _print_judgement(self, is_right: bool, pieces: int) -> None:
        self.wrong_count += not is_right
        came = f", in {pieces} pieces" if pieces else ""
        write(f"\n{paint('✓ right', 'green') if is_right else paint('✗ wrong', 'red')}{came}\n")
