"""`RemoteA2AAgent`: an agent elsewhere that speaks A2A 1.0, with a JID here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from spade_coreason import AgentDefinition, AgentRequest, ConfigError, Files, Peers, Response, Session
from spade_coreason.domain.environment.https_trust import HttpsTrust
from spade_coreason.domain.environment.installation import install_hint
from spade_coreason.domain.environment.proxies import find_proxy
from spade_coreason.domain.texts.translation import N_
from spade_coreason.llm.options import parse_options
from spade_coreason.runtime.event_emitter import EventEmitter

from .errors import RemoteAgentError, TaskLostError
from .options import TRIES, RemoteOptions
from .reading import describe_card, make_manifest, name_of

if TYPE_CHECKING:
    import httpx

    from .connection import Connection

log = logging.getLogger(__name__)

_RETRY_S = 60.0
"""Seconds until the card of an agent that was not reachable is fetched again."""
_REFRESH_S = 3600.0
"""Seconds after which a card is fetched again."""
_PACKAGE = "a2a"


class RemoteA2AAgent:
    """Asks an agent elsewhere by A2A 1.0. It has a JID here, so that people chat with it and agents find and ask it.

    - `url`: the base address of the remote agent, or the address of its card if the path ends with .json.
    - `headers`: headers of each request, such as Authorization. They are sent to the scheme, host and port of `url` only.
    - `allow_private`: private networks in which it may be, such as ["10.1.0.0/16"], or true for all. By default it must be in
      the public internet.
    - `timeout_s`: seconds without anything new after which a request to it fails, or its task is looked up.
    - `poll_s`: seconds between two looks at a task that cannot be followed in a stream.

    The manifest is made from the card of the remote agent, unless one is given. The signature of the card is not verified.
    `files` stores files that it sends as bytes. ConfigError names the key of a wrong option.
    """

    def __init__(
        self,
        manifest: AgentDefinition | Literal["card"] = "card",
        peers: Peers | None = None,
        files: Files | None = None,
        *,
        url: str,
        headers: Mapping[str, str] | None = None,
        allow_private: bool | Sequence[str] = False,
        timeout_s: float = 30.0,
        poll_s: float = 2.0,
    ) -> None:
        given = {"url": url, "headers": headers or {}, "timeout_s": timeout_s, "poll_s": poll_s}
        self._options = parse_options(RemoteOptions, {**given, "allow_private": allow_private}, "options")
        if find_spec(_PACKAGE) is None:
            raise ConfigError("options.url", f"agents elsewhere need the package a2a-sdk: {install_hint('a2a')}")
        find_proxy(self._options.url)
        host = urlsplit(self._options.url).hostname or ""
        self._has_own_manifest = isinstance(manifest, AgentDefinition)
        self._manifest = manifest if isinstance(manifest, AgentDefinition) else make_manifest(url, host, _DESCRIPTION)
        self._peers = peers
        self._files = files
        self._trust = HttpsTrust(files.ca_file if files is not None else None)
        self._http: httpx.AsyncClient | None = None
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._refresher: asyncio.Task[None] | None = None
        self._cancellations: set[asyncio.Task[None]] = set()
        self.manifest_changed: EventEmitter[[]] = EventEmitter()
        """Emitted when the manifest has been made anew from a card."""

    @property
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        return self._manifest

    @property
    def awaits_card(self) -> bool:
        """True until the manifest is made from the card."""
        return not self._has_own_manifest and self._connection is None

    async def startup(self) -> None:
        """Fetch the card. If the remote agent cannot be reached now, it is fetched later."""
        await self._refresh(tries=1)  # the platform waits for it
        self._refresher = asyncio.create_task(self._keep_fresh())

    async def shutdown(self) -> None:
        """Close the connection."""
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        if self._cancellations:
            await asyncio.gather(*self._cancellations)
        self._connection = self._refresher = None
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Pass a request on, and its answer back. A failure of the remote agent is an error of one line."""
        from .exchange import Exchange

        options, name = self._options, self._manifest.metadata.name
        exchange = Exchange(self._connect, request, session, response, self._files, options.poll_s, options.timeout_s, name)
        try:
            await exchange.run()
        except RemoteAgentError as error:
            if error.remedy:
                log.warning("%s%s (%s)", self._place, error, error.remedy)
            if error.was_not_sent:
                self._connection = None  # it may have moved, which its card says
            if exchange.is_open and not isinstance(error, TaskLostError):
                self._cancel_later(exchange.task_id)
            await response.error(str(error), recoverable=error.is_transient)
        except asyncio.CancelledError:
            # A stop of the platform cancels turns, too. Their requests run again, and find the task where it is.
            if exchange.is_open and self._peers is not None and not self._peers.is_stopping:
                self._cancel_later(exchange.task_id)
            raise

    @property
    def _place(self) -> str:
        """The beginning of log lines: the JID of this agent."""
        return f"{self._peers.jid}: " if self._peers is not None else ""

    async def _connect(self) -> Connection:
        """Return the connection. The first call, and one after a failure, fetches the card. RemoteAgentError."""
        async with self._connecting:
            if self._connection is None:
                self._connection = await self._open()
            return self._connection

    async def _open(self, tries: int = TRIES) -> Connection:
        module = await asyncio.to_thread(_import_connection)
        if self._http is None:
            self._http = module.make_http_client(self._options, self._trust)
        name = self._manifest.metadata.name
        connection: Connection = await module.Connection.open(self._http, self._options, name, tries)
        if not self._has_own_manifest:
            card, url = connection.card, self._options.url
            name = name_of(card, urlsplit(url).hostname or "")
            manifest = make_manifest(url, name, describe_card(card) or _DESCRIPTION, card)
            created_at = self._manifest.metadata.created_at
            manifest = manifest.model_copy(update={"metadata": manifest.metadata.model_copy(update={"created_at": created_at})})
            connection.name = name
            if manifest != self._manifest:
                self._manifest = manifest
                self.manifest_changed.emit()
        return connection

    async def _refresh(self, tries: int = TRIES) -> None:
        """Fetch the card, and use it from then on. If that fails, an earlier one stays in use."""
        try:
            self._connection = await self._open(tries)
        except RemoteAgentError as error:
            level = logging.DEBUG if self._refresher is not None else logging.WARNING
            remedy = f" ({error.remedy})" if error.remedy else ""
            log.log(level, "%s%s%s Its card is fetched again later.", self._place, error, remedy)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(_RETRY_S if self._connection is None else _REFRESH_S)
            await self._refresh()

    def _cancel_later(self, task_id: str) -> None:
        """Cancel a task of the remote agent, which nobody waits for any more."""
        task = asyncio.create_task(self._cancel_task(task_id))
        self._cancellations.add(task)
        task.add_done_callback(self._cancellations.discard)

    async def _cancel_task(self, task_id: str) -> None:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await (await self._connect()).cancel_task(task_id)
        except (RemoteAgentError, TimeoutError) as error:
            log.info("%sa task of %s is not cancelled: %s", self._place, self._manifest.metadata.name, error)


_DESCRIPTION = N_("An agent elsewhere, which is asked by A2A")


def _import_connection() -> ModuleType:
    """Import the SDK, which takes most of a second. Call it off the event loop."""
    from . import connection

    return connection
