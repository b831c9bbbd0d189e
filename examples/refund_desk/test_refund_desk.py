import json
from datetime import timedelta
from pathlib import Path

import pytest
from refund_desk import RefundDesk

from spade_coreason import AgentTester
from spade_coreason.testing import ApprovalPolicy, Policy

CLARA, FELIX = "clara@localhost", "felix@localhost"
POLICY = Policy(approvals=ApprovalPolicy(groups={"finance": (FELIX,)}))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.json"


def payments(ledger: Path) -> list[dict[str, object]]:
    return list(json.loads(ledger.read_text()).values()) if ledger.exists() else []


async def test_a_small_refund_needs_no_approval(ledger: Path) -> None:
    async with AgentTester(RefundDesk, options={"ledger": str(ledger)}, policy=POLICY, user=CLARA) as t:
        assert "1. It is broken" in (await t.say("1001 please"))[0]
        assert await t.say("1") == ["20 euros are on their way to you. Your receipt is R-1001-1."]


async def test_a_large_refund_is_paid_once_after_the_finance_team_has_approved_it(ledger: Path) -> None:
    async with AgentTester(RefundDesk, options={"ledger": str(ledger)}, policy=POLICY, user=CLARA) as t:
        await t.say("I want my money back for 1002")
        assert await t.say("It is broken") == ["This needs the approval of finance. I go on when it is decided."]
        assert payments(ledger) == []
        await t.restart()
        await t.approve()
        assert (await t.message()).text == "480 euros are on their way to you. Your receipt is R-1002-1."
        assert payments(ledger) == [{"order": "1002", "amount": 480, "reason": "It is broken"}]


async def test_a_refund_that_is_denied_is_not_paid(ledger: Path) -> None:
    async with AgentTester(RefundDesk, options={"ledger": str(ledger)}, policy=POLICY, user=CLARA) as t:
        await t.say("1003")
        await t.say("3")
        await t.deny(reason="Too late for this one.")
        assert (await t.message()).text == f"I am sorry, {FELIX} has declined this. Too late for this one."
        assert payments(ledger) == []


async def test_the_finance_team_is_reminded_and_the_customer_hears_when_nobody_decides(ledger: Path) -> None:
    async with AgentTester(RefundDesk, options={"ledger": str(ledger)}, policy=POLICY, user=CLARA) as t:
        await t.say("1003")
        await t.say("3")
        assert "approval" in str((await t.message(user=FELIX)).text)
        await t.advance(timedelta(hours=12))
        assert "A reminder: this still waits for you." in str((await t.message(user=FELIX)).text)
        await t.advance(timedelta(hours=12))
        assert (await t.message()).text == "No one has decided in time. Please ask again."
        assert payments(ledger) == []
