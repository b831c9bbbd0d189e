"""A client to call agents over XMPP from any Python program."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from ..config import read_run_file
from ..contracts import AgentRequest
from ..domain.callers import CALLER_IS_NO_AGENT, is_caller
from ..domain.jid import bare_jid
from ..domain.messages import RequestContext
from ..exceptions import PeerError, ServerError
from ..runtime import (
    OpenRequests,
    PeerAnswer,
    PeerEvent,
    collect_answer,
    command_request,
    to_request,
)
from .codec import decode
from .codec.namespaces import BODY, JSON
from .connection.connection import Connection
from .connection.endpoint import ServerEndpoint
from .connection.login import Login
from .connection.session_handler import SessionHandler
from .transport import MAX_REQUEST_BYTES, XmppTransport

if TYPE_CHECKING:
    from ..storage import Commit


class AgentClient:
    """An account that sends requests to agents and receives their replies.

    Use it as a context manager: `async with AgentClient("me@example.org", password) as client: await client.ask(…)`.
    Entering connects and logs in, and raises ConnectError or LoginError if that fails. A lost connection is restored
    automatically. Requests without a thread from one account to one agent belong to one conversation.

    Parameters:
        jid: the account. With a resource the client binds it, otherwise one of its own.
        password: the account's password.
        endpoint: a `spade_coreason.xmpp.ServerEndpoint`. By default the server is found through the JID's domain.
        register: register the account in-band first (XEP-0077).
        stanza_bytes: the longest request. Longer ones raise RequestTooLongError; servers accept 262,144 bytes by default.
        on_text: a function that gets what agents write without being asked: their JID and a text. Without one, such texts
            wait on the server for another client of the account.
    """

    def __init__(
        self,
        jid: str,
        password: str,
        endpoint: ServerEndpoint | None = None,
        *,
        register: bool = False,
        stanza_bytes: int = MAX_REQUEST_BYTES,
        on_text: Callable[[str, str], object] | None = None,
    ) -> None:
        self.jid = jid
        self._on_text = on_text
        self._stanza_bytes = stanza_bytes
        self._login = Login(jid, password, register)
        self._endpoint = endpoint
        self._requests = OpenRequests()
        self._connection: Connection | None = None

    @classmethod
    def guest(cls, data_dir: str | os.PathLike[str] = "data") -> AgentClient:
        """Return a client for the guest account of the platform that runs on `data_dir` with a local server.

        Raise ServerError if no platform runs there, or if its server has no guest account.
        """
        platform = read_run_file(Path(data_dir))
        if platform is None:
            raise ServerError(f"no platform is running on {data_dir}; start one (`spade-coreason up`)")
        if platform.guest is None:
            raise ServerError(
                f"the platform on {data_dir} uses {platform.domain}, which has no guest account; use your own account"
            )
        return cls(
            platform.guest["jid"],
            platform.guest["password"],
            ServerEndpoint(
                platform.host,
                platform.port,
                platform.verify,
                Path(platform.ca_file) if platform.ca_file else None,
                attempts=5 if platform.mode == "embedded" else 1,
                requires_tls=platform.requires_tls,
            ),
        )

    @property
    def is_online(self) -> bool:
        """True while the client has a session. Requests sent without a session wait for the next one."""
        return self._connection is not None and self._connection.state == "online"

    async def __aenter__(self) -> AgentClient:
        # Replies go to the resource that sent the request, so it must be the same after a reconnection.
        full_jid = self.jid if "/" in self.jid else f"{self.jid}/client-{secrets.token_hex(4)}"
        login = replace(self._login, jid=full_jid)
        session = _ClientSession(login, self._endpoint or ServerEndpoint(), self.jid, self._requests, self._on_text)
        self._connection = session.connection
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
        thoughts: bool = False,
    ) -> PeerAnswer:
        """Send a request to the agent `jid` and return its complete reply.

        `request` is a text, a payload (a mapping) or an `AgentRequest`. A text becomes the payload's `query`. `thread` selects
        the conversation. Wait at most `timeout` seconds. Several requests may run at once. With `thoughts`, the events of the
        answer include those of the agent.

        Raise PeerTimeoutError, PeerUnavailableError, PeerRefusedError, PeerFailedError, PeerParkedError, AnswerTooLongError or
        RequestTooLongError. Each names the agent.
        """
        events = self.stream(jid, request, thread=thread, timeout=timeout, thoughts=thoughts)
        return collect_answer(jid, [event async for event in events])

    async def stream(
        self,
        jid: str,
        request: AgentRequest | Mapping[str, Any] | str,
        *,
        thread: str | None = None,
        timeout: float = 30.0,
        thoughts: bool = False,
    ) -> AsyncGenerator[PeerEvent]:
        """Send a request and yield the events of the reply as they come. Parameters and errors are those of `ask`."""
        connection = self._connection
        if connection is None:
            raise RuntimeError("the client is not connected; use it in `async with`")
        if is_caller(jid):
            raise PeerError(bare_jid(jid), CALLER_IS_NO_AGENT)
        agent_request = to_request(request)
        transport = XmppTransport(self.jid, connection.send, self._stanza_bytes)
        context = RequestContext(accepts_batches=True, wants_thoughts=thoughts)
        reads_batches = self._requests.reads_batches(jid)
        message = transport.encode_request(jid, agent_request, thread, context, reads_batches=reads_batches)
        request_id = str(agent_request.request_id)
        async with aclosing(self._requests.events(jid, request_id, timeout, lambda: connection.send([message]))) as events:
            async for event in events:
                yield event

    def cancel(self, jid: str, request: AgentRequest) -> None:
        """Retract a request (XEP-0424). The agent drops it if it still waits or runs, and stores nothing of it."""
        if self._connection is None:
            raise RuntimeError("the client is not connected; use it in `async with`")
        transport = XmppTransport(self.jid, self._connection.send, self._stanza_bytes)
        transport.send([transport.encode_retraction(jid, str(request.request_id))])

    def run_command(self, jid: str, command: str, *, timeout: float = 30.0) -> AsyncGenerator[PeerEvent]:
        """Run a command of an agent or its platform, in the form that people type: `/history 50`.

        Yield the events of the reply, as `stream` does.
        """
        return self.stream(jid, command_request(command), timeout=timeout, thoughts=True)


class _ClientSession(SessionHandler):
    """The session of a client, whose messages are replies to its requests, and texts that agents write first."""

    def __init__(
        self,
        login: Login,
        endpoint: ServerEndpoint,
        name: str,
        requests: OpenRequests,
        on_text: Callable[[str, str], object] | None,
    ) -> None:
        self.connection = Connection(login, endpoint, self, name=name)
        self._requests = requests
        self._on_text = on_text

    def on_session(self, is_new: bool) -> None:
        if is_new:
            # The server delivers stored messages after the first presence. With a negative priority it keeps those to the
            # account (RFC 6121, 8.5.2): a client that shows no texts must not take them from one that does. Without a priority
            # the embedded server would write to a session that has ended and had one.
            self.connection.client.send_presence(ppriority=0 if self._on_text is not None else -1)

    def on_message(self, message: Element) -> Commit[Any] | None:
        if not self._requests.route(decode(message)) and self._on_text is not None:
            text = message.findtext(BODY)
            if text and message.find(JSON) is None and message.get("type") in ("chat", "normal", None):
                self._on_text(message.get("from", ""), text)
        return None
