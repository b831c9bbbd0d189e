"""The forms of /answer, /approve and /deny in clients' menus: a list of what is open, and the fields of an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.domain.forms.adhoc import Action, CommandCall, CommandForm, CommandStage
from spade_coreason.domain.forms.fields import Field
from spade_coreason.exceptions import ApprovalDeniedError
from spade_coreason.runtime.commands.dialogs import AdHocSessions
from spade_coreason.testing import AgentTester, Policy, QuestionState

AGENT, BOSS, TESTER = "agent@localhost", "boss@localhost", "tester@localhost"
PARCEL = {
    "type": "object",
    "properties": {
        "kilograms": {"type": "number"},
        "pieces": {"type": "integer", "title": "How many"},
        "express": {"type": "boolean"},
        "colour": {"enum": ["red", "blue"]},
        "note": {"type": "string"},
    },
    "required": ["kilograms", "pieces", "express"],
}


class Desk:
    """Ask what the request says, or pay."""

    manifest = AgentDefinition.simple("desk")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        match request.payload["query"].split():
            case ["pay", amount]:
                try:
                    await response.markdown(await session.run_approved("pay", lambda paid: f"paid {paid}", int(amount)))
                except ApprovalDeniedError as error:
                    await response.markdown(f"No: {error.reason}")
            case ["parcel"]:
                answer = await response.ask_person("What is in it?", schema=PARCEL)
                await response.markdown(str(answer.value))
            case ["drink"]:
                answer = await response.ask_person("What do you drink?", choices=["tea", "coffee"])
                await response.markdown(answer.text)
            case ["nested"]:
                await response.ask_person("Which?", schema={"type": "object", "properties": {"a": {"type": "array"}}})
            case ["sure"]:
                answer = await response.ask_person("Sure?", schema={"type": "boolean"})
                await response.markdown(str(answer.value))


class Menu:
    """A person who fills in forms."""

    def __init__(self, t: AgentTester, person: str) -> None:
        self._sessions = AdHocSessions(t.runners[AGENT].executor, t.runners[AGENT].languages)
        self._device = f"{person}/phone"

    async def open(self, node: str) -> CommandStage:
        return await self._call(CommandCall(self._device, "1", node, "", "execute"))

    async def submit(self, stage: CommandStage, action: Action = "execute", **form: str) -> CommandStage:
        return await self._call(CommandCall(self._device, "1", stage.node, stage.session, action, form))

    async def submit_fields(self, stage: CommandStage, form: Mapping[str, str]) -> CommandStage:
        return await self._call(CommandCall(self._device, "1", stage.node, stage.session, "execute", form))

    async def _call(self, call: CommandCall) -> CommandStage:
        stage = await self._sessions.answer(call)
        assert isinstance(stage, CommandStage), stage
        return stage


@asynccontextmanager
async def desk() -> AsyncIterator[tuple[AgentTester, Menu, Menu]]:
    """Yield a tester, and the menus of the requester and of the approver."""
    async with AgentTester(Desk, policy=Policy(operators=frozenset({BOSS}))) as t:
        yield t, Menu(t, TESTER), Menu(t, BOSS)


def form_of(stage: CommandStage) -> CommandForm:
    assert stage.form is not None
    return stage.form


def fields_of(stage: CommandStage) -> dict[str, Field]:
    return {field.name: field for field in form_of(stage).fields}


async def test_a_form_without_an_open_question_says_so() -> None:
    async with desk() as (_, person, _):
        for node in ("answer", "approve", "deny"):
            stage = await person.open(node)
            assert (stage.status, stage.text) == ("completed", "I wait for no answer of yours.")


async def test_the_only_question_is_shown_with_its_choices() -> None:
    async with desk() as (t, person, _):
        await t.say("drink")
        stage = await person.open("answer")
        assert form_of(stage).instructions == "What do you drink?"
        assert [choice.value for choice in fields_of(stage)["text"].choices] == ["tea", "coffee"]
        assert stage.actions == ("complete",)
        assert (await person.submit(stage, text="coffee")).text == "Done."
        await t.settled()
        assert t.unread() == ["coffee"]


async def test_one_of_several_questions_is_chosen_first() -> None:
    async with desk() as (t, person, _):
        await t.say("drink")
        await t.say("sure", thread="other")
        stage = await person.open("answer")
        assert (list(fields_of(stage)), stage.actions) == (["code"], ("next",))
        drink, sure = fields_of(stage)["code"].choices
        assert (drink.label, sure.label) == (f"{drink.value}: What do you drink?", f"{sure.value}: Sure?")
        chosen = await person.submit(stage, "next", code=sure.value)
        assert (form_of(chosen).instructions, fields_of(chosen)["text"].kind) == ("Sure?", "yes or no")
        back = await person.submit(chosen, "prev")
        chosen = await person.submit(back, "next", code=drink.value)
        await person.submit(chosen, code=drink.value, text="tea")
        stage = await person.open("answer")
        await person.submit(stage, text="1")
        await t.settled()
        assert t.unread() == ["tea", "True"]


async def test_a_flat_schema_becomes_fields_and_its_value_fits() -> None:
    async with desk() as (t, person, _):
        await t.say("parcel")
        stage = await person.open("answer")
        shown = fields_of(stage)
        assert [(name, field.kind, field.is_required) for name, field in shown.items()][1:] == [
            ("answer.kilograms", "text", True),
            ("answer.pieces", "number", True),
            ("answer.express", "yes or no", True),
            ("answer.colour", "choice", False),
            ("answer.note", "text", False),
        ]
        assert shown["answer.pieces"].label == "How many"
        filled = {"answer.kilograms": "2.5", "answer.pieces": "3", "answer.express": "0", "answer.note": "7"}
        assert (await person.submit_fields(stage, filled)).text == "Done."
        await t.settled()
        assert t.unread() == ["{'kilograms': 2.5, 'pieces': 3, 'express': False, 'note': '7'}"]


async def test_a_value_that_does_not_fit_is_explained_and_the_question_stays_open() -> None:
    async with desk() as (t, person, _):
        await t.say("parcel")
        stage = await person.open("answer")
        done = await person.submit_fields(stage, {"answer.kilograms": "many", "answer.pieces": "3", "answer.express": "0"})
        assert done.is_error
        assert "kilograms" in done.text
        assert len(await t.questions(TESTER)) == 1


async def test_a_schema_with_parts_is_answered_by_a_text() -> None:
    async with desk() as (t, person, _):
        await t.say("nested")
        assert list(fields_of(await person.open("answer"))) == ["code", "text"]


async def test_the_call_is_shown_whole_and_approved_with_a_tick_only() -> None:
    async with desk() as (t, person, boss):
        await t.say("pay 7")
        stage = await boss.open("approve")
        assert form_of(stage).instructions == f"\U0001f512 {TESTER} asks for this. It needs your approval:\npay\npaid:\n7"
        assert (await boss.submit(stage)).text == "Nothing is decided."
        assert (await person.open("approve")).text == "I wait for no answer of yours."
        stage = await boss.open("approve")
        assert (await boss.submit(stage, sure="1")).text == "Approved. It runs now."
        await t.settled()
        assert t.unread() == ["paid 7"]
        assert [each.state for each in await t.questions(state=None)] == [QuestionState.APPROVED]


async def test_a_denial_has_a_reason() -> None:
    async with desk() as (t, _, boss):
        await t.say("pay 7")
        await t.say("pay 8", thread="other")
        stage = await boss.open("deny")
        second = fields_of(stage)["code"].choices[1]
        assert "pay paid: 8" in second.label
        stage = await boss.submit(stage, "next", code=second.value)
        assert (await boss.submit(stage, reason="too much")).text == "Denied. It does not run."
        await t.settled()
        assert t.unread() == ["No: too much"]
        assert [each.text for each in await t.questions()] == ["pay\npaid:\n7"]


async def test_a_program_fills_in_the_code_at_once() -> None:
    async with desk() as (t, _, boss):
        await t.say("pay 7")
        [question] = await t.questions()
        call = CommandCall(f"{BOSS}/phone", "1", "approve", "", "execute", {"code": question.code})
        assert (await boss._call(call)).text == "Approved. It runs now."


async def test_texts_that_are_too_long_are_refused() -> None:
    async with desk() as (t, _, _):
        await t.say("pay 7")
        [question] = await t.questions()
        wrong: dict[str, Any] = {
            f"/deny {question.code} {'x' * 1001}": "reason has 1,001 characters. At most 1,000 are accepted.",
            f"/approve {'x' * 41}": "I have asked you nothing with this code. Please check it.",
        }
        for text, told in wrong.items():
            assert await t.say(text, user=BOSS) == [told]
        assert len(await t.questions()) == 1
