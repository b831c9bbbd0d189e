"""The links to the page in the browser that the demo prints: for the guest, and for the people whom an agent asks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from ...contracts.times import utc_now
from ...exceptions import StoreError
from ...storage import load_asked
from ..terminal.console import paint, print_cleaned

if TYPE_CHECKING:
    from ...app import Platform
    from ..chat.incoming_texts import IncomingTexts

_LOOK_S = 1.0


async def print_guest_link(platform: Platform) -> None:
    """Print a fresh link for the guest."""
    if platform.web_status is not None and platform.guest is not None:
        link = await platform.make_login(platform.guest[0])
        print_cleaned(
            f"{paint('Browser', 'bold')}       {link}\n{' ' * 14}It works once, for two minutes. Enter prints another.\n"
        )


async def show_approver_links(platform: Platform, texts: IncomingTexts) -> None:
    """Show a link above the prompt for each person who is asked for an approval, until this is cancelled."""
    # By their codes, and not by the last look: one may be stored later than it was made.
    since, told = utc_now(), set[tuple[str, str, str]]()
    while platform.web_status is not None and platform.database is not None:
        with suppress(StoreError):
            for agent, person, code in set(await load_asked(platform.database, since)) - told:
                told.add((agent, person, code))
                link = await platform.make_login(person)
                texts.put(agent, f"{person} has to approve this. Open it in a private window, as {person}:\n{link}")
        await asyncio.sleep(_LOOK_S)
