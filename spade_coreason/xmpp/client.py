"""Calling agents from any Python program, over XMPP."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from xml.etree.ElementTree import Element

from ..codec import decode, retraction_stanza
from ..config import read_run_file
from ..contracts import AgentRequest
from ..domain.jid import bare_jid
from ..domain.messages import Bounce, ReplyEvent
from ..exceptions import ServerError
from ..runtime import (
    MAX_REQUEST_BYTES,
    OpenRequests,
    PeerAnswer,
    PeerEvent,
    as_request,
    collect,
    command_request,
    encode_request,
)
from .connection.connection import Connection
from .connection.endpoint import ServerEndpoint


class AgentClient:
    """An account that asks agents: `async with AgentClient("me@example.org", password) as client: await client.ask(…)`.

    Without a thread all that one account asks an agent is one conversation. Entering connects, and raises ConnectError or
    LoginError within `timeout_s`; a cut connection comes back by itself. Where nobody changed it, a server takes 262,144 bytes
    at once; a request of more than `stanza_bytes` is refused here.
    """

    def __init__(
        self,
        jid: str,
        password: str,
        *,
        host: str | None = None,
        port: int | None = None,
        ca_file: Path | None = None,
        verify: bool = True,
        timeout_s: float = 10.0,
        attempts: int = 1,
        register: bool = False,
        stanza_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self.jid = jid
        self._stanza_bytes = stanza_bytes
        self._password = password
        self._endpoint = ServerEndpoint(host, port, verify, ca_file, timeout_s, attempts)
        self._register = register
        self._requests = OpenRequests()
        self._connection: Connection | None = None

    @classmethod
    def guest(cls, data_dir: str | os.PathLike[str] = "data") -> AgentClient:
        """The guest account of the platform that runs on this data directory with a local server; ServerError if none does."""
        running = read_run_file(Path(data_dir))
        if running is None:
            raise ServerError(f"no platform is running on {data_dir}; start one (`spade-coreason up`)")
        if running.guest is None:
            raise ServerError(f"the platform on {data_dir} uses {running.domain}, which has no guest account; use your own")
        return cls(
            running.guest["jid"],
            running.guest["password"],
            host=running.host,
            port=running.port,
            ca_file=Path(running.ca_file) if running.ca_file else None,
            verify=running.verify,
            attempts=5 if running.mode == "embedded" else 1,
        )

    @property
    def is_online(self) -> bool:
        """Whether it has a session now; what is asked without one waits until there is one again."""
        return self._connection is not None and self._connection.state == "online"

    async def __aenter__(self) -> AgentClient:
        # Answers are for the resource that asked: it has to be the same after a cut.
        own = self.jid if "/" in self.jid else f"{self.jid}/client-{secrets.token_hex(4)}"
        self._connection = Connection(
            own,
            self._password,
            self._endpoint,
            name=self.jid,
            register=self._register,
            on_message=self._on_message,
            on_session=self._on_session,
        )
        try:
            await self._connection.open()
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def ask(
        self,
        jid: str,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        timeout: float = 30.0,
    ) -> PeerAnswer:
        """Asks the agent `jid` and waits for its whole answer, `timeout` seconds at most.

        Raises PeerTimeout, PeerUnavailable, PeerRefused, PeerFailed or RequestTooLong, each naming the agent.
        """
        return collect(jid, [event async for event in self.stream(jid, request, thread=thread, timeout=timeout)])

    async def stream(
        self,
        jid: str,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        timeout: float = 30.0,
    ) -> AsyncIterator[PeerEvent]:
        """Asks, and gives the events of the answer as they come. Raises as `ask` does."""
        connection = self._connection
        if connection is None:
            raise RuntimeError("use the client in `async with`")
        asked = as_request(request)
        stanza = encode_request(bare_jid(self.jid), jid, asked, thread, self._stanza_bytes)
        async for event in self._requests.events(jid, str(asked.request_id), timeout, lambda: connection.send([stanza])):
            yield event

    def cancel(self, jid: str, request: AgentRequest) -> None:
        """Takes back what was asked (XEP-0424): while it waits or is worked on it is dropped, and nothing of it is kept."""
        if self._connection is None:
            raise RuntimeError("use the client in `async with`")
        self._connection.send([retraction_stanza(jid, str(request.request_id))])

    def run_command(self, jid: str, command: str, *, timeout: float = 30.0) -> AsyncIterator[PeerEvent]:
        """Says a command of an agent or its platform, as people write it: `/history 50`. As `stream`."""
        return self.stream(jid, command_request(command), timeout=timeout)

    def _on_session(self, is_new: bool) -> None:
        if is_new and self._connection is not None:
            self._connection.client.send_presence()  # what came meanwhile is handed over to those who are there

    def _on_message(self, stanza: Element) -> asyncio.Future[Any] | None:
        message = decode(stanza)
        if isinstance(message, ReplyEvent):
            self._requests.receive(message)
        elif isinstance(message, Bounce):
            self._requests.receive_bounce(message)
        return None
