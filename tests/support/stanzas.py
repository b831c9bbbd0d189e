"""What a person's client sends to the agent of an AgentTester, and what it answers."""

from __future__ import annotations

from spade_coreason import AgentTester

ALICE, AGENT = "alice@localhost", "agent@localhost"


def message(text: str, stanza_id: str | None = None, thread: str | None = None) -> str:
    named = f" id='{stanza_id}'" if stanza_id else ""
    said = f"<thread>{thread}</thread>" if thread else ""
    return f"<message to='{AGENT}' type='chat'{named}><body>{text}</body>{said}</message>"


async def answers_to(t: AgentTester, *stanzas: str, user: str = ALICE) -> list[str]:
    for stanza in stanzas:
        t.send_stanza(stanza, user=user)
    await t.settled()
    return t.unread(user)
