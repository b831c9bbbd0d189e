"""An agent whose language model uses the tools of an MCP server."""

from spade_coreason.llm import LLMAgent


class StockClerk(LLMAgent):
    """Tells the staff of a shop what is in stock, and where."""

    default_prompt = "You help the staff of a shop. Look up the stock with your tools, and answer in one sentence."
