"""An agent that takes back what was bought, and asks a colleague about large sums."""

from __future__ import annotations

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalDeniedError, ApprovalExpiredError

ORDERS = {"1001": 20, "1003": 1250}
"""The price of each order, in euros."""
_LIMIT = 100
"""The largest refund that needs no approval."""
_REASONS = ("It is broken", "It is the wrong one", "I changed my mind")


class RefundsAgent:
    """Takes back what you have bought. A colleague has to approve large refunds."""

    examples = ("I want to send back order 1003", "I want to send back order 1001")

    def __init__(self, manifest: AgentDefinition, approvers: str = "finance") -> None:
        self.manifest = manifest
        self.approvers = approvers

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Ask for the reason, and for an approval if the refund is large, and pay."""
        order = next((word for word in str(request.payload.get("query")).split() if word in ORDERS), None)
        if order is None:
            await response.markdown(f"Which order do you want to send back? Write one of {', '.join(ORDERS)}.")
            return
        reason = await response.ask_person(f"Why do you send order {order} back?", choices=_REASONS)
        amount = ORDERS[order]
        try:
            if amount <= _LIMIT:
                receipt = await session.run_once("refund", self.refund, order, amount, reason.text)
            else:
                receipt = await session.run_approved(
                    "refund", self.refund, order, amount, reason.text, approvers=self.approvers
                )
        except ApprovalDeniedError as error:
            await response.markdown(f"I am sorry, {error.person} has declined this. {error.reason}".strip())
        except ApprovalExpiredError:
            await response.markdown("No one has decided in time. Please ask again.")
        else:
            await response.markdown(f"{amount} euros are on their way to you. Your receipt is {receipt}.")

    async def refund(self, order: str, amount: int, reason: str) -> str:
        """Pay a refund, and return its receipt. This one pays nothing."""
        return f"R-{order}"
