"""The agent's card: the public part of its manifest, for everyone who is admitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from ...contracts import AgentDefinition
from ...domain.avatar import Avatar, draw_avatar
from ...domain.texts.text import replace_lone_surrogates
from ...domain.texts.translation import translate
from ..codec import clean, escape_attribute

CARD_NAMESPACE = "urn:spade-coreason:card:0"
"""The FORM_TYPE of the short card (XEP-0128), and the PEP node of the full card."""

_MAX_SHORT_CHARACTERS = 300
_MAX_LISTED_CAPABILITIES = 50
_MAX_CHARACTERS = 1000
"""The most characters of a text on a card; an introduction has five times as many."""


@dataclass(frozen=True, slots=True)
class ProfileCard:
    """Name, description, capabilities and avatar of an agent.

    A card never contains configuration, prompts, dependencies, policy or custom metadata.
    """

    name: str
    version: str
    description: str
    capabilities: Sequence[Mapping[str, Any]]
    avatar: Avatar

    @classmethod
    def from_manifest(cls, manifest: AgentDefinition, avatar: Avatar | None = None) -> ProfileCard:
        """Build the card of an agent. Draw an avatar if none is given."""
        # The keys are listed one by one, so that keys added to the manifest later do not become public by accident.
        capabilities = [
            {"name": _shorten(c.name), "description": _shorten(c.description), "inputs": c.inputs, "outputs": c.outputs}
            for c in manifest.capabilities
        ]
        name = _shorten(manifest.metadata.name)
        description = next((c["description"] for c in capabilities if c["description"]), "")
        return cls(name, manifest.metadata.version, str(description), capabilities, avatar or draw_avatar(name))

    def encode_json(self, max_bytes: int) -> str:
        """Return the card as JSON. If it exceeds `max_bytes` in a stanza, leave out the schemas, then also the descriptions."""
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
        """The short card, as the fields of a form."""
        return {
            "FORM_TYPE": [CARD_NAMESPACE],
            "name": [self.name],
            "version": [self.version],
            "description": [self.description[:_MAX_SHORT_CHARACTERS]],
            "capabilities": [str(c["name"])[:_MAX_SHORT_CHARACTERS] for c in self.capabilities[:_MAX_LISTED_CAPABILITIES]],
        }

    @property
    def introduction(self) -> str:
        """The text with which the agent introduces itself to a new contact, in the language of `translation.LANGUAGE`."""
        lines = [f"{translate('Hello, I am {name}.', name=self.name)} {_end_sentence(translate(self.description))}".strip()]
        others = [c for c in self.capabilities if c["description"] and c["description"] != self.description]
        if others:
            lines.append(translate("What I can do:"))
            lines += [f"- {c['name']}: {translate(c['description'])}" for c in self.capabilities if c["description"]]
        return _shorten("\n".join(lines), 5 * _MAX_CHARACTERS)


def _end_sentence(text: str) -> str:
    """Return a description with the full stop that a manifest often leaves out."""
    return f"{text}." if text[-1:].isalnum() or text[-1:] in (")", '"') else text


def _shorten(text: str, max_characters: int = _MAX_CHARACTERS) -> str:
    text = clean(text)
    return text if len(text) <= max_characters else f"{text[: max_characters - 2]} …"
