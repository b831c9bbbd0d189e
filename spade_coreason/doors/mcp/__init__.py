"""The MCP door: agents as tools of an MCP server, for the assistants of editors and for other programs."""
