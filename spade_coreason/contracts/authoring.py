"""Protocols for authors of agents: the seed's session, response and stream, with the methods that this platform adds.

Annotate `assist` with them: `async def assist(self, request: AgentRequest, session: Session, response: Response) -> None`.
An agent that needs nothing but the seed may annotate `SessionHandle` and `ResponseHandler` instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from .initiative import Missed, Schedule
from .manifest import AgentDefinition
from .protocols import ResponseHandler, SessionHandle, StreamHandle
from .questions import PersonAnswer
from .request import AgentRequest
from .session import Interaction

VariableScope: TypeAlias = Literal["conversation", "person", "agent"]
"""The holder of a variable: one conversation, one person in all conversations with the agent, or the agent itself, for all."""

Payload: TypeAlias = str | Mapping[str, Any]
"""The payload of a request: a text counts as {"query": text}."""

OnUncertain: TypeAlias = Literal["retry", "fail"]
"""The rule for a durable step that was cut off: it runs again, or raises an error."""


@runtime_checkable
class Session(SessionHandle, Protocol):
    """The session of one conversation: its history, its window for a language model, search, variables and its end."""

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """Return `limit` turns, oldest first. The last of them is `offset` turns before the newest.

        It reaches all stored turns, also those before the window. A limit below 1 or a negative offset gives an empty list.
        Raise StoreError if storage cannot be read.
        """
        ...

    async def window(self) -> list[Interaction]:
        """Return the turns that the memory policy selects for a language model, oldest first.

        A summary comes first, as a turn with `meta` {"summary": true}. Its input is None, and the text of its output is the
        summary. If a turn is larger than a TOKEN_BUFFER, its meta["over_limit"] is its number of tokens. Raise StoreError if
        storage cannot be read.
        """
        ...

    @property
    def summary(self) -> str:
        """The summary of the turns before the window. It is "" unless the memory policy is SUMMARY."""
        ...

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """Search for texts about `query`: passages of documents and turns of this conversation, best first.

        The search covers the knowledge of the agent, of this person and of this conversation. It also covers the newest
        1,000 turns that are not in the knowledge.

        `limit` is the maximum number of texts. Texts with a score below `threshold` (0 to 1) are left out. The score of a
        turn is the share of the query's words that it contains. Forms of a word count as the word; stop words do not count.
        `Knowledge.search` defines the score of a passage. Raise StoreError if storage cannot be read.
        """
        ...

    async def store(self, key: str, value: Any, *, scope: VariableScope | None = None) -> None:
        """Store a variable (any JSON value) across turns and restarts. It becomes durable together with the turn.

        Without a `scope` it is stored twice: for this conversation and for this person with the agent. A `scope`
        ("conversation" or "person") names one of them. In a room a person has no variables. With the scope "agent" everybody
        who talks with the agent shares it. The last turn that stores it wins, and no export or deletion of a person has it.

        Raise ValueError, which names the key, if `value` is not JSON, or the key is reserved or no text; nothing is changed
        then. Raise RuntimeError once `assist` has returned.
        """
        ...

    async def run_once(self, name: str, function: Callable[..., Any], *args: Any, on_uncertain: OnUncertain = "retry") -> Any:
        """Run a durable step: call `function(*args)`, and store its result before this returns it.

        If the turn is interrupted and runs again, the stored result is returned, and the function is not called. `function` may
        be a coroutine function. Arguments and result are JSON values; the result comes back as JSON, so a tuple as a list.

        A further call with the same name is the next use of this name, and a step of its own. If the function has a parameter
        `idempotency_key`, it gets a text that is the same in every run of this step.

        A step that raises is not stored. One that was cut off is uncertain: "retry" calls the function again, with the same
        key. "fail" stores the intention first, and raises StepUncertainError in the next run, also if the function raised.

        Raise ValueError, which names the step, if an argument or the result is not JSON, or the result has more than 1 MiB.
        Raise StepMismatchError if an earlier run gave other arguments; the turn then fails. Raise StoreError if the result
        cannot be stored, and RuntimeError once `assist` has returned.
        """
        ...

    async def run_approved(self, name: str, function: Callable[..., Any], *args: Any, approvers: str | None = None) -> Any:
        """Run a durable step once a person has approved it: ask, and call `function(*args)` when they have.

        `approvers` is a group of `access.groups`; by default the operators. The platform writes the question, with the name and
        all arguments. It goes to the private chat of each approver, with a code that counts once. The person behind the request
        never approves. This run of `assist` ends here, and `assist` begins anew when the decision is there, as after
        `Response.ask_person`. The function then runs at most once: if it is cut off, the next run raises StepUncertainError.

        Raise ApprovalDeniedError, which names who denied it and why, and ApprovalExpiredError if no one decided within
        `approvals.timeout_h`. Raise ApprovalRefusedError if no one can be asked: there is no approver besides the person behind
        the request, or that person is not known. It is also raised if the arguments are too long to be read, or the server does
        not verify senders. Other errors are those of `run_once` and `Response.ask_person`.
        """
        ...

    async def remind(self, when: datetime | timedelta | str, payload: Payload, *, missed: Missed = "once") -> str:
        """Let a request come in this conversation at a time, and return the id of the schedule.

        `when` is an aware datetime, a time from now, or five fields of cron ("0 8 * * mon-fri"), which repeat in the time zone
        of the person. Then `assist` runs with `payload` (a text counts as {"query": text}), and `request.metadata` has
        `schedule`, the id, and `due_at`. What it sends with `response` goes to the person, without a question of theirs. In the
        conversation of another agent it is recorded only.

        If the time was missed, because the platform was down, the agent was paused or an earlier turn had not ended, "once"
        runs it once afterwards, and "skip" drops it.

        It is a durable step: a turn that runs again makes no second one. Raise ValueError for an unsuitable time or payload, or
        if the person has 100 schedules; StoreError if it cannot be stored.
        """
        ...

    async def later(self, payload: Payload) -> str:
        """Let work that takes long run beside this conversation, and return the id of the schedule.

        `assist` runs at once with `payload`, in a conversation of its own, for up to `conversation.job_timeout_s`. Its reply
        comes to the person as a notification in this conversation. Errors are those of `remind`.
        """
        ...

    async def cancel_schedule(self, schedule_id: str) -> bool:
        """Cancel a schedule of the owner of this conversation. Return False if there is none. Raise StoreError."""
        ...

    async def schedules(self) -> list[Schedule]:
        """Return the schedules of the owner of this conversation, the next due ones first. Raise StoreError."""
        ...

    def end(self) -> None:
        """End the episode of the conversation after this turn. The next message opens a new one with the same memory."""
        ...


@runtime_checkable
class Stream(StreamHandle, Protocol):
    """One stream of text, whose text can be replaced as a whole."""

    async def replace(self, content: str, reason: str) -> None:
        """End the stream as incomplete and replace its whole text by `content`, also where clients show it already.

        A program receives `reason` and `content`; only `content` is recorded. Do nothing if the stream has ended.
        """
        ...


@runtime_checkable
class Response(ResponseHandler, Protocol):
    """The reply to one request. Every method raises RuntimeError once `assist` has returned."""

    @abstractmethod
    async def step(self, content: str) -> None:
        """Send a thought that is one short line: what the agent uses at the moment, such as a tool.

        Unlike other thoughts, people see it by default. It is not shown in rooms, and not to people who turned thoughts off.
        """
        ...

    @abstractmethod
    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Send a question with choices: as buttons in clients that support them (XEP-0439), and as a list in others.

        The chosen text, or any other, arrives as the next request. Raise ValueError for no choice, more than 20, or an empty
        one.
        """
        ...

    @abstractmethod
    async def ask_person(
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        to: str | None = None,
        timeout: timedelta = timedelta(days=7),
    ) -> PersonAnswer:
        """Ask a person, and wait for their answer, for days if need be.

        This run of `assist` ends here. When the answer is there, `assist` begins anew with the same request, and this returns
        the answer. So the code before it runs twice: an effect there must be a durable step (`Session.run_once`), and the same
        steps must begin again. Blocks that were sent are not sent again, `Session.get` returns what it
        returned, and `Session.history` ends where it ended. Until then nothing is held: other turns of the conversation run.

        `choices` (at most 20) are offered as buttons, or as a numbered list. With a `schema` (JSON Schema), the answer is
        checked, and `PersonAnswer.value` is its JSON value. `to` is a bare JID; by default the person behind the request. They
        are asked in this conversation if it is theirs, else in their own conversation without a thread. They are reminded
        once, after half of `timeout` (one minute to seven days).

        Raise QuestionExpiredError if no one answers in time. Raise ValueError for an unsuitable question, or a person who has
        no access or 20 open questions. Raise RuntimeError in a task that is not that of `assist`, with an open stream, or in a
        command. Raise StepMismatchError, and fail the turn, if a step before the question is not the same any more.
        """
        ...

    @abstractmethod
    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Stream:
        """Open a stream, whose pieces form one text. Any number of streams may be open at once.

        Streams still open when `assist` returns are closed then.
        """
        ...


@runtime_checkable
class Agent(Protocol):
    """An agent that the platform runs: a manifest and one coroutine.

    Each `AgentInterface` of the seed is an `Agent`. An `Agent` may also use the methods that `Session` and `Response` add.
    """

    @property
    @abstractmethod
    def manifest(self) -> AgentDefinition:
        """The manifest of the agent."""
        ...

    @abstractmethod
    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Process one request, and send the reply through `response`."""
        ...
