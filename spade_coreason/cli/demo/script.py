"""The demo without a terminal: a conversation with the ready-made agents that checks every answer, across a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from ...domain.jid import local_part
from ...exceptions import ConfigError, PeerError
from ...runtime import PeerEvent, collect_answer
from .. import errors
from ..answers import AnswerText, parse_steps
from ..terminal.banner import print_model, print_platform
from ..terminal.console import paint, print_line, write

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


def build_guest_client(platform: Platform, on_text: Callable[[str, str], object] | None = None) -> AgentClient:
    """Build a client with the platform's guest account. `on_text` gets what agents write first: their JID and a text."""
    from ...xmpp import AgentClient

    if platform.guest is None:
        raise ConfigError("server.mode", "an external server has no guest account; use `chat` with --jid instead")
    jid, password = platform.guest
    return AgentClient(jid, password, platform.endpoint, on_text=on_text)


def expect_texts(*texts: str) -> AnswerCheck:
    """Build a check that the answer contains all of these texts."""
    return lambda answer, events: all(text in answer for text in texts)


def expect_stream(sentence: str) -> AnswerCheck:
    """Build a check that the answer is the sentence and arrived in pieces."""
    return lambda answer, events: answer == sentence and sum(event.type == "stream.chunk" for event in events) > 1


def is_assistant(agent: AgentSettings) -> bool:
    """Return True for the ready-made assistant, False for another agent of that name."""
    return local_part(agent.jid) == ASSISTANT and agent.agent.endswith(".assistant:AssistantAgent")


async def play_demo(settings: Settings, model_line: str = "") -> int:
    """Hold the conversation and print it. Return 0 if every answer was right, else 1."""
    from ...app import Platform

    jid_by_name = {local_part(agent.jid): agent.jid for agent in settings.agents}
    for name in AGENTS:
        if name not in jid_by_name:
            raise ConfigError(
                settings.place("agents"), f'without a terminal, the demo needs an agent "{name}"; run it in a terminal'
            )
    has_assistant = any(map(is_assistant, settings.agents))
    # Each run has a thread of its own, so earlier conversations change no answer.
    transcript = _Transcript(jid_by_name, f"demo-{uuid4()}")
    async with Platform(settings) as platform, build_guest_client(platform) as client:
        print_platform(platform)
        print_model(model_line)
        transcript.print_title("Streaming: an answer comes word by word")
        await transcript.ask(client, "echo", _ECHO_SENTENCE, expect_stream(_ECHO_SENTENCE))
        transcript.print_title("Memory: it knows what you told it")
        await transcript.ask(client, "notes", "my plane leaves on Friday at 7", expect_texts("plane leaves on Friday at 7"))
        await transcript.ask(
            client, "notes", "when does my plane leave?", expect_texts("You told me", "plane leaves on Friday at 7")
        )
        transcript.print_title("Agents ask agents: relay asks echo and notes")
        await transcript.ask(
            client, "relay", "my train leaves at noon", expect_texts("echo: my train leaves at noon", "notes: ✓")
        )
        if has_assistant:
            transcript.print_title("A language model: it remembers with a tool")
            await transcript.ask(client, ASSISTANT, "Please remember: my train leaves at noon.", expect_texts("noon"))
    transcript.print_title("A restart: the server and all agents stop and start again")
    async with Platform(settings) as platform, build_guest_client(platform) as client:
        await transcript.ask(
            client, "notes", "when does my plane leave?", expect_texts("You told me", "plane leaves on Friday at 7")
        )
        await transcript.ask(
            client,
            "relay",
            "when does my train leave?",
            expect_texts("echo: when does my train leave?", "notes: You told me", "train leaves at noon"),
        )
        if has_assistant:
            await transcript.ask(client, ASSISTANT, "When does my train leave?", expect_texts("noon"))
    print_line()
    right_count = transcript.asked_count - transcript.wrong_count
    print_line(
        f"{right_count} of {transcript.asked_count} answers were right."
        if transcript.wrong_count
        else f"All {transcript.asked_count} answers were right."
    )
    return 1 if transcript.wrong_count else 0


class _Transcript:
    """The printed conversation, with the counts of asked questions and wrong answers."""

    def __init__(self, agents: dict[str, str], thread: str) -> None:
        self._agents = agents
        self._thread = thread
        self.asked_count = 0
        self.wrong_count = 0

    def print_title(self, text: str) -> None:
        print_line()
        print_line(paint(text, "bold"))

    async def ask(self, client: AgentClient, name: str, question: str, is_right: AnswerCheck) -> None:
        """Ask a question, print the answer as it arrives, and check it."""
        self.asked_count += 1
        write(f"{name} ▸ {question}\n  ")
        limit_s = ASSISTANT_TIMEOUT_S if name == ASSISTANT else TIMEOUT_S
        text, events = AnswerText(), list[PeerEvent]()
        jid = self._agents[name]
        try:
            async for event in client.stream(jid, question, thread=self._thread, timeout=limit_s, thoughts=True):
                events.append(event)
                write("".join(f"({step}) " for step in parse_steps(event)))
                write(re.sub(r"\n(?=[^\n])", "\n  ", text.feed(event)))
        except PeerError as error:
            write(errors.format_error(error))
            self._print_verdict(False, 0)
            return
        pieces = sum(event.type == "stream.chunk" for event in events)
        self._print_verdict(is_right(collect_answer(jid, events).text, events), pieces)

    def _print_verdict(self, is_right: bool, pieces: int) -> None:
        self.wrong_count += not is_right
        count_text = f", in {pieces} pieces" if pieces else ""
        write(f"\n{paint('✓ right', 'green') if is_right else paint('✗ wrong', 'red')}{count_text}\n")
