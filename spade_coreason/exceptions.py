"""The tree of errors: each carries its data, and its text names the cause and the remedy in one line.

CoReasonError
├── ConfigError             a setting, an option or an agent named in one is wrong          (exit code 2)
│   └── DataDirectoryInUse  another process owns the data directory or the database
├── ServerError             a local server did not start, or ended                          (exit code 4)
│   └── AddressInUse        something else listens where it was to (xmpp.servers)
├── ConnectError            the XMPP server cannot be reached or refuses the connection     (exit code 4)
│   └── LoginError          it was reached, and refuses the account
├── StoreError              what lasts cannot be read or written
│   ├── DatabaseEmpty       nothing was ever stored in the database
│   ├── MemoryFileError     an interaction memory file is damaged; it is kept as it is
│   └── MemoryFullError     a conversation's interaction memory holds the most that it may
├── KnowledgeError          a document cannot be taken into the knowledge of an agent
├── ModelError              a model did not answer as it should
├── ContextTooLong          what a language model would have to be shown is more than it takes (llm)
├── BudgetUsedUp            a language model may use no more tokens (llm)
├── Withheld                a guardrail does not let a text through (llm)
├── ToolError               a tool of an MCP server is not there, or failed
├── FileError               a file did not come or go
│   ├── FetchError          what a link leads to is not to be had, or may not be
│   └── UploadError         the server does not keep a file for us
└── PeerError               a request to another agent had no good answer
    ├── PeerTimeout         none within the time given
    ├── PeerUnavailable     the server says that nobody is there
    ├── PeerRefused         it will not talk with us
    ├── RequestTooLong      it was not sent: no server would take it
    └── PeerFailed          it answered with an error
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


class CoReasonError(Exception):
    """Everything this package raises on purpose.

    `place` is what to correct, where that is known: a file and the key in it, an option, or an environment variable.
    """

    exit_code = 1
    place = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.place}: {text}" if self.place else text


class ConfigError(CoReasonError):
    """A setting is wrong. `others` are the mistakes beside it that were found at the same time."""

    exit_code = 2

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(problem)
        self.place = place
        self.problem = problem
        self.others: tuple[ConfigError, ...] = ()

    @staticmethod
    def combine(mistakes: Iterable[ConfigError]) -> ConfigError:
        """The first of them, with the others beside it."""
        first, *others = mistakes
        first.others = tuple(others)
        return first


class DataDirectoryInUseError(ConfigError):
    """Another running process owns the data directory, or the file of the database."""

    def __init__(self, directory: Path, pid: int | None = None, key: str = "data_dir") -> None:
        who = f"process {pid}" if pid else "another process"
        what = "data directory" if key == "data_dir" else f"file ({key})"
        super().__init__(str(directory), f"in use by {who}; stop it first, or name another {what}")
        self.directory = directory
        self.pid = pid
        self.key = key

    def with_place(self, place: str) -> DataDirectoryInUseError:
        """The same, where a configuration names the directory there."""
        named = DataDirectoryInUseError(self.directory, self.pid, self.key)
        named.place, named.problem = place, f"{self.directory}: {self.problem}"
        named.args = (named.problem,)
        return named


class ServerError(CoReasonError):
    """A local XMPP server did not start, or ended before its time."""

    exit_code = 4


class ConnectError(CoReasonError):
    """The XMPP server cannot be reached, or ends the connection before a session is there."""

    exit_code = 4

    def __init__(self, jid: str, address: str, problem: str) -> None:
        super().__init__(f"{jid}: cannot connect to {address}: {problem}")
        self.jid = jid
        self.address = address
        self.problem = problem


class LoginError(ConnectError):
    """The server was reached and refuses the account."""

    def __init__(self, jid: str, address: str, problem: str) -> None:
        super().__init__(jid, address, problem)
        self.args = (f"{jid}: {address} refuses the login: {problem}",)


class StoreError(CoReasonError):
    """What lasts cannot be read or written."""


class DatabaseEmptyError(StoreError):
    """Nothing was ever stored in the database called `name`: it has no tables."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: nothing is stored there yet")


class MemoryFileError(StoreError):
    """An interaction memory file cannot be read. It is kept, never emptied."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; the file is kept as it is; {remedy}")
        self.path = path
        self.problem = problem


class MemoryFullError(StoreError):
    """One conversation's interaction memory holds the most that it may; the others go on."""

    def __init__(self, conversation_id: str, limit: int) -> None:
        super().__init__(
            f"the memory of the conversation {conversation_id!r} is full: {limit:,} bytes are the most; forget some of it,"
            " or allow more (limits.memory_conversation_bytes; in Python MemoryLimits)"
        )
        self.conversation_id = conversation_id
        self.limit = limit


class KnowledgeError(CoReasonError):
    """A document cannot be read, or not be taken in."""


class ModelError(CoReasonError):
    """A model did not answer as it should; `where` is its address or its name.

    `is_transient`: asking again may help, after `retry_after_s` where the server said so. `server_message` are the server's own words, for
    whoever asked: they may quote what it was asked, and so are for no log.
    """

    def __init__(
        self,
        where: str,
        problem: str,
        *,
        server_message: str = "",
        is_transient: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{where}: {problem}{f'; its words: {server_message}' if server_message else ''}")
        self.where = where
        self.problem = problem
        self.is_transient = is_transient
        self.retry_after_s = retry_after_s


class ToolError(CoReasonError):
    """The MCP server called `server` is not there, or its tool failed."""

    def __init__(self, server: str, problem: str) -> None:
        super().__init__(f"the MCP server {server} {problem}")
        self.server = server
        self.problem = problem


class FileError(CoReasonError):
    """A file did not come or go."""


class FetchError(FileError):
    """What a link leads to is not to be had, or may not be. Without what may be secret in it the text names the `url`."""

    def __init__(self, url: str, problem: str) -> None:
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        named = f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}" if rest else scheme
        named = re.split(r"[?#]", named, maxsplit=1)[0]
        super().__init__(f"{named[:200]!r} is not fetched: {problem}")
        self.url = url
        self.problem = problem


class UploadError(FileError):
    """The server does not keep the file `name` for us."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name!r} is not uploaded: {problem}")
        self.name = name
        self.problem = problem


class PeerError(CoReasonError):
    """A request to the agent `jid` had no good answer."""

    def __init__(self, jid: str, problem: str) -> None:
        super().__init__(f"{jid} {problem}")
        self.jid = jid
        self.problem = problem


class PeerTimeoutError(PeerError):
    """No complete answer within the time given."""

    def __init__(self, jid: str, timeout_s: float, *, has_started: bool = False) -> None:
        super().__init__(jid, f"did not {'finish its answer' if has_started else 'answer'} in {timeout_s:g} s")
        self.timeout_s = timeout_s


class PeerUnavailableError(PeerError):
    """The server says that nobody is there."""


class PeerRefusedError(PeerError):
    """The agent will not talk with us now; its notice says why. What is asked within `retry_after_s` is refused again."""

    def __init__(self, jid: str, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(jid, problem)
        self.retry_after_s = retry_after_s


class RequestTooLongError(PeerError):
    """The request was not sent: servers end the connection of whoever sends so much at once."""

    exit_code = 2

    def __init__(self, jid: str, size: int, limit: int) -> None:
        problem = f"was not asked: the request has {size:,} bytes on the wire, and {limit:,} are the most"
        super().__init__(jid, f"{problem}; send a link to the text instead")
        self.size = size
        self.limit = limit


class PeerFailedError(PeerError):
    """The agent answered with an error. `code` is its code, if it gave one (contracts, error codes)."""

    def __init__(self, jid: str, problem: str, code: int | None = None) -> None:
        super().__init__(jid, f"reports: {problem}")
        self.code = code


def describe_for_log(error: BaseException) -> str:
    """An error as a log has it: without the words of a server or of somebody's own code, which may quote a person's."""
    if isinstance(error, ModelError):
        return f"{error.where}: {error.problem}"
    return str(error) if isinstance(error, CoReasonError) else type(error).__name__
