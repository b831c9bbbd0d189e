"""Tool calls that a person has to approve: asked before the round runs, run once, and never without the approval."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import AgentDefinition, AgentTester
from spade_coreason.contracts import Interceptor, RiskLevel
from spade_coreason.domain.policy import Policy
from spade_coreason.domain.questions import ApprovalPolicy
from spade_coreason.exceptions import ConfigError
from spade_coreason.llm import LLMAgent, Tool, tool
from spade_coreason.testing import FakeModel, stream, tool_call
from tests.support.approvals import APPROVER, ASKER, CODE, POLICY, STRANGER, Desk, read_question, run_desk
from tests.support.errors import ExpectedErrors
from tests.support.llm_agent import stored_turns
from tests.support.wait import TIMEOUT_S

QUESTION = "This needs the approval of finance. I go on when it is decided."
REFUND = tool_call("refund", order="R7", amount=30)


def definition_with(**policy: Any) -> AgentDefinition:
    return AgentDefinition.model_validate(AgentDefinition.simple("desk").model_dump(mode="json") | {"policy": policy})


async def approve(t: AgentTester, *, thread: str | None = None) -> str:
    """Approve the next call that the approver is asked about, and return the last text of the reply."""
    _, code = await read_question(t)
    await t.say(f"/approve {code}", user=APPROVER)
    await t.settled()
    return t.unread()[-1]


async def test_a_critical_tool_runs_once_after_another_person_has_approved_it() -> None:
    desk, model = Desk(), FakeModel([stream("Let me see.", calls=[REFUND]), "Done."])
    async with run_desk(model, desk) as t:
        assert await t.say("refund R7") == ["Let me see.", QUESTION]
        text, code = await read_question(t)
        assert '```\nrefund\namount:\n30\norder:\n"R7"\n```' in text
        assert f"{ASKER} asks for this." in text
        for person in (ASKER, STRANGER):
            await t.say(f"/approve {code}", user=person)
        await t.settled()
        assert desk.calls == []
        assert await t.say(f"/approve {code}", user=APPROVER) == ["Approved. It runs now."]
        assert (await t.message()).text == "Done."
        await t.say(f"/approve {code}", user=APPROVER)
        await t.settled()
        assert desk.calls == [("refund", "R7", 30)]
        assert t.unread() == []
    assert model.requests[1].tool_results == ["refunded 30"]
    assert len(model.requests) == 2


async def test_a_denied_tool_does_not_run_and_the_model_hears_who_denied_it_and_why() -> None:
    desk, model = Desk(), FakeModel([stream(calls=[REFUND, tool_call("look_up", order="R7")]), "It was denied."])
    async with run_desk(model, desk) as t:
        await t.say("refund R7")
        assert desk.calls == []  # nothing of the round runs before the answer
        _, code = await read_question(t)
        await t.say(f"/deny {code} too old", user=APPROVER)
        assert (await t.message()).text == "It was denied."
    denied = f"error: refund was not called. {APPROVER} has denied it. Their reason, which is data: too old"
    assert model.requests[1].tool_results == [denied, "paid 30"]
    assert desk.calls == [("look_up", "R7")]


async def test_all_calls_of_a_round_are_asked_about_before_any_of_them_runs() -> None:
    desk = Desk()
    model = FakeModel([stream(calls=[REFUND, tool_call("close", order="R7"), tool_call("look_up", order="R7")]), "Done."])
    async with run_desk(model, desk) as t:
        await t.say("refund and close R7")
        (refund, refund_code), (close, close_code) = [await read_question(t) for _ in range(2)]
        assert ("\nrefund\n" in refund, "\nclose\n" in close, refund_code == close_code) == (True, True, False)
        await t.say(f"/approve {close_code}", user=APPROVER)
        await t.settled()
        assert desk.calls == []
        await t.say(f"/deny {refund_code}", user=APPROVER)
        assert (await t.message()).text == "Done."
    assert sorted(desk.calls) == [("close", "R7"), ("look_up", "R7")]
    assert len(model.requests) == 2


async def test_a_call_about_which_nobody_decides_in_time_does_not_run() -> None:
    desk, model = Desk(), FakeModel([REFUND, "Nobody answered."])
    async with run_desk(model, desk, approvals={"approvers": "finance", "timeout_h": 2}) as t:
        await t.say("refund R7")
        _, code = await read_question(t)
        await t.advance(timedelta(hours=3))
        assert t.unread()[-1] == "Nobody answered."
        await t.say(f"/approve {code}", user=APPROVER)
        await t.settled()
    assert desk.calls == []
    assert "no one answered in time" in model.requests[1].tool_results[0]


async def test_tokens_are_counted_once_when_they_are_used() -> None:
    desk, model = Desk(), FakeModel([stream(calls=[REFUND], tokens=(100, 10)), stream("Done.", tokens=(200, 20))])
    async with run_desk(model, desk) as t:
        await t.say("refund R7")
        await t.settled()
        assert desk.usage is not None
        assert (await desk.usage.of_agent(), await desk.usage.of_person(ASKER)) == (110, 110)
        await t.restart()
        assert await desk.usage.of_agent() == 110
        assert await approve(t) == "Done."
        assert (await desk.usage.of_agent(), await desk.usage.of_person(ASKER)) == (330, 330)
        [turn] = await stored_turns(t)
        assert turn["meta"]["usage"]["total_tokens"] == 330
        assert turn["meta"]["usage"]["requests"] == 2


async def test_the_tokens_of_a_request_that_is_taken_back_are_counted() -> None:
    desk, model = Desk(), FakeModel([stream(calls=[REFUND], tokens=(100, 10)), stream("Hello.", tokens=(20, 2))])
    async with run_desk(model, desk) as t:
        await t.say("refund R7")
        await t.say("/cancel")
        assert await t.say("hello") == ["Hello."]
        assert desk.usage is not None
        assert await desk.usage.of_agent() == 132
    assert desk.calls == []


async def test_each_round_is_asked_about_and_no_round_runs_twice() -> None:
    desk, model = Desk(), FakeModel([REFUND, tool_call("refund", order="R7", amount=30), "Twice."])
    async with run_desk(model, desk) as t:
        await t.say("refund R7 twice")
        assert await approve(t) == QUESTION
        assert desk.calls == [("refund", "R7", 30)]
        assert await approve(t) == "Twice."
    assert desk.calls == [("refund", "R7", 30)] * 2
    assert len(model.requests) == 3


async def test_an_approved_tool_that_a_crash_cuts_off_is_reported_and_not_run_again(expected_errors: ExpectedErrors) -> None:
    expected_errors("the approved tool pay was cut off, and is not called again")
    started, calls = asyncio.Event(), []

    @tool(risk="critical")
    async def pay(amount: int) -> str:
        """Pay."""
        calls.append(amount)
        started.set()
        await asyncio.Event().wait()
        return "paid"

    model = FakeModel([stream(calls=[tool_call("pay", amount=5), tool_call("look_up", order="R7")]), "It is uncertain."])
    desk = Desk()
    async with run_desk(model, desk, tools=(pay,)) as t:
        await t.say("pay")
        _, code = await read_question(t)
        await t.say(f"/approve {code}", user=APPROVER)
        async with asyncio.timeout(TIMEOUT_S):
            await started.wait()
        await t.restart(grace_s=0)
        assert (await t.message()).text == "It is uncertain."
    assert calls == [5]
    assert "It may have done its work or not" in model.requests[1].tool_results[0]
    assert model.requests[1].tool_results[1] == "paid 30"


async def test_a_person_sees_what_is_hidden_in_the_arguments() -> None:
    hidden = "R7\u202e\n\u200b`)\x07\ufeff\U000e0041\u3164\ufe0f"
    desk, model = Desk(), FakeModel([tool_call("refund", order=hidden, amount=30), "Done."])
    async with run_desk(model, desk) as t:
        await t.say("refund")
        text, code = await read_question(t)
        lines = text.splitlines()
        escaped = "R7\\u202e\\n\\u200b`)\\u0007\\ufeff\\udb40\\udc41\\u3164\\ufe0f"
        assert lines[3:8] == ["refund", "amount:", "30", "order:", f'"{escaped}"']
        await t.say(f"/approve {code}", user=APPROVER)
        assert (await t.message()).text == "Done."
    assert desk.calls == [("refund", hidden, 30)]


async def test_a_call_with_arguments_that_are_too_long_to_be_read_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    too_long = tool_call("refund", order="R7", amount=30, note="secret " * 300)
    desk, model = Desk(), FakeModel([stream(calls=[too_long, tool_call("close", order="R7")]), "Closed only."])
    async with run_desk(model, desk) as t:
        await t.say("refund and close")
        assert await approve(t) == "Closed only."
    assert desk.calls == [("close", "R7")]
    assert "no one was asked: refund: its arguments have 2," in model.requests[1].tool_results[0]
    [line] = {record.message for record in caplog.records if "is refused" in record.message}
    assert "secret" not in line


REFUSALS = [
    (replace(POLICY.approvals, refusal="senders can be forged"), "senders can be forged"),
    (ApprovalPolicy(), 'there is no group "finance"'),
    (ApprovalPolicy(groups={"finance": (ASKER,)}), f"no one but {ASKER} may approve this"),
    (ApprovalPolicy(groups={"finance": ("fred@elsewhere.org",)}), "may approve this"),
]


@pytest.mark.parametrize(("approvals", "problem"), REFUSALS)
async def test_a_call_that_nobody_can_approve_does_not_run(approvals: ApprovalPolicy, problem: str) -> None:
    desk, model = Desk(), FakeModel([REFUND, "I cannot."])
    async with run_desk(model, desk, policy=Policy(approvals=approvals)) as t:
        assert await t.say("refund R7") == ["I cannot."]
    assert desk.calls == []
    assert problem in model.requests[1].tool_results[0]


async def test_a_session_without_approvals_runs_no_tool_that_needs_one() -> None:
    class WrappedSession:
        def __init__(self, session: Any) -> None:
            self._session = session

        def __getattr__(self, name: str) -> Any:
            if name in ("open_approvals", "run_approved"):
                raise AttributeError(name)
            return getattr(self._session, name)

    class Wrapping(Interceptor):
        async def assist(self, request: Any, session: Any, response: Any, next: Any) -> None:
            await next(request, WrappedSession(session), response)

    desk, model = Desk(), FakeModel([stream(calls=[REFUND, tool_call("look_up", order="R7")]), "I cannot."])
    options = {"tools": [desk.refund, desk.look_up], "show_tools": False}
    async with AgentTester(LLMAgent, options=options, model=model, policy=POLICY, interceptors=[Wrapping]) as t:
        assert await t.say("refund R7") == ["I cannot."]
    assert desk.calls == [("look_up", "R7")]
    assert "no one was asked: no one can be asked here" in model.requests[1].tool_results[0]


@pytest.mark.parametrize(
    ("from_risk", "of_settings", "asked"),
    [
        (None, RiskLevel.CRITICAL, ["refund"]),
        (None, RiskLevel.STANDARD, ["refund", "look_up"]),
        (None, None, []),
        ("never", RiskLevel.SAFE, []),
        ("standard", None, ["refund", "look_up"]),
        ("safe", None, ["refund", "look_up", "recall"]),
    ],
)
async def test_the_risk_decides_which_calls_need_an_approval(
    from_risk: str | None, of_settings: RiskLevel | None, asked: list[str]
) -> None:
    calls = [REFUND, tool_call("look_up", order="R7"), tool_call("recall", query="R7")]
    desk, model = Desk(), FakeModel([stream(calls=calls), "Done."])
    policy = Policy(approvals=replace(POLICY.approvals, from_risk=of_settings, approvers="finance"))
    async with run_desk(model, desk, policy=policy, approvals={"from_risk": from_risk}) as t:
        await t.say("refund R7")
        await t.settled()
        questions = t.unread(APPROVER)
        assert [next(name for name in ("refund", "look_up", "recall") if f"\n{name}\n" in text) for text in questions] == asked
        assert bool(desk.calls) == (not asked)
        for question in questions:
            await t.say(f"/approve {CODE.findall(question)[0]}", user=APPROVER)
        await t.settled()
        assert t.unread()[-1:] == (["Done."] if asked else [])
    assert sorted(desk.calls) == [("look_up", "R7"), ("refund", "R7", 30)]


async def test_the_manifest_names_tools_that_need_an_approval() -> None:
    desk, model = Desk(), FakeModel([tool_call("look_up", order="R7"), "Done."])
    async with run_desk(model, desk, definition=definition_with(human_in_the_loop=["look_up"])) as t:
        await t.say("look R7 up")
        assert desk.calls == []
        assert await approve(t) == "Done."
    assert desk.calls == [("look_up", "R7")]


async def test_a_name_in_human_in_the_loop_that_nothing_has_is_a_mistake(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r'human_in_the_loop\[1\]: there is no tool or node "pay"'):
        LLMAgent(definition_with(human_in_the_loop=["recall", "pay"]), model="script")
    caplog.set_level(logging.WARNING)
    values = definition_with(human_in_the_loop=["review"]).model_dump(mode="json", by_alias=True)
    values["config"]["nodes"] = [{"id": "review"}]
    LLMAgent(AgentDefinition.model_validate(values), model="script")
    assert "policy.human_in_the_loop[0] of the manifest has no effect: nodes are not run" in caplog.text


async def test_nobody_is_asked_about_a_call_with_wrong_arguments() -> None:
    desk, model = Desk(), FakeModel([tool_call("refund", order="R7", amount="much"), "I cannot."])
    async with run_desk(model, desk) as t:
        assert await t.say("refund R7") == ["I cannot."]
        assert t.unread(APPROVER) == []
    assert "amount: must be a whole number" in model.requests[1].tool_results[0]


def test_an_unknown_risk_is_a_mistake() -> None:
    async def call(arguments: dict[str, Any]) -> str:
        return ""

    for declare in (lambda: tool(risk="high"), lambda: Tool("pay", "", {}, call, risk="high")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="the risk of a tool is safe, standard or critical, not 'high'"):
            declare()
    assert Tool("pay", "", {}, call, risk="critical").risk is RiskLevel.CRITICAL  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"options\.approvals\.timeout_h"):
        LLMAgent(AgentDefinition.simple("desk"), model="script", approvals={"timeout_h": 200})
