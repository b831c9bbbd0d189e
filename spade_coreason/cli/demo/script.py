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
from ..answers import AnswerText, steps_of
from ..console import paint, write
from ..serve import print_model, print_platform

if TYPE_CHECKING:
    from ...app import Platform
    from ...config import AgentSettings, Settings
    from ...xmpp import AgentClient

AGENTS = ("echo", "notes", "relay")
TIMEOUT_S = 15.0
_SENTENCE = "every word of this comes back by itself"

ASSISTANT = "assistant"
ASSISTANT_S = 60.0

IsRight = Callable[[str, list[PeerEvent]], bool]


def guest_client(platform: Platform) -> AgentClient:
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


def says(*texts: str) -> IsRight:
    """Right is an answer with all of these texts in it."""
    return lambda answer, events: all(text in answer for text in texts)


def streams(sentence: str) -> IsRight:
    """Right is an answer that is the sentence, and came in pieces."""
    return lambda answer, events: answer == sentence and sum(event.type == "stream.chunk" for event in events) > 1


def uses(tool: str, text: str) -> IsRight:
    """Right is an answer with this text in it, after a use of the tool."""
    return lambda answer, events: text in answer and any(tool in step for event in events for step in steps_of(event))


def is_assistant(agent: AgentSettings) -> bool:
    """Whether it is the ready-made assistant, and no other agent of that name."""
    return local_part(agent.jid) == ASSISTANT and agent.agent.endswith(".assistant:AssistantAgent")


async def play(settings: Settings, model_line: str = "") -> int:
    """Holds the conversation and prints it; 0 if every answer was right, else 1."""
    from ...app import Platform

    here = {local_part(agent.jid): agent.jid for agent in settings.agents}
    for name in AGENTS:
        if name not in here:
            raise ConfigError(settings.place("agents"), f'the demo by itself needs an agent "{name}"; run it in a terminal')
    has_assistant = any(map(is_assistant, settings.agents))
    # A thread of this run's own: what somebody told the agents before changes no answer.
    scene = _Scene(here, f"demo-{uuid4()}")
    async with Platform(settings) as platform, guest_client(platform) as client:
        print_platform(platform)
        print_model(model_line)
        scene.title("Streaming: an answer comes word by word")
        await scene.ask(client, "echo", _SENTENCE, streams(_SENTENCE))
        scene.title("Memory: what it was told, it knows")
        await scene.ask(client, "notes", "my plane leaves on Friday at 7", says("plane leaves on Friday at 7"))
        await scene.ask(client, "notes", "when does my plane leave?", says("You told me", "plane leaves on Friday at 7"))
        scene.title("Agents among themselves: relay asks echo and notes")
        await scene.ask(client, "relay", "my train leaves at noon", says("echo: my train leaves at noon", "notes: ✓"))
        if has_assistant:
            scene.title("A language model: it remembers by a tool")
            remembers = uses("remember_interaction_info", "noon")
            await scene.ask(client, ASSISTANT, "Please remember: my train leaves at noon.", remembers)
    scene.title("A restart: the server and all agents are stopped and started again")
    async with Platform(settings) as platform, guest_client(platform) as client:
        await scene.ask(client, "notes", "when does my plane leave?", says("You told me", "plane leaves on Friday at 7"))
        await scene.ask(
            client,
            "relay",
            "when does my train leave?",
            says("echo: when does my train leave?", "notes: You told me", "train leaves at noon"),
        )
        if has_assistant:
            await scene.ask(client, ASSISTANT, "When does my train leave?", says("noon"))
    print()
    good = scene.asked - scene.wrong
    print(f"{good} of {scene.asked} answers were right." if scene.wrong else f"All {scene.asked} answers were right.")
    return 1 if scene.wrong else 0


class _Scene:
    """The transcript, and the count of what was wrong."""

    def __init__(self, agents: dict[str, str], thread: str) -> None:
        self._agents = agents
        self._thread = thread
        self.asked = 0
        self.wrong = 0

    def title(self, text: str) -> None:
        print(f"\n{paint(text, 'bold')}", flush=True)

    async def ask(self, client: AgentClient, name: str, question: str, is_right: IsRight) -> None:
        """Asks, prints the answer as it comes, and judges it."""
        self.asked += 1
        write(f"{name} ▸ {question}\n  ")
        limit_s = ASSISTANT_S if name == ASSISTANT else TIMEOUT_S
        text, events = AnswerText(), list[PeerEvent]()
        jid = self._agents[name]
        try:
            async for event in client.stream(jid, question, thread=self._thread, timeout=limit_s):
                events.append(event)
                write("".join(f"({step}) " for step in steps_of(event)))
                write(re.sub(r"\n(?=[^\n])", "\n  ", text.feed(event)))
        except PeerError as error:
            write(errors.line(error))
            self._judge(False, 0)
            return
        pieces = sum(event.type == "stream.chunk" for event in events)
        self._judge(is_right(collect(jid, events).text, events), pieces)

    def _judge(self, is_right: bool, pieces: int) -> None:
        self.wrong += not is_right
        came = f", in {pieces} pieces" if pieces else ""
        write(f"\n{paint('✓ right', 'green') if is_right else paint('✗ wrong', 'red')}{came}\n")
