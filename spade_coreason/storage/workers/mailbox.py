"""The mailbox of a worker: short messages between the workers of one PostgreSQL database, by LISTEN and NOTIFY.

Nothing of them is stored. A message that is sent while its receiver has no connection is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from ..backends.database import Database

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 7_900
"""The most bytes of a message in UTF-8. PostgreSQL allows 7,999."""
_PREFIX = "spade_coreason_mail_"
_MAX_BATCH = 64
"""The most messages in one transaction."""
_TIMEOUT_S = 3.0
"""The time after which a connection that does not answer is lost, and between two looks at one."""
_RETRY_S = 0.5
_SEND_SQL = "SELECT pg_notify(mail.address, mail.message) FROM unnest($1::text[], $2::text[]) AS mail(address, message)"


class WorkerMailbox:
    """A mailbox with an `address` of its own, from `start` until `close`.

    `on_message` is called with each message, in the order in which its sender sent it; a sender that has lost its connection
    may send one twice. `on_lost` is called when messages may have been lost, because the connection is.
    """

    def __init__(self, database: Database, on_message: Callable[[str], object], on_lost: Callable[[], object]) -> None:
        self.address = f"{_PREFIX}{token_hex(16)}"
        """The address, a channel of NOTIFY that cannot be guessed."""
        self._database = database
        self._on_message = on_message
        self._on_lost = on_lost
        self._is_open = asyncio.Event()
        self._unsent: list[tuple[str, str, asyncio.Future[None] | None]] = []
        """Addresses, messages, and futures that are done when the message is sent."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to receive and send."""
        self._task = asyncio.create_task(self._run(), name="mailbox")

    async def close(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def is_open(self) -> bool:
        """True while messages reach this mailbox."""
        return self._is_open.is_set()

    async def wait_until_open(self) -> None:
        """Wait until messages reach this mailbox. Raise ConnectionError if that takes too long."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._is_open.wait()
        except TimeoutError:
            raise ConnectionError("other workers cannot be reached at the moment") from None

    def post(self, address: str, message: str) -> None:
        """Send a message soon. Raise ValueError if it is too long."""
        self._post(address, message, None)

    async def send(self, address: str, messages: Sequence[str]) -> None:
        """Send messages, and wait until they are sent. Raise ValueError if one is too long."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for message in messages[:-1]:
            self._post(address, message, None)
        self._post(address, messages[-1], sent)
        await sent

    def _post(self, address: str, message: str, sent: asyncio.Future[None] | None) -> None:
        if not address.startswith(_PREFIX) or len(message.encode()) > MAX_MESSAGE_BYTES:
            raise ValueError("a message is too long, or has no address")
        self._unsent.append((address, message, sent))
        self._wake.set()

    async def _run(self) -> None:
        engine = create_async_engine(
            self._database.url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={
                "timeout": _TIMEOUT_S,
                "command_timeout": _TIMEOUT_S,
                "server_settings": {"application_name": "spade-coreason mailbox", "synchronous_commit": "off"},
            },
        )
        try:
            while True:
                with suppress(*self._database.driver_errors):
                    async with engine.connect() as connection:
                        driver: Any = (await connection.get_raw_connection()).driver_connection
                        driver.add_termination_listener(lambda _: self._wake.set())
                        try:
                            await driver.add_listener(self.address, self._take)
                            self._is_open.set()
                            await self._serve(driver)
                        finally:
                            if self._is_open.is_set():
                                self._is_open.clear()
                                self._on_lost()
                            driver.terminate()
                await asyncio.sleep(_RETRY_S)
        finally:
            await engine.dispose()

    def _take(self, driver: object, pid: int, channel: str, message: object) -> None:
        try:
            self._on_message(str(message))
        except Exception:
            log.exception("a message of another worker cannot be read")

    async def _serve(self, driver: Any) -> None:
        while not driver.is_closed():
            if self._unsent:
                await self._send(driver)
                continue
            self._wake.clear()
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._wake.wait()
            except TimeoutError:
                await driver.fetchval("SELECT 1")  # a connection whose server is gone says nothing

    async def _send(self, driver: Any) -> None:
        batch = self._unsent[:_MAX_BATCH]
        await driver.fetch(_SEND_SQL, [address for address, _, _ in batch], [message for _, message, _ in batch])
        del self._unsent[: len(batch)]
        for _, _, sent in batch:
            if sent is not None and not sent.done():
                sent.set_result(None)
