"""A refund desk: it pays small refunds at once, and large ones when the finance team has approved them."""

import asyncio
import json
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.exceptions import ApprovalDeniedError, ApprovalExpiredError

ORDERS = {"1001": 20, "1002": 480, "1003": 1250}
"""The price of each order, in euros."""
LIMIT = 100
"""The largest refund that needs no approval."""
REASONS = ("It is broken", "It is the wrong one", "I changed my mind")


class RefundDesk:
    """Takes back what was bought, and asks the finance team about large sums."""

    def __init__(self, manifest: AgentDefinition, ledger: str = "ledger.json") -> None:
        self.manifest = manifest
        self.ledger = Path(ledger)

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        order = next((word for word in request.payload["query"].split() if word in ORDERS), None)
        if order is None:
            await response.markdown(f"Which order? Write one of {', '.join(ORDERS)}.")
            return
        reason = await response.ask_person(f"Why do you send order {order} back?", choices=REASONS)
        amount = ORDERS[order]
        try:
            if amount <= LIMIT:
                receipt = await session.run_once("refund", self.refund, order, amount, reason.text)
            else:
                receipt = await session.run_approved("refund", self.refund, order, amount, reason.text, approvers="finance")
        except ApprovalDeniedError as error:
            await response.markdown(f"I am sorry, {error.person} has declined this. {error.reason}".strip())
        except ApprovalExpiredError:
            await response.markdown("No one has decided in time. Please ask again.")
        else:
            await response.markdown(f"{amount} euros are on their way to you. Your receipt is {receipt}.")

    async def refund(self, order: str, amount: int, reason: str, idempotency_key: str) -> str:
        """Pay a refund, and return its receipt. A payment service takes the key, so that it never pays twice."""
        return await asyncio.to_thread(self.write_down, order, amount, reason, idempotency_key)

    def write_down(self, order: str, amount: int, reason: str, key: str) -> str:
        paid = json.loads(self.ledger.read_text("utf-8")) if self.ledger.exists() else {}
        paid.setdefault(key, {"order": order, "amount": amount, "reason": reason})
        self.ledger.write_text(json.dumps(paid, indent=2), "utf-8")
        return f"R-{order}-{len(paid)}"
