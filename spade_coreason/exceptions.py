"""The tree of errors. Each carries its data, and its text names the cause and the remedy in one line.

CoReasonError
├── ConfigError                  a setting, an option or an agent named in one is wrong (exit code 2).
│   └── DataDirectoryInUseError  another process owns the data directory or the database.
├── ServerError                  a local server did not start, or ended (exit code 4).
│   └── AddressInUseError        another program listens on the address of the server (xmpp.servers).
├── ConnectError                 the XMPP server cannot be reached or refuses the connection (exit code 4).
│   └── LoginError               the server was reached and refuses the account (exit code 5).
├── StoreError                   stored data cannot be read or written.
│   ├── LeaseLostError           another worker serves the agents of this one (exit code 75).
│   ├── DatabaseUnreachableError the server of the database cannot be reached (exit code 4).
│   ├── DatabaseEmptyError       the database is empty: nothing was ever stored in it.
│   ├── MemoryFileError          an interaction memory file is damaged; it is left unchanged.
│   └── MemoryFullError          the interaction memory of a conversation has reached its limit.
├── ForbiddenError               the caller may not do this.
├── StepUncertainError           a durable step was cut off, and must not run again by itself.
├── StepMismatchError            a durable step has other arguments than in an earlier run of the turn.
│   ├── UnknownStepError         a turn that goes on after an answer began a step that its earlier run had not.
│   └── MissingStepError         a turn that goes on after an answer left out a step of its earlier run.
├── VariableChangedError         a variable was changed while the turn that stores it waited for an answer.
├── QuestionExpiredError         no one answered a question in time.
├── ApprovalError                a call was not approved.
│   ├── ApprovalDeniedError      an approver denied it.
│   ├── ApprovalExpiredError     no one decided in time.
│   └── ApprovalRefusedError     no one can be asked about it.
├── KnowledgeError               a document cannot be added to the knowledge of an agent.
├── ModelError                   a model did not return a usable completion or result.
├── ContextTooLongError          the context of a request is longer than the language model accepts (llm).
├── BudgetExceededError          a budget of language model tokens is used up (llm).
├── WithheldError                a guardrail withholds a text (llm).
├── ToolError                    a tool of an MCP server is not available, or failed.
├── FileError                    a file was not transferred.
│   ├── FetchError               the target of a link cannot be fetched, or must not be.
│   └── UploadError              the server does not store a file for us.
└── PeerError                    a request to another agent had no successful reply.
    ├── PeerTimeoutError         there was no complete reply in time.
    ├── PeerUnavailableError     the server reports that there is no such agent online.
    ├── PeerParkedError          the agent waits for a person's answer; ask again later under the same id.
    ├── PeerRefusedError         the agent refuses to talk with us.
    ├── RequestTooLongError      the request is too long and was not sent.
    ├── AnswerTooLongError       the agent sent too much in answer to one request.
    └── PeerFailedError          the agent replied with an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


class CoReasonError(Exception):
    """Base class of all errors that this package raises on purpose.

    `place` names the place to correct, if it is known: a file and the key in it, an option, or an environment variable.
    `exit_code` is the exit status of a command that ends with this error.
    """

    exit_code = 1
    place = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.place}: {text}" if self.place else text


class ConfigError(CoReasonError):
    """A setting is wrong. `others` are further mistakes that were found at the same time."""

    exit_code = 2

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(problem)
        self.place = place
        self.problem = problem
        self.others: tuple[ConfigError, ...] = ()

    @staticmethod
    def combine(mistakes: Iterable[ConfigError]) -> ConfigError:
        """Return the first mistake, with the rest as its `others`."""
        first, *others = mistakes
        first.others = tuple(others)
        return first


class DataDirectoryInUseError(ConfigError):
    """Another running process owns the data directory, or the file of the database.

    `pid` is the id of that process, if it is known. `key` is the setting that names the directory or file.
    """

    def __init__(self, directory: Path, pid: int | None = None, key: str = "data_dir") -> None:
        self._holder = f"in use by process {pid}" if pid else "in use by another process"
        self._resource = "data directory" if key == "data_dir" else f"file ({key})"
        super().__init__(str(directory), f"{self._holder}; stop it first, or name another {self._resource}")
        self.directory = directory
        self.pid = pid
        self.key = key

    def for_platform(self, place: str) -> DataDirectoryInUseError:
        """Return the error of a platform that cannot start. `place` is where its configuration names the directory."""
        error = DataDirectoryInUseError(self.directory, self.pid, self.key)
        error.place = place
        error.problem = (
            f"{self.directory}: {self._holder}; stop it first, name another {self._resource} for other agents,"
            " or share these agents: workers need PostgreSQL and server.mode: external"
        )
        error.args = (error.problem,)
        return error


class ServerError(CoReasonError):
    """A local XMPP server or an HTTP server (doors, metrics) did not start, or ended unexpectedly."""

    exit_code = 4


class ConnectError(CoReasonError):
    """The XMPP server cannot be reached, or closes the connection before a session is established.

    If `is_transient` is true, a retry may succeed: the server may be starting, or busy.
    """

    exit_code = 4

    def __init__(self, jid: str, address: str, problem: str, *, is_transient: bool = False) -> None:
        super().__init__(f"{jid}: cannot connect to {address}: {problem}")
        self.jid = jid
        self.address = address
        self.problem = problem
        self.is_transient = is_transient


class LoginError(ConnectError):
    """The XMPP server was reached and refuses the account."""

    # Not 4: a service manager must not try it again and again, for which servers lock an address out.
    exit_code = 5

    def __init__(self, jid: str, address: str, problem: str) -> None:
        super().__init__(jid, address, problem)
        self.args = (f"{jid}: {address} refuses the login: {problem}",)

    def place_at_password(self, place: str, *, is_registering: bool) -> None:
        """Name the configured password as the place to correct, and registration as a remedy if it was not tried."""
        self.place = place
        if not is_registering:
            self.args = (f"{self.args[0]}, or set register: true (--register)",)


class ForbiddenError(CoReasonError):
    """The caller may not do this."""


class StoreError(CoReasonError):
    """Stored data cannot be read or written."""


class LeaseLostError(StoreError):
    """This worker has not renewed its lease in time, so another one serves its agents. Nothing of it is stored any more.

    Its exit code is EX_TEMPFAIL (sysexits.h): the same can be started again at once.
    """

    exit_code = 75


class ContentRefusedError(StoreError):
    """The database refuses a text or a number, such as one with a null character. It would again; all else can be stored."""


class DatabaseUnreachableError(StoreError):
    """The server of the database cannot be reached, or accepts no connections yet. A retry may succeed."""

    exit_code = 4


class DatabaseEmptyError(StoreError):
    """The database `name` has no tables: nothing was ever stored in it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: nothing is stored here yet; start the platform once, or correct storage.url")
        self.name = name


class MemoryFileError(StoreError):
    """An interaction memory file cannot be read. The file at `path` is left unchanged and never emptied."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; the file is left unchanged; {remedy}")
        self.path = path
        self.problem = problem


class MemoryFullError(StoreError):
    """The interaction memory of one conversation has reached its `limit` in bytes. Other conversations are not affected."""

    def __init__(self, conversation_id: str, limit: int) -> None:
        super().__init__(
            f"the memory of the conversation {conversation_id!r} is full (limit: {limit:,} bytes); delete entries,"
            " or raise limits.memory_conversation_bytes (in Python: MemoryLimits)"
        )
        self.conversation_id = conversation_id
        self.limit = limit


class StepUncertainError(CoReasonError):
    """The durable step `name` was cut off in an earlier run of the turn, and was declared with `on_uncertain="fail"`.

    Its function may have had its effect. `number` is the use of the name within the turn. `key` is the idempotency key that the
    function was given.
    """

    def __init__(self, name: str, number: int, key: str) -> None:
        super().__init__(
            f"the durable step {name!r} (use {number}) was cut off in an earlier run, so its effect is uncertain and it"
            f" does not run again; find out by its idempotency key {key} whether it took effect"
        )
        self.name = name
        self.number = number
        self.key = key


class StepMismatchError(CoReasonError):
    """The durable step `name` has other arguments than in an earlier run of the turn, so its stored result does not fit.

    `number` is the use of the name within the turn. `stored` and `given` are the first characters of the SHA-256 of the
    arguments. The turn fails, even if the agent catches this error.
    """

    def __init__(self, name: str, number: int, stored: str, given: str) -> None:
        super().__init__(
            f"the durable step {name!r} (use {number}) was stored with the arguments {stored} and now has {given}; give it"
            " arguments that are the same in every run of a turn, and steps that run at once names of their own"
        )
        self.name = name
        self.number = number
        self.stored = stored
        self.given = given


class UnknownStepError(StepMismatchError):
    """The durable step `name` is not one of the run that asked a person, so its function was not called. The turn fails."""

    def __init__(self, name: str, number: int) -> None:
        CoReasonError.__init__(
            self,
            f"the durable step {name!r} (use {number}) was not begun by the run that asked a person; begin the same steps"
            " before a question in every run, also after a change of the agent",
        )
        self.name, self.number, self.stored, self.given = name, number, "", ""


class MissingStepError(StepMismatchError):
    """The durable step `name`, of the run that asked a person, was not begun before the question `question`. The turn fails."""

    def __init__(self, name: str, number: int, question: str) -> None:
        CoReasonError.__init__(
            self,
            f"the durable step {name!r} (use {number}) was not begun before {question!r}, as in the run that asked a person;"
            " begin the same steps in every run, also after a change of the agent",
        )
        self.name, self.number, self.stored, self.given = name, number, "", ""


class VariableChangedError(CoReasonError):
    """The variable `key` was changed by another turn while this one waited for a person's answer. The turn fails."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"variable {key!r} was changed by another turn while this one waited for an answer; store it under another name, or"
            " ask before you read it"
        )
        self.key = key


class QuestionExpiredError(CoReasonError):
    """No one answered the question `question_id` in time."""

    def __init__(self, question_id: str) -> None:
        super().__init__(f"no one answered the question {question_id} in time; ask again, or go on without an answer")
        self.question_id = question_id


class ApprovalError(CoReasonError):
    """The call `name` was not approved, so its function was not called."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class ApprovalDeniedError(ApprovalError):
    """The person `person` (a bare JID, or a user of the machine) denied the call. `reason` is what they said, or ""."""

    def __init__(self, name: str, person: str, reason: str = "") -> None:
        super().__init__(name, f"denied by {person}{f': {reason}' if reason else ''}")
        self.person = person
        self.reason = reason


class ApprovalExpiredError(ApprovalError):
    """No one decided about the call in time."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "no one decided in time; ask again")


class ApprovalRefusedError(ApprovalError):
    """No one can be asked about the call. `problem` says why, and what to do."""


class KnowledgeError(CoReasonError):
    """A document cannot be read, or cannot be added to the knowledge of an agent."""


class ModelError(CoReasonError):
    """A model did not return a usable completion or result. `where` is its address or its name.

    If `is_transient` is true, a retry may succeed, after `retry_after_s` seconds if the server gave a time. If `is_too_long` is
    true, the model was shown more than it takes. `remedy` is for the operator, and never in `problem`.
    `server_message` is the server's own text, for the sender of the request. It may quote the request, so it must not be
    logged.
    """

    def __init__(
        self,
        where: str,
        problem: str,
        *,
        remedy: str = "",
        server_message: str = "",
        is_transient: bool = False,
        is_too_long: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        said = f"; the server says: {server_message}" if server_message else ""
        super().__init__(f"{where}: {problem}{f'; {remedy}' if remedy else ''}{said}")
        self.where = where
        self.problem = problem
        self.is_transient = is_transient
        self.is_too_long = is_too_long
        self.retry_after_s = retry_after_s


class ToolError(CoReasonError):
    """The MCP server called `server` is not available, or its tool failed."""

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(f"the MCP server {server} {problem}")
        self.server = server
        self.problem = problem


class FileError(CoReasonError):
    """A file was not transferred."""


class FetchError(FileError):
    """The target of a link cannot be fetched, or must not be.

    The text names the `url` without its parts that may be secret: user, password, query and fragment. `remedy` is for the
    developer, and never in `problem`.
    """

    def __init__(self, url: str, problem: str, remedy: str = "") -> None:
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        public_url = f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}" if rest else scheme
        public_url = re.split(r"[?#]", public_url, maxsplit=1)[0]
        super().__init__(f"{public_url[:200]!r} was not fetched: {problem}{f'; {remedy}' if remedy else ''}")
        self.url = url
        self.problem = problem
        self.remedy = remedy


class UploadError(FileError):
    """The server does not store the file `name` for us.

    `remedy` tells the operator how to repair the upload service. It is empty if only this file cannot be uploaded.
    """

    def __init__(self, name: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{name!r} was not uploaded: {problem}")
        self.name = name
        self.problem = problem
        self.remedy = remedy


class PeerError(CoReasonError):
    """A request to the agent `jid` had no successful reply."""

    def __init__(self, jid: str, problem: str) -> None:
        super().__init__(f"{jid} {problem}")
        self.jid = jid
        self.problem = problem


class PeerTimeoutError(PeerError):
    """The agent sent no complete reply within `timeout_s` seconds, or refused a request whose time was over when it came up.

    `has_started` is true if it sent a part of a reply.
    """

    def __init__(self, jid: str, timeout_s: float, *, has_started: bool = False) -> None:
        super().__init__(jid, f"did not {'finish its answer' if has_started else 'answer'} in {timeout_s:g} s")
        self.timeout_s = timeout_s


class PeerParkedError(PeerError):
    """The agent has asked a person, and answers when they have. Ask again later with the same `request_id` and question."""

    def __init__(self, jid: str, request_id: str) -> None:
        super().__init__(jid, f"waits for a person's answer; ask again later with the request id {request_id}")
        self.request_id = request_id


class PeerUnavailableError(PeerError):
    """The server reports that there is no such agent online."""


class PeerRefusedError(PeerError):
    """The agent refuses to talk with us now; `problem` is the reason that it gives.

    Requests within the next `retry_after_s` seconds are refused too, if the agent gave a time.
    """

    def __init__(self, jid: str, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(jid, problem)
        self.retry_after_s = retry_after_s


class RequestTooLongError(PeerError):
    """The request was not sent, because servers close the connection of a client that sends so much at once.

    `size` and `limit` are in bytes on the wire. The size is that of its JSON, and 1 KiB for all around it.
    """

    exit_code = 2

    def __init__(self, jid: str, size: int, limit: int) -> None:
        problem = f"was not sent the request, which has {size:,} bytes on the wire (limit: {limit:,})"
        super().__init__(jid, f"{problem}; send a link to the text instead")
        self.size = size
        self.limit = limit


class AnswerTooLongError(PeerError):
    """The agent sent more than `limit` characters of JSON in answer to one request. The answer was dropped."""

    def __init__(self, jid: str, limit: int) -> None:
        problem = f"sent more than {limit:,} characters in answer to one request, and the answer was dropped"
        super().__init__(jid, f"{problem}; let it send a link to the data instead")
        self.limit = limit


class PeerFailedError(PeerError):
    """The agent replied with an error. `code` is its code, if it gave one (`contracts.ErrorCode`).

    `has_asked` is true if it had waited for a person's answer. A request with another id would ask them again.
    """

    def __init__(self, jid: str, problem: str, code: int | None = None, *, has_asked: bool = False) -> None:
        super().__init__(jid, f"reports: {problem}")
        self.code = code
        self.has_asked = has_asked


def describe_for_log(error: BaseException) -> str:
    """Return the text of an error for a log.

    It omits the texts of servers and of exceptions from other code, because they may quote a person's message.
    """
    if isinstance(error, ModelError):
        return f"{error.where}: {error.problem}"
    return str(error) if isinstance(error, CoReasonError) else type(error).__name__


def describe_text(error: BaseException) -> str:
    """Return the text of an error for its own developer. It omits the texts of servers, which may quote a person's message."""
    return describe_for_log(error) if isinstance(error, ModelError) else str(error)
