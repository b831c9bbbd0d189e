"""The channel of due times: their replies go to a person by the channel that they use, or are recorded only."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ...domain.messages import InboundRequest, TurnEvent
from ..channels import (
    PLAIN_PRESENTATION,
    Channel,
    ChannelGateway,
    ClientFeatures,
    OutboundMessage,
    PresentationOptions,
    ReplyEncoder,
)


class SilentEncoder(ReplyEncoder):
    """Encoder of replies that are not sent, but recorded with their turn."""

    shows_typing = has_live_messages = follows_streams = shows_files = batches = shows_thoughts = shows_steps = False

    def __init__(self, incoming: InboundRequest, key: UUID) -> None:
        self.key = str(key)
        self.recipient = incoming.owner

    def encode(self, event: TurnEvent) -> list[str]:
        return []

    def readdress(self, content: str, recipient: str) -> str:
        return content


class ScheduleChannel(Channel):
    """The channel of due times. `target` carries the replies."""

    def __init__(self, target: Channel) -> None:
        self._target = target

    @property
    def client_features(self) -> ClientFeatures:  # type: ignore[override]  # that of the target may be set later
        """The features of the clients of people, as the target knows them."""
        return self._target.client_features

    async def open(self, gateway: ChannelGateway) -> None:
        """Do nothing: due times come from the clock of the agent."""

    async def close(self) -> None:
        """Do nothing."""

    def send(self, messages: Sequence[OutboundMessage]) -> object:
        return self._target.send(messages)

    def make_encoder(
        self, incoming: InboundRequest, key: UUID, options: PresentationOptions = PLAIN_PRESENTATION
    ) -> ReplyEncoder:
        if not incoming.kind.is_human:
            return SilentEncoder(incoming, key)
        return self._target.make_encoder(incoming, key, options)

    def load_message(self, content: str) -> OutboundMessage:
        return self._target.load_message(content)
