"""Tools of MCP servers (Model Context Protocol) for a language model; the package mcp is imported when they are used."""

from .offers import Offer as Offer
from .options import ServerOptions as ServerOptions
from .servers import Servers as Servers

__all__ = ["Offer", "ServerOptions", "Servers"]
