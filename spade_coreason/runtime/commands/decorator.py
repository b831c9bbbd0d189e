"""Commands of an agent's own: a decorator over its methods, whose parameters are the fields of a form."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ...domain.forms import CONVERSATION_FIELD, Choice, Field, FieldKind

Method = TypeVar("Method", bound=Callable[..., Awaitable[str | None]])

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_MARK = "__spade_coreason_command__"
_LEADING_PARAMETERS = ("self", "session")
_KINDS: dict[Any, FieldKind] = {str: "text", int: "number", bool: "yes or no"}


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """A command that an agent adds. `run(session, **fields)` gives what to say, or nothing."""

    name: str
    description: str
    fields: tuple[Field, ...]
    run: Callable[..., Awaitable[str | None]]


def command(name: str, description: str, /, **labels: str) -> Callable[[Method], Method]:
    """Makes a command of a coroutine method `(self, session, …)`: `@command("weather", "the weather", city="which city")`.

    People write `/weather Berlin`, or find it in the menu of their client (XEP-0050), with a form. The further parameters are
    its fields: `str`, `int`, `bool`, or a `Literal` of texts; one with a default may be left empty. `labels` say what each is.
    What the method returns is the answer. TypeError for a method that cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise TypeError(f"@command: {name!r} is no name; write small letters, digits and hyphens, such as weather")

    def make(method: Method) -> Method:
        fields = _fields(name, method, labels)
        setattr(method, _MARK, (name, description, fields))
        return method

    return make


def commands_of(agent: object) -> list[AgentCommand]:
    """The commands that the class of an agent adds, by name."""
    found = []
    for attribute in dir(type(agent)):
        marked = getattr(inspect.getattr_static(type(agent), attribute, None), _MARK, None)
        if marked is not None:
            name, what, fields = marked
            found.append(AgentCommand(name, what, fields, getattr(agent, attribute)))
    return sorted(found, key=lambda own: own.name)


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
    # Only those of the fields: that of the session may be known to a type checker alone.
    annotations = {p.name: p.annotation for p in further if p.annotation is not Parameter.empty}
    types = get_type_hints(SimpleNamespace(__annotations__=annotations), getattr(method, "__globals__", {}))
    return tuple(_field(name, parameter, types.get(parameter.name, str), labels) for parameter in further)


def _field(name: str, parameter: Parameter, annotation: Any, labels: Mapping[str, str]) -> Field:
    is_required = parameter.default is Parameter.empty
    if get_origin(annotation) in (Union, UnionType):
        one, *others = [arg for arg in get_args(annotation) if arg is not NoneType]
        annotation = Union if others else one
    choices: tuple[Choice, ...] = ()
    if get_origin(annotation) is Literal and all(isinstance(value, str) and value for value in get_args(annotation)):
        kind: FieldKind = "choice"
        choices = tuple(Choice(value, value) for value in get_args(annotation))
    elif annotation in _KINDS:
        kind = _KINDS[annotation]
    else:
        problem = f"{parameter} cannot be a field; annotate it with str, int, bool or a Literal of texts"
        raise TypeError(f'@command("{name}"): {problem}')
    label = labels.get(parameter.name, parameter.name.replace("_", " "))
    return Field(parameter.name, label, kind, is_required, None if is_required else parameter.default, choices)
