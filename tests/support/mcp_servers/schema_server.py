"""An MCP server with the SDK, whose tools have the input schemas of a file: `python schema_server.py FILE`.

FILE maps the names of tools to their schemas, as JSON. The result of a call is what the schema has to say of its arguments.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # `tests/conftest.py` says why

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams, TextContent, Tool

SCHEMAS: dict[str, dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())


async def list_tools(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
    return ListToolsResult(
        tools=[Tool(name=name, description="d" * 3000, input_schema=schema) for name, schema in SCHEMAS.items()]
    )


async def call_tool(_: Any, params: CallToolRequestParams) -> CallToolResult:
    error = best_match(Draft202012Validator(SCHEMAS[params.name]).iter_errors(params.arguments or {}))
    return CallToolResult(content=[TextContent(text="it fits" if error is None else error.message)], is_error=error is not None)


async def main() -> None:
    server: Server[Any] = Server("schemas", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (receiving, sending):
        await server.run(receiving, sending, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
