"""Two hosted agents on platforms with their defaults: everything is durable on both sides.

The asking agent asks within its turns: one turn for each conversation and round, which a client in its process requests.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spade_coreason import AgentClient, AgentDefinition, AgentRequest, Peers, Response, Session
from spade_coreason.app.platform import Platform
from spade_coreason.config import Settings, load_settings
from spade_coreason.runtime import tune_gc
from spade_coreason.xmpp import ServerEndpoint

from .pair import ROUND_S, TIMEOUT_S, AskInConversation, Place, ask_in_turn

PROJECT = Path(__file__).parents[2]


class RepeatingAgent:
    """Repeats the request in one block."""

    manifest = AgentDefinition.simple("repeating")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Send the request back."""
        await response.markdown(request.payload["query"])


class AskingAgent:
    """Asks its peer the questions with the numbers from `start` to `stop`, and replies with the milliseconds of each."""

    manifest = AgentDefinition.simple("asking")

    def __init__(self, peers: Peers, peer: str) -> None:
        self._peers = peers
        self._peer = peer

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Ask, and send the times."""
        numbers = range(request.payload["start"], request.payload["stop"], request.payload["step"])
        await response.markdown(json.dumps(await ask_in_turn(self._ask, numbers)))

    async def _ask(self, text: str) -> str:
        return (await self._peers.ask(self._peer, text, timeout=TIMEOUT_S)).text


@asynccontextmanager
async def answerer(place: Place) -> AsyncIterator[str]:
    """Run the platform of the agent that answers; yield its JID. The option `agent` names the code of the agent."""
    jid, password = place.accounts[0]
    async with _platform(place, [_answering(place, jid, password)]):
        yield jid


@asynccontextmanager
async def asker(place: Place) -> AsyncIterator[AskInConversation]:
    """Run the platform of the agent that asks."""
    login, client_login = place.accounts[:2]
    async with _platform(place, [_asking(*login, place.address)]), _client(place, client_login, login[0]) as ask:
        yield ask


@asynccontextmanager
async def asker_and_answerer(place: Place) -> AsyncIterator[AskInConversation]:
    """Run one platform with both agents. The option `settings` has further settings of it."""
    login, client_login, answering = place.accounts
    agents = [_asking(*login, answering[0]), _answering(place, *answering)]
    async with _platform(place, agents), _client(place, client_login, login[0]) as ask:
        yield ask


def _asking(jid: str, password: str, peer: str) -> dict[str, Any]:
    return {"jid": jid, "password": password, "agent": f"{__name__}:AskingAgent", "options": {"peer": peer}}


def _answering(place: Place, jid: str, password: str) -> dict[str, Any]:
    return {"jid": jid, "password": password, "agent": place.options.get("agent", f"{__name__}:RepeatingAgent")}


@asynccontextmanager
async def _platform(place: Place, agents: list[dict[str, Any]]) -> AsyncIterator[None]:
    async with Platform(_settings(place, agents)):
        tune_gc()  # as `up` does
        yield


def _settings(place: Place, agents: list[dict[str, Any]]) -> Settings:
    configuration = Path(place.directory, "platform.yaml")
    settings = {
        "server": {
            "mode": "external",
            "domain": place.accounts[0][0].partition("@")[2],
            "host": place.host,
            "port": place.port,
            "tls": {"ca_file": place.ca_file},
        },
        "data_dir": str(Path(place.directory, "data")),
        "conversation": {"max_interactions": 0},
        "agents": agents,
        **place.options.get("settings", {}),
    }
    configuration.touch(0o600)  # it holds passwords
    configuration.write_text(json.dumps(settings))
    return load_settings(configuration, PROJECT, {})


@asynccontextmanager
async def _client(place: Place, login: tuple[str, str], agent: str) -> AsyncIterator[AskInConversation]:
    endpoint = ServerEndpoint(place.host, place.port, ca_file=Path(place.ca_file))
    async with AgentClient(*login, endpoint) as client:

        async def ask(conversation: int, numbers: range) -> list[float]:
            payload = {"start": numbers.start, "stop": numbers.stop, "step": numbers.step}
            answer = await client.ask(agent, payload, thread=f"conversation-{conversation}", timeout=ROUND_S)
            latencies_ms: list[float] = json.loads(answer.text)
            return latencies_ms

        yield ask
