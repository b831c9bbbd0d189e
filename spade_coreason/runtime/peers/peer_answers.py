"""The answers of peers as values: the events of a reply, and the reply that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...domain.jid import bare_jid


@dataclass(frozen=True, slots=True)
class PeerEvent:
    """One event of a reply. `type` has no prefix `ai.coreason.`, for example `block.markdown` or `stream.chunk`."""

    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """A whole reply of a peer: its text, its data blocks, and all its events in the order of arrival."""

    jid: str
    text: str
    data: tuple[Mapping[str, Any], ...] = ()
    events: tuple[PeerEvent, ...] = ()
    conversation_id: str | None = None

    def __str__(self) -> str:
        return self.text


def collect_answer(jid: str, events: list[PeerEvent]) -> PeerAnswer:
    """Build the reply from its events: blocks and streams in the order of their start, with two line breaks between them.

    A turn that was interrupted and runs again may send other text. Then the newer text counts, from where it differs. A reply
    that is repeated as a whole takes the place of what came before it.
    """
    texts: dict[str, dict[int, str]] = {}
    data: dict[str, Mapping[str, Any]] = {}
    conversation_id = None
    for number, event in enumerate(events):
        if event.type == "block.markdown":
            texts[str(event.data.get("id", number))] = {0: str(event.data.get("content", ""))}
        elif event.type == "stream.chunk":
            _add_chunk(texts.setdefault(str(event.data.get("stream_id")), {}), event.data)
        elif event.type == "stream.abort" and isinstance(replacement := event.data.get("replacement"), str):
            texts[str(event.data.get("stream_id"))] = {0: replacement}
        elif event.type == "stream.start":
            texts.setdefault(str(event.data.get("stream_id")), {})
        elif event.type == "request.repeated":
            texts.clear()
            data.clear()
        elif event.type == "block.data":
            data[str(event.data.get("id", number))] = event.data
        elif event.type == "request.completed":
            given_id = event.data.get("conversation_id")
            conversation_id = given_id if isinstance(given_id, str) else None
    text = "\n\n".join(filter(None, ("".join(parts.values()).strip() for parts in texts.values())))
    return PeerAnswer(bare_jid(jid), text, tuple(data.values()), tuple(events), conversation_id)


def _add_chunk(chunks: dict[int, str], data: Mapping[str, Any]) -> None:
    seq = data.get("seq")
    number = seq if isinstance(seq, int) else len(chunks)
    if number in chunks:
        for stale in [later for later in chunks if later >= number]:
            del chunks[stale]
    chunks[number] = str(data.get("chunk", ""))
