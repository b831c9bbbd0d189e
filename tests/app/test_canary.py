"""The canary of a worker goes on looking for the XMPP server, whatever happens."""

from __future__ import annotations

import asyncio

from spade_coreason.app.workers.canary import Canary
from spade_coreason.storage import Reach
from tests.support.errors import ExpectedErrors
from tests.support.wait import eventually


async def test_a_canary_goes_on_after_an_unexpected_error(expected_errors: ExpectedErrors) -> None:
    attempts, found = [RuntimeError("a fault of the library"), None], list[Reach]()

    async def open_stream() -> None:
        if (error := attempts.pop(0)) is not None:
            raise error

    canary = Canary(lambda: [], open_stream, 0.4, lambda reach, is_due: found.append(reach))
    running = asyncio.create_task(canary.run())
    await eventually(lambda: [reach.is_reached for reach in found] == [True])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    expected_errors("cannot be looked for; it tries again")
