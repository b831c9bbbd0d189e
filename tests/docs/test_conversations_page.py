"""The state diagram of docs/explanation/conversations.md is that of the table of transitions."""

from __future__ import annotations

from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import TRANSITIONS
from tests.docs.pages import DOCS, read_page

ACTIVE = ConversationState.ACTIVE


def draw_diagram() -> str:
    """Draw the transitions as a Mermaid state diagram. The states after an end all lead back, and are drawn as one group."""
    ended = [state for state in TRANSITIONS if state is not ACTIVE]
    [back] = {(trigger, after) for state in ended for trigger, after in TRANSITIONS[state].items()}
    labels: dict[ConversationState, list[str]] = {}
    for trigger, after in TRANSITIONS[ACTIVE].items():
        labels.setdefault(after, []).append(trigger.value)
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {ACTIVE.value}"]
    lines += ["    state ended {", *(f"        {state.value}" for state in ended), "    }"]
    lines += [f"    {ACTIVE.value} --> {after.value}: {'<br>or '.join(texts)}" for after, texts in labels.items()]
    lines.append(f"    ended --> {back[1].value}: {back[0].value}")
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_transitions_of_a_conversation() -> None:
    page = read_page(DOCS / "explanation" / "conversations.md")
    [diagram] = [block.text for block in page.blocks if block.language == "mermaid"]
    assert diagram == draw_diagram()


def test_the_diagram_has_every_state() -> None:
    assert set(TRANSITIONS) == set(ConversationState)
