"""Ad-hoc commands (XEP-0050) as values: calls read from `<command/>`, and stanzas that answer them with forms (XEP-0004)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.etree.ElementTree import Element

from ...domain.forms.adhoc import ACTIONS, Action, CommandCall, CommandForm, CommandProblem, CommandStage
from ...domain.forms.fields import Field, FieldValue
from ...domain.messages import MAX_ID_CHARACTERS
from .language import read_language
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

_COMMAND = f"{{{COMMANDS_NAMESPACE}}}command"
_NOTE_CHARACTERS = 300
# The bytes that a line of a result takes besides its text.
_LINE_BYTES = len("<value></value>")
_TYPES = {"text": "text-single", "number": "text-single", "yes or no": "boolean", "choice": "list-single"}
_MAX_FIELDS = 100


def decode_command_call(iq: Element) -> CommandCall | CommandProblem | None:
    """Read an `<iq/>`. None if it is no call. A CommandProblem is meant for its sender."""
    command = iq.find(_COMMAND)
    sender, iq_id = iq.get("from", ""), iq.get("id", "")
    if command is None or not sender or iq.get("type") not in ("get", "set"):
        return None
    if iq.get("type") == "get":
        return CommandProblem("bad-request", "A command is an iq of type set.")
    action = command.get("action", "execute")
    if action not in ACTIONS:
        return CommandProblem("bad-request", "There is no such action.", "bad-action")
    node, session = command.get("node", ""), command.get("sessionid", "")
    if len(iq_id) > MAX_ID_CHARACTERS or len(session) > MAX_ID_CHARACTERS or len(node) > MAX_ID_CHARACTERS:
        return CommandProblem("bad-request", "An id may have 1,024 characters.", "bad-payload")
    form = command.find(DATA_FORM)
    if form is not None and form.get("type") not in ("submit", "cancel"):
        return CommandProblem("bad-request", "A form that is sent back has the type submit.", "bad-payload")
    if form is not None and form.get("type") == "cancel":
        return CommandCall(sender, iq_id, node, session, "cancel")
    values = None if form is None else _form_values(form)
    return CommandCall(sender, iq_id, node, session, action, values, read_language(iq))


def _form_values(form: Element) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, field in enumerate(form.iterfind(FORM_FIELD)):
        if number == _MAX_FIELDS:
            break
        name = field.get("var")
        if name:
            values[name] = "\n".join(value.text or "" for value in field.iterfind(FORM_VALUE))
    return values


def stage_stanza(call: CommandCall, stage: CommandStage, limit_bytes: int) -> str:
    """Encode the answer to a call.

    Choices that do not fit are left out. A text must fit already (`split_result`).
    """
    stanza = _stage_stanza(call, stage)
    while stage.form is not None and len(stanza.encode()) > limit_bytes and any(f.choices for f in stage.form.fields):
        fewer = tuple(replace(field, choices=field.choices[: len(field.choices) // 2]) for field in stage.form.fields)
        stage = stage._replace(form=stage.form._replace(fields=fewer))
        stanza = _stage_stanza(call, stage)
    return stanza


def _stage_stanza(call: CommandCall, stage: CommandStage) -> str:
    body = _encode_form(stage.form, stage.actions) if stage.form is not None else _encode_result(stage)
    command = (
        f"<command xmlns='{COMMANDS_NAMESPACE}' node='{escape_attribute(stage.node)}'"
        f" sessionid='{escape_attribute(stage.session)}' status='{stage.status}'>{body}</command>"
    )
    return f"<iq to='{escape_attribute(call.sender)}' id='{escape_attribute(call.iq_id)}' type='result'>{command}</iq>"


def problem_stanza(sender: str, iq_id: str, problem: CommandProblem) -> str:
    """Encode the error that answers a call."""
    detail = f"<{problem.detail} xmlns='{COMMANDS_NAMESPACE}'/>" if problem.detail else ""
    text = f"<text xmlns='{STANZA_ERRORS_NAMESPACE}'>{escape(problem.text)}</text>"
    return (
        f"<iq to='{escape_attribute(sender)}' id='{escape_attribute(iq_id)}' type='error'><error type='{problem.type}'>"
        f"<{problem.condition} xmlns='{STANZA_ERRORS_NAMESPACE}'/>{text}{detail}</error></iq>"
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
    text = field.format_value(value)
    inner = "<required/>" if field.is_required else ""
    inner += f"<value>{escape(text)}</value>" if text else ""
    inner += "".join(
        f"<option label='{escape_attribute(choice.label)}'><value>{escape(choice.value)}</value></option>"
        for choice in field.choices
    )
    label = field.label[:1].upper() + field.label[1:]
    head = f"var='{escape_attribute(field.name)}' type='{_TYPES[field.kind]}' label='{escape_attribute(label)}'"
    return f"<field {head}>{inner}</field>"


def _encode_result(stage: CommandStage) -> str:
    """Encode the end of a command: a note if one short line is enough, else a form of type `result`."""
    text = clean(stage.text).strip()
    if not text and stage.link is None:
        return ""
    if len(text) <= _NOTE_CHARACTERS and "\n" not in text and stage.link is None:
        return f"<note type='{'error' if stage.is_error else 'info'}'>{escape(text)}</note>"
    values = "".join(f"<value>{escape(line)}</value>" for line in text.splitlines())
    # The client Profanity shows "(null)" for a field without a label.
    fields = f"<field var='text' type='text-multi' label='Answer'>{values}</field>" if values else ""
    if stage.link is not None:
        fields += f"<field var='link' type='text-single' label='Link'><value>{escape(stage.link)}</value></field>"
    return f"<x xmlns='{FORM_NAMESPACE}' type='{RESULT_FORM}'><title>{escape(stage.title)}</title>{fields}</x>"


def split_result(text: str, limit_bytes: int) -> tuple[str, str]:
    """Split a text into the beginning that fits into a result of `limit_bytes`, and the rest."""
    used_bytes = 0
    shown: list[str] = []
    lines = clean(text).strip().splitlines()
    for number, line in enumerate(lines):
        used_bytes += wire_size(line) + _LINE_BYTES
        if used_bytes > limit_bytes:
            if not shown:  # this line alone is too long
                first, *others = split_text(line, limit_bytes - _LINE_BYTES)
                return first, "\n".join([*others, *lines[number + 1 :]])
            return "\n".join(shown), "\n".join(lines[number:])
        shown.append(line)
    return "\n".join(shown), ""
