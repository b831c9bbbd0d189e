"""Commands that an agent adds: a decorator for its methods, whose parameters are the fields of a form."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ...domain.forms.commands import Audience
from ...domain.forms.fields import CONVERSATION_FIELD, Choice, Field, FieldKind
from ...domain.texts.approval_mark import quote_forgeries
from ..marks import find_marked

Method = TypeVar("Method", bound=Callable[..., Awaitable[str | None]])

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_MARK = "__spade_coreason_command__"
_LEADING_PARAMETERS = ("self", "session")
_KINDS: dict[Any, FieldKind] = {str: "text", int: "number", bool: "yes or no"}


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """A command that an agent adds. `run(session, **fields)` returns the text of the reply, or None."""

    name: str
    description: str
    fields: tuple[Field, ...]
    run: Callable[..., Awaitable[str | None]]
    audience: Audience = "everybody"


def command(name: str, description: str, audience: Audience = "everybody", /, **labels: str) -> Callable[[Method], Method]:
    """Make a command of a coroutine method `(self, session, …)`: `@command("weather", "the weather", city="which city")`.

    People write `/weather Berlin`, or choose the command in the menu of their client and fill in a form (XEP-0050).

    `name` consists of lowercase letters, digits and hyphens. `description` is shown in `/help` and in the menu. The further
    parameters of the method are the fields: `str`, `int`, `bool`, or a `Literal` of texts. A field with a default may be
    left empty. `labels` name the fields for people; by default a field is called like its parameter. A command for `audience`
    "operators" is shown to operators only, and they alone may run it.

    The reply is the text that the method returns, or "Done." for None. TypeError if the name or the method is unsuitable.
    """
    if not _NAME.fullmatch(name):
        raise TypeError(f"@command: {name!r} is no name; write small letters, digits and hyphens, such as weather")

    def decorate(method: Method) -> Method:
        setattr(method, _MARK, (name, quote_forgeries(description), _fields(name, method, labels), audience))
        return method

    return decorate


def commands_of(agent: object) -> list[AgentCommand]:
    """Return the commands that the class of an agent adds, sorted by name."""
    found = [
        AgentCommand(name, description, fields, run, audience)
        for _, (name, description, fields, audience), run in find_marked(agent, _MARK)
    ]
    return sorted(found, key=lambda agent_command: agent_command.name)


def _fields(name: str, method: Any, labels: Mapping[str, str]) -> tuple[Field, ...]:
    if not inspect.iscoroutinefunction(method):
        raise TypeError(f'@command("{name}"): write the method with `async def`')
    parameters = list(inspect.signature(method).parameters.values())
    if [parameter.name for parameter in parameters[: len(_LEADING_PARAMETERS)]] != list(_LEADING_PARAMETERS):
        raise TypeError(f'@command("{name}"): the method takes (self, session, …)')
    further = parameters[len(_LEADING_PARAMETERS) :]
    for parameter in further:
        if parameter.name == CONVERSATION_FIELD:
            raise TypeError(f'@command("{name}"): a form asks itself which conversation is meant; rename the parameter')
        if parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            raise TypeError(f'@command("{name}"): {parameter} is no field; name every parameter')
    if unknown := sorted(labels.keys() - {parameter.name for parameter in further}):
        raise TypeError(f'@command("{name}"): the method has no parameter {unknown[0]}')
    # Only the annotations of fields: that of `session` may exist for type checkers only.
    annotations = {p.name: p.annotation for p in further if p.annotation is not Parameter.empty}
    types = get_type_hints(SimpleNamespace(__annotations__=annotations), getattr(method, "__globals__", {}))
    return tuple(_field(name, parameter, types.get(parameter.name, str), labels) for parameter in further)


def _field(name: str, parameter: Parameter, annotation: Any, labels: Mapping[str, str]) -> Field:
    is_required = parameter.default is Parameter.empty
    if get_origin(annotation) in (Union, UnionType):
        first, *others = [arg for arg in get_args(annotation) if arg is not NoneType]
        annotation = Union if others else first
    choices: tuple[Choice, ...] = ()
    if get_origin(annotation) is Literal and all(isinstance(value, str) and value for value in get_args(annotation)):
        kind: FieldKind = "choice"
        choices = tuple(Choice(value, quote_forgeries(value)) for value in get_args(annotation))
    elif annotation in _KINDS:
        kind = _KINDS[annotation]
    else:
        problem = f"{parameter} cannot be a field; annotate it with str, int, bool or a Literal of texts"
        raise TypeError(f'@command("{name}"): {problem}')
    label = quote_forgeries(labels.get(parameter.name, parameter.name.replace("_", " ")))
    return Field(parameter.name, label, kind, is_required, None if is_required else parameter.default, choices)
