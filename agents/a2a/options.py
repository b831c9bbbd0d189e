"""The options of a `RemoteA2AAgent`, and the address of its card."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr

from spade_coreason.llm.options import PrivateNetworks, StrictOptions

CARD_PATH = "/.well-known/agent-card.json"
"""The path of a card below the base address of its agent (A2A 1.0, section 8.2)."""
TRIES = 3
"""The most times that a request is sent while its errors may pass."""
_PORTS = {"http": 80, "https": 443}


class RemoteOptions(StrictOptions):
    """The options of a remote agent, as `RemoteA2AAgent` describes them."""

    url: str = Field(pattern=r"^https?://[^\s/?#@]+[^\s#@]*$")
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    allow_private: PrivateNetworks = False
    timeout_s: float = Field(default=30.0, gt=0)
    poll_s: float = Field(default=2.0, gt=0)

    @property
    def card_url(self) -> str:
        """The address of the card: `url` itself if its path ends with .json, else the well-known path below it."""
        parts = urlsplit(self.url)
        return self.url if parts.path.endswith(".json") else f"{self.url.partition('?')[0].rstrip('/')}{CARD_PATH}"

    @property
    def origin(self) -> tuple[str, str, int | None]:
        """The scheme, host and port of `url`, to which alone the headers are sent."""
        return origin_of(self.url)


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL. ValueError for a port that is none."""
    parts: SplitResult = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS.get(parts.scheme)
