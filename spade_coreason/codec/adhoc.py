"""Ad-hoc commands (XEP-0050) as values: what a client's `<command/>` asks, and the stanzas that answer it with forms (0004)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias
from xml.etree.ElementTree import Element

from ..domain.forms import Field, FieldValue
from ..domain.messages import MAX_ID_CHARACTERS
from .namespaces import (
    COMMANDS_NAMESPACE,
    DATA_FORM,
    FORM_FIELD,
    FORM_NAMESPACE,
    FORM_VALUE,
    RESULT_FORM,
    STANZA_ERRORS_NAMESPACE,
)
from .xml import clean, escape, escape_attribute, split_text, wire_size

Action: TypeAlias = Literal["execute", "next", "prev", "complete", "cancel"]
Status: TypeAlias = Literal["executing", "completed", "canceled"]
ACTIONS: tuple[Action, ...] = ("execute", "next", "prev", "complete", "cancel")

_COMMAND = f"{{{COMMANDS_NAMESPACE}}}command"
_NOTE_CHARACTERS = 300
# What a line of a result takes besides its text.
_LINE_BYTES = len("<value></value>")
_TYPES = {"text": "text-single", "number": "text-single", "yes or no": "boolean", "choice": "list-single"}
_MAX_FIELDS = 100


class CommandCall(NamedTuple):
    """What a client asks of a command. `form` is what it filled in, by field; None where it sent no form."""

    sender: str
    iq_id: str
    node: str
    session: str
    action: Action
    form: Mapping[str, str] | None = None


class CommandProblem(NamedTuple):
    """Why a command is not obeyed: a stanza error (RFC 6120, 8.3), one of XEP-0050's own where there is one, and a sentence."""

    condition: str
    text: str
    detail: str = ""

    @property
    def type(self) -> str:
        """What the asker may do about it."""
        return _ERROR_TYPES.get(self.condition, "cancel")


class CommandForm(NamedTuple):
    """A form to fill in, and what stands in its fields already."""

    title: str
    instructions: str
    fields: tuple[Field, ...]
    values: Mapping[str, FieldValue]


class CommandStage(NamedTuple):
    """Where a command is: a form with what may follow, or its end with what there is to say."""

    node: str
    session: str
    status: Status
    form: CommandForm | None = None
    actions: tuple[Action, ...] = ()
    title: str = ""
    text: str = ""
    link: str | None = None
    is_error: bool = False


_ERROR_TYPES = {"bad-request": "modify", "forbidden": "auth", "resource-constraint": "wait", "internal-server-error": "wait"}


def read_call(iq: Element) -> CommandCall | CommandProblem | None:
    """Reads an `<iq/>`; None where it asks nothing. A problem is for whoever sent it."""
    command = iq.find(_COMMAND)
    sender, ident = iq.get("from", ""), iq.get("id", "")
    if command is None or not sender or iq.get("type") not in ("get", "set"):
        return None
    if iq.get("type") == "get":
        return CommandProblem("bad-request", "A command is an iq of type set.")
    action = command.get("action", "execute")
    if action not in ACTIONS:
        return CommandProblem("bad-request", "There is no such action.", "bad-action")
    node, session = command.get("node", ""), command.get("sessionid", "")
    if len(ident) > MAX_ID_CHARACTERS or len(session) > MAX_ID_CHARACTERS or len(node) > MAX_ID_CHARACTERS:
        return CommandProblem("bad-request", "An id may have 1,024 characters.", "bad-payload")
    form = command.find(DATA_FORM)
    if form is not None and form.get("type") not in ("submit", "cancel"):
        return CommandProblem("bad-request", "A form that is sent back has the type submit.", "bad-payload")
    if form is not None and form.get("type") == "cancel":
        return CommandCall(sender, ident, node, session, "cancel")
    return CommandCall(sender, ident, node, session, action, None if form is None else _form_values(form))


def _form_values(form: Element) -> dict[str, str]:
    filled: dict[str, str] = {}
    for number, field in enumerate(form.iterfind(FORM_FIELD)):
        if number == _MAX_FIELDS:
            break
        name = field.get("var")
        if name:
            filled[name] = "\n".join(value.text or "" for value in field.iterfind(FORM_VALUE))
    return filled


def stage_stanza(call: CommandCall, stage: CommandStage, limit_bytes: int) -> str:
    """The answer to a call. Of choices as many are offered as fit; a text has been made to fit before (`split_to_fit`)."""
    stanza = _stage_stanza(call, stage)
    while stage.form is not None and len(stanza.encode()) > limit_bytes and any(f.choices for f in stage.form.fields):
        fewer = tuple(replace(field, choices=field.choices[: len(field.choices) // 2]) for field in stage.form.fields)
        stage = stage._replace(form=stage.form._replace(fields=fewer))
        stanza = _stage_stanza(call, stage)
    return stanza


def _stage_stanza(call: CommandCall, stage: CommandStage) -> str:
    body = _encode_form(stage.form, stage.actions) if stage.form is not None else _encode_result(stage)
    command = (
        f"<command xmlns='{COMMANDS_NAMESPACE}' node='{escape_attribute(stage.node)}' sessionid='{escape_attribute(stage.session)}'"
        f" status='{stage.status}'>{body}</command>"
    )
    return f"<iq to='{escape_attribute(call.sender)}' id='{escape_attribute(call.iq_id)}' type='result'>{command}</iq>"


def problem_stanza(sender: str, iq_id: str, problem: CommandProblem) -> str:
    """The error that answers a call."""
    detail = f"<{problem.detail} xmlns='{COMMANDS_NAMESPACE}'/>" if problem.detail else ""
    return (
        f"<iq to='{escape_attribute(sender)}' id='{escape_attribute(iq_id)}' type='error'><error type='{problem.type}'>"
        f"<{problem.condition} xmlns='{STANZA_ERRORS_NAMESPACE}'/><text xmlns='{STANZA_ERRORS_NAMESPACE}'>{escape(problem.text)}</text>"
        f"{detail}</error></iq>"
    )


def _encode_form(form: CommandForm, actions: Sequence[Action]) -> str:
    first = actions[0]
    allowed = "".join(f"<{action}/>" for action in actions)
    fields = "".join(_field(field, form.values.get(field.name, field.default)) for field in form.fields)
    return (
        f"<actions execute='{first}'>{allowed}</actions><x xmlns='{FORM_NAMESPACE}' type='form'>"
        f"<title>{escape(form.title)}</title><instructions>{escape(form.instructions)}</instructions>{fields}</x>"
    )


def _field(field: Field, value: FieldValue) -> str:
    written = field.format_value(value)
    inner = "<required/>" if field.is_required else ""
    inner += f"<value>{escape(written)}</value>" if written else ""
    inner += "".join(
        f"<option label='{escape_attribute(choice.label)}'><value>{escape(choice.value)}</value></option>"
        for choice in field.choices
    )
    label = field.label[:1].upper() + field.label[1:]
    head = f"var='{escape_attribute(field.name)}' type='{_TYPES[field.kind]}' label='{escape_attribute(label)}'"
    return f"<field {head}>{inner}</field>"


def _encode_result(stage: CommandStage) -> str:
    """The end: a note where a line says it all, else a form of type result."""
    text = clean(stage.text).strip()
    if not text and stage.link is None:
        return ""
    if len(text) <= _NOTE_CHARACTERS and "\n" not in text and stage.link is None:
        return f"<note type='{'error' if stage.is_error else 'info'}'>{escape(text)}</note>"
    values = "".join(f"<value>{escape(line)}</value>" for line in text.splitlines())
    # Without a label profanity shows "(null)".
    fields = f"<field var='text' type='text-multi' label='Answer'>{values}</field>" if values else ""
    if stage.link is not None:
        fields += f"<field var='link' type='text-single' label='Link'><value>{escape(stage.link)}</value></field>"
    return f"<x xmlns='{FORM_NAMESPACE}' type='{RESULT_FORM}'><title>{escape(stage.title)}</title>{fields}</x>"


def split_to_fit(text: str, limit_bytes: int) -> tuple[str, str]:
    """A text as the beginning that a result has room for in `limit_bytes`, and the rest."""
    taken = 0
    shown: list[str] = []
    lines = clean(text).strip().splitlines()
    for number, line in enumerate(lines):
        taken += wire_size(line) + _LINE_BYTES
        if taken > limit_bytes:
            if not shown:  # one line that is longer than all of it
                first, *others = split_text(line, limit_bytes - _LINE_BYTES)
                return first, "\n".join([*others, *lines[number + 1 :]])
            return "\n".join(shown), "\n".join(lines[number:])
        shown.append(line)
    return "\n".join(shown), ""
