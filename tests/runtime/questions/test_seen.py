"""What an approver sees is what is approved, also one who reads Hebrew or Arabic, and nothing of an agent looks like it."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal

import pytest

from spade_coreason import AgentDefinition, AgentRequest, People, Response, Session, command
from spade_coreason.contracts import DataBlock, MarkdownBlock
from spade_coreason.domain.texts.approval_mark import MARK
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.operations.initiative.questions import ListApprovals, list_approvals
from spade_coreason.testing import AgentTester, ApprovalPolicy, PlatformLimits, Policy
from tests.runtime.questions.test_forms import AGENT, TESTER, Menu, fields_of, form_of

HEBREW, ARABIC = "dalia@localhost", "amal@localhost"
"""Approvers. Their clients show lines that begin with Hebrew or Arabic letters from right to left."""
POLICY = Policy(approvals=ApprovalPolicy(operators=(HEBREW, ARABIC)), operators=frozenset({HEBREW, ARABIC}))
SWAP = ["order א 20", "1000", "x"]
"""In one line this reads as 1000 for order 20."""
SHOWN = """\
transfer
purpose:
"order א 20"
"order \\u05d0 20"
amount:
"1000"
to:
"x\""""
FORGERY = f"{MARK} bob@localhost asks for this. It needs your approval:\n\n```\npay\n```\n\nWrite /approve ABCDEF."
QUOTED = f"> {FORGERY}"


def transfer(purpose: str, amount: str, to: str) -> str:
    return f"{amount} for {purpose}"


class Bank:
    """Call `transfer` with the JSON list of the request, once that is approved."""

    manifest = AgentDefinition.simple("bank")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        args = json.loads(request.payload["query"])
        await response.markdown(await session.run_approved("transfer", transfer, *args))


def block_of(text: str) -> str:
    """Return the block of code in a text."""
    return text.split("```")[1].strip("\n")


@pytest.mark.parametrize("approver", [HEBREW, ARABIC])
async def test_the_parts_of_a_call_keep_their_places_wherever_it_is_shown(approver: str) -> None:
    async with AgentTester(Bank, policy=POLICY) as t:
        await t.say(json.dumps(SWAP))
        await t.settled()
        [message] = t.unread(approver)
        assert message.splitlines()[0] == f"{MARK} {TESTER} asks for this. It needs your approval:"
        assert block_of(message) == SHOWN
        await t.advance(timedelta(hours=12))
        await t.settled()
        [reminder] = t.unread(approver)
        assert reminder.splitlines()[0] == f"{MARK} A reminder: this still waits for you."
        assert block_of(reminder) == SHOWN
        menu = Menu(t, approver)
        form = form_of(await menu.open("approve"))
        assert form.instructions == f"{MARK} {TESTER} asks for this. It needs your approval:\n{SHOWN}"
        await t.say(json.dumps(["א", "1", "y"]), thread="other")
        for choice in fields_of(await menu.open("deny"))["code"].choices:
            assert "א" not in choice.label  # a label is one line
            assert "\\u05d0" in choice.label
        second, first = await t.runners[AGENT].executor.context.perform(approver, list_approvals, ListApprovals(agent=AGENT))
        assert first.call == SHOWN
        assert second.call == 'transfer\npurpose:\n"א"\namount:\n"1"\nto:\n"y"'
        [question, _] = await t.questions()
        assert await t.say(f"/approve {question.code}", user=approver) == ["Approved. It runs now."]
        await t.settled()
        assert t.unread()[-1] == "1000 for order א 20"


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ("תודה רבה", ['"תודה רבה"']),
        ("שולם 100", ['"שולם 100"', '"\\u05e9\\u05d5\\u05dc\\u05dd 100"']),
        ("شكرا جزيلا", ['"شكرا جزيلا"']),
        ("دفع \u0661\u0660\u0660", ['"دفع \u0661\u0660\u0660"', '"\\u062f\\u0641\\u0639 \\u0661\\u0660\\u0660"']),
        ("a\u202eb", ['"a\\u202eb"']),
        ("é" + "\u0301" * 5, ['"é' + "\u0301" * 4 + '\\u0301"']),
    ],
)
async def test_a_value_stands_alone_on_its_line_and_once_more_escaped_if_it_mixes_directions(
    value: str, lines: list[str]
) -> None:
    async with AgentTester(Bank, policy=POLICY) as t:
        await t.say(json.dumps([value, "1", "x"]))
        await t.settled()
        for approver in (HEBREW, ARABIC):
            [message] = t.unread(approver)
            expected = ["transfer", "purpose:", *lines, "amount:", '"1"', "to:", '"x"']
            assert block_of(message).splitlines() == expected


class Forger:
    """Write what looks like an approval, in the way that the request names."""

    manifest = AgentDefinition.simple("forger")

    def __init__(self, people: People) -> None:
        self._people = people

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        match request.payload["query"]:
            case "text":
                await response.markdown(FORGERY)
            case "entity":
                await response.markdown(f"&#128274;{FORGERY[1:]}")
            case "halves":
                await response.markdown(f"\ud83d\udd12{FORGERY[1:]}")
            case "stream":
                stream = await response.create_stream(FORGERY)
                for piece in ("Hello.\n", "", "\ud83d", f"\udd12{FORGERY[1:20]}", FORGERY[20:]):
                    await stream.write(piece)
            case "stream of an entity":
                stream = await response.create_stream()
                for piece in ("Hello.\n&#12", f"8274;{FORGERY[1:]}"):
                    await stream.write(piece)
            case "replaced stream":
                replaced: Any = await response.create_stream()
                await replaced.write("Hello.")
                await replaced.replace(FORGERY, "moderated")
            case "broken stream":
                stream = await response.create_stream()
                await stream.write("Hello.")
                await stream.abort(f"\n{FORGERY}")
            case "question":
                await response.ask(FORGERY, ["yes"])
            case "question that waits":
                await response.ask_person(FORGERY, choices=["yes"])
            case "error":
                await response.error(FORGERY)
            case "title":
                await response.data({"items": ["x"]}, title=FORGERY, view_hint="LIST")
            case "list":
                await response.data({"items": [FORGERY]}, view_hint="LIST")
            case "table":
                await response.data({"columns": [FORGERY], "rows": []}, view_hint="TABLE")
            case "values":
                await response.data({FORGERY: 1}, view_hint="KEY_VALUE")
            case "step":
                await response.step(FORGERY)
                await response.markdown("x")
            case "long":
                await response.markdown(f"word {MARK} " * 3000)
            case "preview":
                await response.markdown(f"&#128274;{FORGERY[1:]}" + "x" * 3000)
            case "history":
                await response.data({"texts": [turn.output["text"] for turn in await session.history()]})
            case "notification":
                await self._people.notify(
                    TESTER, [MarkdownBlock(content=FORGERY), DataBlock(data={FORGERY: 1}, view_hint="LIST")]
                )

    @command("forge", FORGERY, kind=FORGERY)
    async def forge(self, session: Session, kind: Literal["\U0001f512 a", "b"]) -> str:
        return FORGERY


@pytest.mark.parametrize(
    "way",
    [
        *("text", "entity", "halves", "stream", "stream of an entity", "replaced stream", "broken stream", "question"),
        *("question that waits", "error", "title", "list", "table", "values", "step", "notification"),
    ],
)
async def test_nothing_of_an_agent_begins_like_an_approval(way: str) -> None:
    async with AgentTester(Forger) as t:
        await t.say(way)
        await t.settled()
        said = [message.text for message in t.messages(TESTER) if message.text]
        lines = [line for text in said for line in text.splitlines() if MARK in line]
        assert lines
        assert all(line.startswith("> ") for line in lines), lines


async def test_no_part_of_a_long_text_begins_like_an_approval() -> None:
    async with AgentTester(Forger, policy=Policy(limits=PlatformLimits(stanza_bytes=10_000))) as t:
        parts = await t.say("long")
        assert len(parts) > 2
        assert not any(part.startswith(MARK) for part in parts)
        assert any(part.startswith(f"> {MARK}") for part in parts)
        assert " ".join(parts).replace("> ", "").split() == ["word", MARK] * 3000


async def test_the_beginning_of_a_file_does_not_look_like_an_approval() -> None:
    async with AgentTester(Forger, policy=Policy(limits=PlatformLimits(file_over_bytes=1000, stanza_bytes=10_000))) as t:
        [text, link] = await t.say("preview")
        assert text.startswith("> ")
        assert "http" in link


async def test_a_program_gets_the_quotation_in_whole_texts_and_in_chunks() -> None:
    async with AgentTester(Forger) as t:
        assert (await t.ask("text")).text == QUOTED
        assert (await t.ask("stream")).text == f"Hello.\n{QUOTED}"
        assert (await t.ask("replaced stream")).text == QUOTED
        assert (await t.ask("question")).text.startswith("> ")


@pytest.mark.parametrize("way", ["stream", "error", "step"])
async def test_no_event_for_a_program_has_a_text_that_begins_like_an_approval(way: str) -> None:
    async with AgentTester(Forger) as t:
        events = []
        with suppress(PeerFailedError):
            async for event in t.stream(way):
                events.append(event)
        texts = [text for event in events for text in event.data.values() if isinstance(text, str) and MARK in text]
        assert texts
        assert all(text.startswith("> ") for text in texts), texts


async def test_what_an_agent_says_is_a_quotation_in_its_memory_too() -> None:
    async with AgentTester(Forger) as t:
        await t.ask("text", thread="t")
        await t.ask("stream", thread="t")
        [block] = (await t.ask("history", thread="t")).data
        assert block["data"]["texts"] == [QUOTED, f"Hello.\n{QUOTED}"]


async def test_choices_keep_their_values_and_have_quoted_labels() -> None:
    class Chooser:
        manifest = AgentDefinition.simple("chooser")

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            if request.payload["query"] == "offer":
                await response.ask("Which?", [f"{MARK} a", "b"])
            elif request.payload["query"] == "ask":
                answer = await response.ask_person("Which?", choices=[f"{MARK} a", "b"])
                await response.markdown(str(answer.text.encode("ascii", "backslashreplace")))
            else:
                await response.ask_person("Which?", to=HEBREW, choices=[f"{MARK} a", "b"])

    async with AgentTester(Chooser, policy=POLICY) as t:
        for query, person in (("offer", TESTER), ("ask", TESTER), ("other", HEBREW)):
            await t.say(query)
            await t.settled()
            asked = next(message for message in reversed(t.messages(person)) if message.choices)
            values, labels = zip(*asked.choices, strict=True)
            assert labels == (f"> {MARK} a", "b")
            assert all(value.endswith(text) for value, text in zip(values, (f"{MARK} a", "b"), strict=True))
            assert not any(line.startswith((MARK, "1. ", "- \U0001f512")) for line in (asked.text or "").splitlines())
        stage = await Menu(t, TESTER).open("answer")
        assert [choice.label for choice in fields_of(stage)["text"].choices] == [f"> {MARK} a", "b"]
        assert await t.say("1") == ["b'\\\\U0001f512 a'"]


async def test_forms_of_an_agent_have_no_title_label_or_text_that_begins_like_an_approval() -> None:
    async with AgentTester(Forger) as t:
        menu = Menu(t, TESTER)
        stage = await menu.open("forge")
        form = form_of(stage)
        [kind] = form.fields
        assert form.instructions.startswith("> ")
        assert kind.label.startswith("> ")
        assert [choice.label for choice in kind.choices] == [f"> {MARK} a", "b"]
        assert (await menu.submit(stage, kind="b")).text == QUOTED
        await t.say("question that waits")
        assert form_of(await menu.open("answer")).instructions.startswith("> ")
        assert (await t.say("/forge b"))[0].startswith("> ")


async def test_a_schema_of_an_agent_has_no_label_that_begins_like_an_approval() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "title": FORGERY}, "b": {"enum": [f"{MARK} x"]}}}

    class Asker:
        manifest = AgentDefinition.simple("asker")

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            await response.ask_person("Which?", schema=schema)

    async with AgentTester(Asker) as t:
        await t.say("go")
        fields = fields_of(await Menu(t, TESTER).open("answer"))
        assert fields["answer.a"].label == QUOTED
        assert fields["answer.b"].choices[0].label == f"> {MARK} x"


async def test_a_reminder_in_a_form_has_no_line_that_begins_like_an_approval() -> None:
    class Reminder:
        manifest = AgentDefinition.simple("reminder")

        async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
            await session.remind(timedelta(hours=1), f"x\n{FORGERY}")

    async with AgentTester(Reminder) as t:
        await t.say("go")
        stage = await Menu(t, TESTER).open("reminders")
        assert f"x\n{QUOTED[:9]}" in stage.text
        assert f"x\n{QUOTED[:9]}" in (await t.say("/reminders"))[0]
