"""Stanzas from a person's client to the agent of an AgentTester, and the replies."""

from __future__ import annotations

from spade_coreason import AgentTester

ALICE, AGENT = "alice@localhost", "agent@localhost"


def message(text: str, stanza_id: str | None = None, thread: str | None = None, *, is_unique: bool = False) -> str:
    """Return a message. `is_unique`: it has an origin id, so that the same message sent again is a copy."""
    id_attribute = f" id='{stanza_id}'" if stanza_id else ""
    children = f"<thread>{thread}</thread>" if thread else ""
    if is_unique:
        children += f"<origin-id xmlns='urn:xmpp:sid:0' id='of-a-person-{stanza_id}-fb0c9d47'/>"
    return f"<message to='{AGENT}' type='chat'{id_attribute}><body>{text}</body>{children}</message>"


async def collect_replies(t: AgentTester, *stanzas: str, user: str = ALICE) -> list[str]:
    for stanza in stanzas:
        t.send_stanza(stanza, user=user)
    await t.settled()
    return t.unread(user)
