"""An MCP server for the stock of a shop: `python stock_server.py` speaks the protocol on its standard input and output."""

from typing import Literal

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

Article = Literal["lamp", "chair", "desk"]
PIECES: dict[Article, int] = {"lamp": 12, "chair": 3, "desk": 0}
SHELVES: dict[Article, str] = {"lamp": "A4", "chair": "B1", "desk": "C2"}

server = MCPServer("stock", log_level="WARNING")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def count(article: Article) -> str:
    """Count the pieces of an article in stock."""
    return f"{PIECES[article]} pieces"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def shelf(article: Article) -> str:
    """Find the shelf of an article."""
    return f"shelf {SHELVES[article]}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def write_off(article: Article, pieces: int) -> str:
    """Write off broken pieces of an article."""
    PIECES[article] -= pieces
    return f"{PIECES[article]} pieces are left"


if __name__ == "__main__":
    server.run()
