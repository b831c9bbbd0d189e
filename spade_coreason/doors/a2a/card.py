"""The agent card of an agent, from its manifest."""

from __future__ import annotations

from a2a.types import a2a_pb2
from google.protobuf.json_format import ParseDict

from ...contracts import AgentCapability, AgentDefinition

PROTOCOL_VERSION = "1.0"
_SCHEMAS_URI = "urn:spade-coreason:a2a:schemas:0"
"""The extension whose parameters are the JSON Schemas of the skills, by their ids. A card has no place for them."""
_INPUT_MODES = ("text/plain", "application/json", "*/*")
_OUTPUT_MODES = ("text/plain", "text/markdown", "application/json")


def make_card(manifest: AgentDefinition, url: str) -> a2a_pb2.AgentCard:
    """Make the card of an agent that is reached at a URL by both bindings."""
    about = (
        next((each.description for each in manifest.capabilities if each.description), "")
        or f"The agent {manifest.metadata.name}."
    )
    card = a2a_pb2.AgentCard(
        name=manifest.metadata.name,
        description=about,
        version=manifest.metadata.version,
        supported_interfaces=[
            a2a_pb2.AgentInterface(url=url, protocol_binding=binding, protocol_version=PROTOCOL_VERSION)
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        capabilities=a2a_pb2.AgentCapabilities(streaming=True, push_notifications=False, extended_agent_card=False),
        default_input_modes=_INPUT_MODES,
        default_output_modes=_OUTPUT_MODES,
        skills=[_make_skill(manifest, capability) for capability in manifest.capabilities],
    )
    card.security_schemes["key"].http_auth_security_scheme.CopyFrom(
        a2a_pb2.HTTPAuthSecurityScheme(scheme="Bearer", description="A key that the operator makes: spade-coreason keys create")
    )
    card.security_requirements.add().schemes["key"].SetInParent()
    schemas = {
        each.name: {"inputs": each.inputs, "outputs": each.outputs}
        for each in manifest.capabilities
        if each.inputs or each.outputs
    }
    extension = card.capabilities.extensions.add(uri=_SCHEMAS_URI, description="The JSON Schemas of the skills, by their ids")
    ParseDict(schemas, extension.params)
    return card


def _make_skill(manifest: AgentDefinition, capability: AgentCapability) -> a2a_pb2.AgentSkill:
    return a2a_pb2.AgentSkill(
        id=capability.name,
        name=capability.name,
        description=capability.description or f"{capability.name} of {manifest.metadata.name}",
        tags=[capability.type],
    )
