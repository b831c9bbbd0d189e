"""The wire format of ad-hoc commands (XEP-0050)."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest

from spade_coreason.domain.forms.adhoc import CommandCall, CommandForm, CommandProblem, CommandStage
from spade_coreason.domain.forms.fields import Choice, Field
from spade_coreason.xmpp.codec.adhoc import decode_command_call, problem_stanza, split_result, stage_stanza

COMMANDS = "http://jabber.org/protocol/commands"
DATA_FORM_NS = "{jabber:x:data}"
CALL = CommandCall("alice@localhost/'x'", "i<1>", "n", "s", "execute")


def iq(inside: str, kind: str = "set", sender: str = "from='a@b/c'") -> Element:
    return fromstring(f"<iq xmlns='jabber:client' type='{kind}' id='1' {sender}>{inside}</iq>")


def command(attributes: str = "node='n'", inside: str = "") -> str:
    return f"<command xmlns='{COMMANDS}' {attributes}>{inside}</command>"


def test_a_call_is_read_with_its_form_fields() -> None:
    form = (
        "<x xmlns='jabber:x:data' type='submit'><field var='a'><value>1</value></field><field var='b'><value>x</value>"
        "<value>y</value></field><field><value>nameless</value></field><field var='c'/></x>"
    )
    call = decode_command_call(iq(command("node='n' sessionid='s' action='next'", form)))
    assert call == CommandCall("a@b/c", "1", "n", "s", "next", {"a": "1", "b": "x\ny", "c": ""})
    assert decode_command_call(iq(command())) == CommandCall("a@b/c", "1", "n", "", "execute", None)
    canceled = decode_command_call(iq(command("node='n' sessionid='s'", "<x xmlns='jabber:x:data' type='cancel'/>")))
    assert isinstance(canceled, CommandCall)
    assert canceled.action == "cancel"


@pytest.mark.parametrize(
    ("stanza", "detail"),
    [
        (iq(command(), kind="get"), ""),
        (iq(command("action='jump'")), "bad-action"),
        (iq(command("node='n'", "<x xmlns='jabber:x:data' type='result'/>")), "bad-payload"),
        (iq(command(f"sessionid='{'s' * 1025}'")), "bad-payload"),
    ],
)
def test_a_malformed_call_is_a_problem(stanza: Element, detail: str) -> None:
    problem = decode_command_call(stanza)
    assert isinstance(problem, CommandProblem)
    assert (problem.condition, problem.type, problem.detail) == ("bad-request", "modify", detail)


@pytest.mark.parametrize(
    "stanza", [iq(""), iq(command(), kind="result"), iq(command(), kind="error"), iq(command(), sender="")]
)
def test_stanzas_that_are_no_calls_are_ignored(stanza: Element) -> None:
    assert decode_command_call(stanza) is None


def test_a_form_shows_every_kind_of_field() -> None:
    fields = (
        Field("t", "a <text>", default="d"),
        Field("n", "a number", "number", is_required=True),
        Field("b", "a switch", "yes or no", default=True),
        Field("c", "a choice", "choice", choices=(Choice("1", "one & only"), Choice("2", "two"))),
    )
    form = CommandForm("Title", "Do it", fields, {"c": "2"})
    stanza = fromstring(stage_stanza(CALL, CommandStage("n", "s", "executing", form, ("next", "prev")), 65536))
    assert (stanza.get("to"), stanza.get("id"), stanza.get("type")) == ("alice@localhost/'x'", "i<1>", "result")
    actions = stanza.find(f"{{{COMMANDS}}}command/{{{COMMANDS}}}actions")
    assert actions is not None
    assert (actions.get("execute"), [child.tag.rpartition("}")[2] for child in actions]) == ("next", ["next", "prev"])
    shown: list[tuple[Any, ...]] = [
        (
            field.get("var"),
            field.get("type"),
            field.get("label"),
            field.findtext(f"{DATA_FORM_NS}value"),
            field.find(f"{DATA_FORM_NS}required") is not None,
        )
        for field in stanza.iter(f"{DATA_FORM_NS}field")
    ]
    assert shown == [
        ("t", "text-single", "A <text>", "d", False),
        ("n", "text-single", "A number", None, True),
        ("b", "boolean", "A switch", "1", False),
        ("c", "list-single", "A choice", "2", False),
    ]
    assert [
        (option.get("label"), option.findtext(f"{DATA_FORM_NS}value")) for option in stanza.iter(f"{DATA_FORM_NS}option")
    ] == [("one & only", "1"), ("two", "2")]


def test_a_result_of_one_line_is_a_note_and_a_longer_one_is_a_form() -> None:
    short = fromstring(stage_stanza(CALL, CommandStage("n", "s", "completed", text="Gone\x00 wrong", is_error=True), 65536))
    [note] = list(short.iter(f"{{{COMMANDS}}}note"))
    assert (note.get("type"), note.text) == ("error", "Gone wrong")
    stage = CommandStage("n", "s", "completed", title="T", text="a\n\nb", link="https://x/?a&b")
    long = fromstring(stage_stanza(CALL, stage, 65536))
    assert [value.text for value in long.iter(f"{DATA_FORM_NS}value")] == ["a", None, "b", "https://x/?a&b"]
    assert not list(long.iter(f"{{{COMMANDS}}}note"))


def test_no_stanza_is_longer_than_it_may_be() -> None:
    choices = tuple(Choice(f"{number}-{'&' * 900}", "'" * 300) for number in range(50))
    form = CommandForm("T", "I", (Field("c", "which", "choice", choices=choices),), {})
    stanza = stage_stanza(CALL, CommandStage("n", "s", "executing", form, ("complete",)), 20_000)
    assert len(stanza.encode()) <= 20_000
    assert 0 < sum(1 for _ in fromstring(stanza).iter(f"{DATA_FORM_NS}option")) < 50


@pytest.mark.parametrize("text", ["one line " * 5000, "x\n" * 5000, "<&>é\n\n" * 3000, "short", "", "a\n" + "b" * 9000])
def test_a_text_is_cut_where_it_no_longer_fits_and_nothing_is_lost(text: str) -> None:
    shown, rest = split_result(text, 4000)
    stage = CommandStage("n", "s", "completed", title="T", text=f"{shown}\n…")
    assert len(stage_stanza(CALL, stage, 65536).encode()) < 4000 + 600
    assert f"{shown}\n{rest}".split() == text.split()


def test_an_error_has_its_condition_its_own_detail_and_a_text() -> None:
    problem = CommandProblem("bad-request", "No <such> thing", "bad-sessionid")
    stanza = fromstring(problem_stanza("a@b/c", "1", problem))
    [error] = stanza
    assert (stanza.get("type"), error.get("type")) == ("error", "modify")
    assert [(child.tag, child.text) for child in error] == [
        ("{urn:ietf:params:xml:ns:xmpp-stanzas}bad-request", None),
        ("{urn:ietf:params:xml:ns:xmpp-stanzas}text", "No <such> thing"),
        (f"{{{COMMANDS}}}bad-sessionid", None),
    ]
