from spade_coreason.llm import LLMAgent, tool


@tool(risk="critical")
def refund(order: int) -> str:
    """Refund an order."""
    return f"Order {order} is refunded."


class Shop(LLMAgent):
    """Helps the customers of a bakery."""

    default_prompt = "You help the customers of a bakery. You may refund orders."
    default_tools = (refund,)
