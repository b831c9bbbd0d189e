"""The state diagram of docs/explanation/conversations.md is that of the table of transitions."""

from __future__ import annotations

from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import TRANSITIONS
from tests.docs.pages import DOCS, read_page


def draw_diagram() -> str:
    """Draw the transitions as a Mermaid state diagram."""
    arrows = [
        f"    {state.value} --> {next_state.value}: {trigger.value}"
        for state, transitions in TRANSITIONS.items()
        for trigger, next_state in transitions.items()
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {ConversationState.ACTIVE.value}", *arrows]) + "\n"


def test_the_page_shows_the_transitions_of_a_conversation() -> None:
    page = read_page(DOCS / "explanation" / "conversations.md")
    [diagram] = [block.text for block in page.blocks if block.language == "mermaid"]
    assert diagram == draw_diagram()


def test_the_diagram_has_every_state() -> None:
    assert set(TRANSITIONS) == set(ConversationState)
