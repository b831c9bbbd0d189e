"""The mailbox of a worker: short messages between the workers of one PostgreSQL database, by LISTEN and NOTIFY.

Nothing of them is stored. A message that is sent while its receiver has no connection is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ...concurrency import cancel_tasks

if TYPE_CHECKING:
    from ..backends.postgres_connections import PostgresConnections

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 7_900
"""The most bytes of a message in UTF-8. PostgreSQL allows 7,999."""
_PREFIX = "spade_coreason_mail_"
_MAX_BATCH = 64
"""The most messages in one transaction."""
_TIMEOUT_S = 3.0
"""The time after which a connection that does not answer is lost, and between two looks at one."""
_RETRY_S = 0.5
_MAX_RINGS = 1_000
"""The most notifications of a bell in a second. No workers send more, so these come from a program that reads the table."""
_CLOSED_S = 60.0
LEASES_CHANGED = "leases"
"""The message of a bell that the leases have changed."""
ALL_DOORS = "doors"
"""The message of a bell that lets a worker load the keys and webhooks again."""
EVERYBODY = ""
"""The address of all bells."""


class WorkerMailbox:
    """A mailbox with an `address` of its own, from `start` until `close`.

    `on_message` is called with each message, in the order in which its sender sent it; a sender that has lost its connection
    may send one twice. `on_lost` is called when messages may have been lost, because the connection is.
    """

    _prefix = _PREFIX
    _send_sql = "SELECT pg_notify(mail.address, mail.message) FROM unnest($1::text[], $2::text[]) AS mail(address, message)"

    def __init__(
        self, connections: PostgresConnections, on_message: Callable[[str], object], on_lost: Callable[[], object]
    ) -> None:
        self.address = f"{_PREFIX}{token_hex(16)}"
        """The address, a channel of NOTIFY that cannot be guessed."""
        self._connections = connections
        self._on_message = on_message
        self._on_lost = on_lost
        self._is_open = asyncio.Event()
        self._unsent: list[tuple[str, str, asyncio.Future[None] | None]] = []
        """Addresses, messages, and futures that are done when the message is sent."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._pause_s = _RETRY_S

    def start(self) -> None:
        """Begin to receive and send."""
        self._task = asyncio.create_task(self._run(), name="mailbox")

    async def close(self) -> None:
        """End it."""
        await cancel_tasks(self._task)

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
        if not address.startswith(self._prefix) or len(message.encode()) > MAX_MESSAGE_BYTES:
            raise ValueError("a message is too long, or has no address")
        self._unsent.append((address, message, sent))
        self._wake.set()

    async def _run(self) -> None:
        # Nothing of it is stored, so that it waits for no disk and no standby.
        engine = self._connections.make_engine("spade-coreason mailbox", _TIMEOUT_S, _TIMEOUT_S, {"synchronous_commit": "off"})
        try:
            while True:
                with suppress(*self._connections.errors):
                    async with engine.connect() as connection:
                        driver: Any = (await connection.get_raw_connection()).driver_connection
                        driver.add_termination_listener(lambda _: self._wake.set())
                        try:
                            await self._listen(driver)
                            self._is_open.set()
                            await self._serve(driver)
                        finally:
                            if self._is_open.is_set():
                                self._is_open.clear()
                                self._on_lost()
                            driver.terminate()
                await asyncio.sleep(self._pause_s)
                self._pause_s = _RETRY_S
        finally:
            await engine.dispose()

    async def _listen(self, driver: Any) -> None:
        await driver.add_listener(self.address, self._take)

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
        await driver.fetch(self._send_sql, [address for address, _, _ in batch], [message for _, message, _ in batch])
        del self._unsent[: len(batch)]
        for _, _, sent in batch:
            if sent is not None and not sent.done():
                sent.set_result(None)


class WorkerBell(WorkerMailbox):
    """The bell of a worker, which other workers ring when it has to look at something. Addresses are the ids of workers.

    Messages are `LEASES_CHANGED`, `ALL_DOORS`, the id of the worker for its calls, and "" if some may have been missed.

    The channel has another random name with each connection, which stands in the row of the worker. Above a rate that no
    workers have it is closed for a minute. Then, and while it has no connection, the worker has to look without being told.
    """

    _prefix = ""
    _send_sql = (
        "SELECT pg_notify(channel, message) FROM unnest($1::text[], $2::text[]) AS ring(address, message)"
        " JOIN workers ON channel IS NOT NULL AND address IN ('', id::text)"
    )
    _counted_from = 0.0
    _count = 0

    def __init__(self, connections: PostgresConnections, worker: int) -> None:
        super().__init__(connections, lambda message: None, lambda: None)
        self._worker = worker

    def answer(self, on_message: Callable[[str], object]) -> None:
        """Call a function with each message from now on."""
        self._on_message = on_message
        on_message("")

    def ring(self, address: str, message: str) -> None:
        """Ring the bell of a worker, or those of `EVERYBODY`, soon. Without a connection this is forgotten."""
        if self.is_open:
            self.post(address, message)

    async def close(self) -> None:
        """Ring what is left, and end it."""
        if self.is_open:
            with suppress(TimeoutError):
                async with asyncio.timeout(_TIMEOUT_S):
                    await self.send(EVERYBODY, [LEASES_CHANGED])
        await super().close()

    async def _listen(self, driver: Any) -> None:
        self.address = f"{_PREFIX}{token_hex(16)}"
        await super()._listen(driver)
        await driver.execute("UPDATE workers SET channel = $1 WHERE id = $2", self.address, self._worker)
        self._on_message("")

    def _take(self, driver: Any, pid: int, channel: str, message: object) -> None:
        now = asyncio.get_running_loop().time()
        if now > self._counted_from + 1:
            self._counted_from, self._count = now, 0
        self._count += 1
        if self._count <= _MAX_RINGS:
            super()._take(driver, pid, channel, message)
        elif not driver.is_closed():
            log.warning("more than %d notifications came in a second; for a minute this worker looks each second", _MAX_RINGS)
            self._pause_s = _CLOSED_S
            driver.terminate()
