"""The people who are asked to approve a call: a group, that of the settings, or the operators."""

from __future__ import annotations

import pytest

from spade_coreason import AgentRequest, AgentTester, Response, Session, agent
from spade_coreason.testing import ApprovalPolicy, Policy

GROUPS = {"finance": ("fred@localhost", "mia@localhost", "elsewhere.org"), "staff": ("sam@localhost",)}
OPERATORS = ("olga@localhost",)


@pytest.mark.parametrize(
    ("named", "of_settings", "people"),
    [
        ("staff", "finance", ("sam@localhost",)),
        (None, "finance", ("fred@localhost", "mia@localhost")),
        (None, None, OPERATORS),
    ],
)
async def test_the_group_of_the_settings_approves_where_a_call_names_none(
    named: str | None, of_settings: str | None, people: tuple[str, ...]
) -> None:
    paid: list[int] = []

    @agent
    async def desk(request: AgentRequest, session: Session, response: Response) -> None:
        await session.run_approved("pay", paid.append, 5, approvers=named)
        await response.markdown("Paid.")

    policy = Policy(approvals=ApprovalPolicy(of_settings, groups=GROUPS, operators=OPERATORS))
    async with AgentTester(desk, policy=policy) as t:
        asked_for = named or of_settings or "an operator"
        assert await t.say("pay") == [f"This needs the approval of {asked_for}. I go on when it is decided."]
        [question] = await t.questions()
        assert question.people == people
        await t.approve(user=people[-1])
        assert t.unread() == ["Paid."]
    assert paid == [5]
