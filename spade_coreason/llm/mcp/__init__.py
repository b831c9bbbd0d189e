"""Tools of MCP servers (Model Context Protocol); the package `mcp` is imported when they are used."""
