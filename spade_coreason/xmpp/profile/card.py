"""What everybody who is admitted may know of an agent: the public part of its manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from ...codec import clean, escape_attribute
from ...contracts import AgentDefinition
from ...domain.avatar import Avatar, draw_avatar
from ...domain.text import replace_lone_surrogates

CARD_NAMESPACE = "urn:spade-coreason:card:0"
"""The FORM_TYPE of the short card (XEP-0128), and the PEP node of the whole one."""

_MAX_SHORT_CHARACTERS = 300
_MAX_LISTED_CAPABILITIES = 50
_MAX_CHARACTERS = 1000
"""So many characters of a text are shown, here and in an introduction."""


@dataclass(frozen=True, slots=True)
class AgentCard:
    """Name, description, capabilities and picture; never configuration, prompts, dependencies, policy or custom metadata."""

    name: str
    version: str
    description: str
    capabilities: Sequence[Mapping[str, Any]]
    avatar: Avatar

    @classmethod
    def from_manifest(cls, manifest: AgentDefinition, avatar: Avatar | None = None) -> AgentCard:
        """The profile of an agent; without a picture one is drawn."""
        # Key by key: what is added to the manifest later is not public before somebody says so here.
        capabilities = [
            {"name": _shorten(c.name), "description": _shorten(c.description), "inputs": c.inputs, "outputs": c.outputs}
            for c in manifest.capabilities
        ]
        name = _shorten(manifest.metadata.name)
        description = next((c["description"] for c in capabilities if c["description"]), "")
        return cls(name, manifest.metadata.version, str(description), capabilities, avatar or draw_avatar(name))

    def encode_json(self, max_bytes: int) -> str:
        """The card as JSON. What makes it longer than so many bytes in a stanza is left out: schemas, then descriptions."""
        text = ""
        for keys in (("name", "description", "inputs", "outputs"), ("name", "description"), ("name",)):
            capabilities = [{key: capability[key] for key in keys} for capability in self.capabilities]
            card = {"name": self.name, "version": self.version, "description": self.description, "capabilities": capabilities}
            text = clean(to_json(replace_lone_surrogates(card)).decode())
            if len(escape_attribute(text).encode()) <= max_bytes:
                break
        return text

    @property
    def form_fields(self) -> dict[str, list[str]]:
        """The card in short: the fields of a form."""
        return {
            "FORM_TYPE": [CARD_NAMESPACE],
            "name": [self.name],
            "version": [self.version],
            "description": [self.description[:_MAX_SHORT_CHARACTERS]],
            "capabilities": [str(c["name"])[:_MAX_SHORT_CHARACTERS] for c in self.capabilities[:_MAX_LISTED_CAPABILITIES]],
        }

    @property
    def introduction(self) -> str:
        """What the agent says to somebody whom it does not know yet."""
        lines = [f"Hello, I am {self.name}. {self.description}".strip()]
        told = [c for c in self.capabilities if c["description"] and c["description"] != self.description]
        if told:
            lines.append("What I can do:")
            lines += [f"- {c['name']}: {c['description']}" for c in self.capabilities if c["description"]]
        return _shorten("\n".join(lines), 5 * _MAX_CHARACTERS)


def _shorten(text: str, max_characters: int = _MAX_CHARACTERS) -> str:
    text = clean(text)
    return text if len(text) <= max_characters else f"{text[: max_characters - 2]} …"
