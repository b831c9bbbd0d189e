"""Views: the forms of operations in the terminal and in a chat. The rest follows from the operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from ..domain.forms.fields import Field
from ..domain.texts.translation import N_

Column: TypeAlias = str | tuple[str, str | Callable[[Any], object]]
"""A column of a list: an attribute of a row; or a title, and an attribute or a function of a row."""
Text: TypeAlias = str | Callable[[Any], str | list[str]]
"""One line, with the names of attributes in braces; or a function of what has them, which may return several lines."""
Role: TypeAlias = Literal["state", "content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slash:
    """The form of an operation in the chat of an operator: a command as a text and as a form (XEP-0050). `N_` marks texts."""

    name: str
    description: str
    done: Text
    """The reply to a result; to the first of several."""
    unchanged: str = ""
    """The reply if `is_changed` of the result is False."""
    fields: tuple[Field, ...] = ()
    """Its fields, named as the arguments. The agent and the conversation that a form lets choose are none."""
    question: str = ""
    """The question before it."""
    usage: str = ""
    """An example of the text after the name."""
    missing: str = ""
    """The reply if an argument matches nothing, with the arguments in braces. By default that is the error."""


@dataclass(frozen=True, slots=True)
class TableView:
    """The rows of a result as a table."""

    things: Text = ""
    """The noun for its rows, for an empty list."""
    _: KW_ONLY
    columns: Sequence[Column] = ()
    texts: Collection[str] = ()
    """The titles of the columns with running text."""
    rows: Callable[[Any], Any] = lambda found: found
    """Return the rows of a result."""
    cursor: str = ""
    """The attribute of the last row behind which the next page begins; "" if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The form of an operation in the terminal. Its help is the docstring of its function."""

    command: str = ""
    """The words of its command in the terminal, if they are not those of its name."""
    examples: Sequence[str] = ()
    """Lines of the terminal without the name of the program. An operation without any has no command of its own."""
    given: Sequence[str] = ()
    """The arguments that a command has by their places. The others are options."""
    table: TableView = TableView()
    dump: Callable[[Any], object] | None = None
    """The result as a value for JSON, if it is not that of the type of the result."""
    done: Text | tuple[str, str] = ""
    """The line after a change, or for a row in place of columns; one for each row of a list. Of two, the second one is for rows
    whose `is_changed` is False."""
    question: str | Callable[..., str] = ""
    """The action to confirm, such as "delete the request {id}". A function gets the arguments and the result of `asks`, and
    returns "" if there is nothing to confirm."""
    asks: Any = None
    """The operation whose result the question is about. By default that is about the arguments."""
    progress: str = ""
    """The label of a long change while it runs."""
    slash: Slash | None = None
    """Its command in a chat; None for an operation that has none, or one that does more than call it."""
    links: Sequence[str] = ()
    """The names of the operations that are offered with a row. The first one opens it."""
    beside: Sequence[str] = ()
    """The names of the operations that are offered beside a list."""
    offered: Callable[[Any], bool] = lambda row: True
    """Tell if the operation is offered with a row."""
    role: Role = "state"
    """The kind of its result: the state of things, or texts of people."""
    refresh_s: float = 5.0
    """The time after which an open page looks again; 0 for never."""


HIDDEN = View()
"""The view of an operation that only programs and other operations call."""


PERSON_FIELD = Field("person", N_("their JID"), is_required=True)
"""The field of a person whom an operator names."""


def short_id(row: Any) -> str:
    """Return the first characters of an id, which are enough to name it."""
    return str(row.id)[:8]


def moment(name: str) -> Callable[[Any], datetime | str]:
    """Return a column of a time that is a text (RFC 3339)."""
    return lambda row: read_moment(getattr(row, name))


def read_moment(text: str) -> datetime | str:
    """Return the time of a text (RFC 3339); another text as it is."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def format_time(moment: datetime) -> str:
    """Format a date and time for people, in their own time zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: "1 turn", "2,000 turns"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
