"""Local XMPP servers: a managed Prosody, and an embedded one for a first run. Both end with the process that started them."""

from .address import Kind, LocalServer, require_free
from .choice import Choice, Mode, choose, local_server
from .embedded import EmbeddedServer, embedded_server
from .process import AddressInUse
from .prosody import ProsodyServer, prosody_program, prosody_server

__all__ = [
    "AddressInUse",
    "Choice",
    "EmbeddedServer",
    "Kind",
    "LocalServer",
    "Mode",
    "ProsodyServer",
    "choose",
    "embedded_server",
    "local_server",
    "prosody_program",
    "prosody_server",
    "require_free",
]
