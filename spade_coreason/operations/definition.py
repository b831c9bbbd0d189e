"""An operation: what a person or a program does to a platform.

An operation is a function of a `Call` and of its arguments. It is written once, for a platform that runs and for its stored
data alone, and says who may call it. The command line, the commands of people and operators in a chat and in a menu, and other
programs of the machine call the same ones. `table.py` lists them all.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from .. import contracts
from ..domain.identifiers import candidate_conversation_ids, recover_thread
from ..exceptions import ConfigError, ForbiddenError, StoreError
from .view import HIDDEN, View

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from .host import OperationHost
    from .rpc.form import AnswerForm

PLATFORM_TRAIL = "platform"
"""The audit trail of what concerns no agent. It is no JID, so no agent has it."""
_MAX_REQUEST_BYTES = 65_536


class CallerKind(enum.Enum):
    """The kinds of callers."""

    MACHINE_USER = "user"
    """The user of the machine who owns the platform's data, or root."""
    OPERATOR = "operator"
    """An operator of the agent that the operation concerns."""
    PERSON = "person"
    """Anyone who writes to the agent, for their own data."""


EVERYBODY = frozenset(CallerKind)
OPERATORS = frozenset({CallerKind.MACHINE_USER, CallerKind.OPERATOR})
MACHINE_USER = frozenset({CallerKind.MACHINE_USER})
PERSON = frozenset({CallerKind.MACHINE_USER, CallerKind.PERSON})


@dataclass(frozen=True, slots=True)
class Actor:
    """The caller of an operation, as the audit trail names it."""

    kind: CallerKind
    name: str
    """The bare JID of a person or an operator; `user NAME` for a user of the machine."""
    agent: str = ""
    """The bare JID of the agent to which a person or an operator writes. Their calls concern this agent only."""


class About(NamedTuple):
    """The description of an argument, in its annotation."""

    help: str
    metavar: str = ""
    """The word for its value, if that is not its name: "JID" is that of a person, without a resource."""
    option: str = ""
    """The option of the terminal, if it is not named as the argument."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Arguments:
    """The arguments of an operation, as a dataclass. What a JSON object has beyond them is an error.

    They are no models of pydantic, so that a command of the terminal shows its help without that.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Argument(NamedTuple):
    """One argument: its name and its type without None, its default, and what its annotation says."""

    name: str
    type: Any
    is_required: bool
    may_be_none: bool
    default: Any
    about: About
    limits: tuple[Any, ...]
    """The bounds of `annotated_types`."""


class NoArguments(Arguments):
    """Nothing."""


class OfAgents(Arguments):
    """The agents; all without a name, or the only one for an operation on one agent."""

    agent: str | None = None


@dataclass(slots=True)
class Call:
    """One call of an operation: where, by whom, and how far it is."""

    host: OperationHost
    actor: Actor
    on_progress: Callable[[int, int], object] = lambda done, total: None
    """Called with the number of finished and of all parts of a long operation."""
    is_stopped: bool = field(default=False, init=False)
    """True once the caller has asked for an early end. The operation ends after its current part, and counts what it did."""

    on_stop: Callable[[], object] = field(default=lambda: None, init=False)
    """Called when the caller asks for an early end, for an operation that waits."""

    def stop(self) -> None:
        """Ask for an early end."""
        self.is_stopped = True
        self.on_stop()

    async def record(self, agent: str, action: str, resource: str, *, person: str = "", actor: str = "") -> None:
        """Append an entry to the audit trail of an agent, or to `PLATFORM_TRAIL`, before the action begins.

        `person` is the bare JID of the person whose data it concerns: the entry is erased with the data. `actor` replaces the
        name of the caller. Raise StoreError if the entry cannot be stored.
        """
        entry = contracts.AuditEntry(actor=actor or self.actor.name, action=action, resource=resource, outcome="success")
        await self.host.repository(agent).audit_trail.append(entry, person)


A = TypeVar("A", bound=Arguments)
R = TypeVar("R")


@dataclass(eq=False)
class Operation(Generic[A, R]):
    """An operation. `operation` makes one of a function."""

    name: str
    """The name, `subject.verb`, under which the trail and other programs know it."""
    function: Callable[[Call, A], Awaitable[R]] = field(repr=False)
    callers: frozenset[CallerKind]
    is_change: bool
    """True if it changes stored data. It is in the audit trail then, and only one process may do it."""
    needs_platform: bool
    """True if it is about what runs, so that it needs a running platform."""
    prefers_running: bool
    """True if a running platform knows more than the stored data, although nothing is changed."""
    creates_directory: bool
    """True if the data directory is created where there is none: it may be the first that is stored."""
    max_request_bytes: int
    timeout_s: float | None
    """The time that a caller of the running platform waits; None for work without a limit."""
    view: View = field(repr=False)

    @property
    def help(self) -> str:
        """The docstring of its function."""
        return inspect.getdoc(self.function) or ""

    @property
    def description(self) -> str:
        """The first line of its help."""
        return self.help.partition("\n")[0]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.function)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Its arguments."""
        kind = self._hints["arguments"]
        hints = get_type_hints(kind, include_extras=True)
        return tuple(_read_argument(one, hints[one.name]) for one in dataclasses.fields(kind))

    @cached_property
    def _reader(self) -> TypeAdapter[A]:
        from pydantic import TypeAdapter

        return TypeAdapter(self._hints["arguments"])

    @cached_property
    def answer(self) -> AnswerForm:
        """The form of its answer to another process."""
        from .rpc.form import AnswerForm

        return AnswerForm(self._hints["return"])

    @cached_property
    def result(self) -> TypeAdapter[R]:
        """The type of its result, to write it as JSON."""
        from pydantic import TypeAdapter

        return TypeAdapter(self._hints["return"])

    def read_arguments(self, values: Any) -> A:
        """Return arguments from the value of a JSON text. Raise ConfigError at the first that is wrong."""
        from pydantic import ValidationError

        from ..config import describe_mistakes, format_key
        from ..domain.texts.text import replace_lone_surrogates

        try:
            return self._reader.validate_python(replace_lone_surrogates(values))  # no database takes them
        except ValidationError as error:
            key, problem = next(iter(describe_mistakes(error, self._hints["arguments"]).items()))
            raise ConfigError(format_key(key) or self.name, problem) from None

    def dump_arguments(self, arguments: A) -> Any:
        """Return arguments as a value for JSON, for `read_arguments` in another process."""
        return self._reader.dump_python(arguments, mode="json")

    async def __call__(self, call: Call, arguments: A) -> R:
        """Perform the operation. Raise ForbiddenError if the caller may not, ConfigError for arguments that match nothing."""
        if call.actor.kind not in self.callers or not await _may_give(call, arguments):
            raise ForbiddenError(f"{call.actor.name} may not call {self.name}")
        if self.needs_platform and not call.host.is_running:
            raise StoreError(f"{self.name} needs a running platform; start it with `spade-coreason up`")
        return await self.function(call, arguments)


def _read_argument(one: dataclasses.Field[Any], hint: Any) -> Argument:
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    may_be_none = get_origin(kind) in (Union, UnionType)
    if may_be_none:
        [kind] = [each for each in get_args(kind) if each is not NoneType]
    about = next((note for note in notes if isinstance(note, About)), About(""))
    is_required = one.default is dataclasses.MISSING
    limits = tuple(note for note in notes if note is not about)
    return Argument(one.name, kind, is_required, may_be_none, None if is_required else one.default, about, limits)


async def _may_give(call: Call, arguments: Arguments) -> bool:
    """Return True if the caller may call an operation with these arguments.

    An operator names their own agent. A person names their own agent, and themselves or a conversation of their own.
    """
    actor = call.actor
    if actor.kind is CallerKind.MACHINE_USER:
        return True
    if getattr(arguments, "agent", actor.agent) != actor.agent:
        return False
    if actor.kind is CallerKind.OPERATOR:
        return True
    person, conversation = getattr(arguments, "person", None), getattr(arguments, "conversation", None)
    if conversation is None or person not in (None, actor.name):
        return bool(person == actor.name)
    stored = await call.host.repository(actor.agent).find_conversations([conversation])
    if conversation in stored:
        return stored[conversation].owner == actor.name
    thread = recover_thread(conversation, actor.name, actor.agent)  # nothing of it is stored yet
    return conversation in candidate_conversation_ids(thread, actor.name, actor.agent)


def operation(
    name: str,
    callers: frozenset[CallerKind] = MACHINE_USER,
    *,
    is_change: bool = False,
    needs_platform: bool = False,
    prefers_running: bool = False,
    creates_directory: bool = False,
    max_request_bytes: int = _MAX_REQUEST_BYTES,
    timeout_s: float | None = None,
    view: View = HIDDEN,
) -> Callable[[Callable[[Call, A], Awaitable[R]]], Operation[A, R]]:
    """Make an operation of a function of a call and its arguments. Its docstring is the help of the operation."""

    options = callers, is_change, needs_platform, prefers_running, creates_directory, max_request_bytes, timeout_s, view
    return lambda function: Operation(name, function, *options)
