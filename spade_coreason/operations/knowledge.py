"""Add, list, search or remove the documents that agents can search."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from annotated_types import Ge, Le

from .. import memory
from ..contracts.times import format_rfc3339
from ..exceptions import ConfigError
from .definition import About, Call, OfAgents, operation
from .host import OperationHost, owner_of, select_agent
from .view import TableView, View, count, moment

MAX_TEXT_REQUEST_BYTES = 80 * 1024 * 1024
"""The largest file of a document has 64 MiB, and JSON escapes some of its characters."""


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document: the number of its passages, how many of them have a vector, and when it was added (RFC 3339)."""

    document: str
    passages: int
    indexed: int
    characters: int
    added_at: str


@dataclass(frozen=True, slots=True)
class DocumentList:
    """The documents of an agent, and the passages without a vector of the configured model."""

    agent: str
    documents: list[StoredDocument]
    has_vectors: bool
    missing: int


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that matches a query. Its score is 0 to 1, and `passage` its number in the document, from 1."""

    score: float
    document: str
    passage: int
    text: str


@dataclass(frozen=True, slots=True)
class AddedDocument:
    """The outcome: "new", "changed" or "same". If it was stopped, vectors are missing, which `reindex` makes."""

    agent: str
    outcome: str
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class RemovedDocuments:
    """The names of the documents that were removed. If it was stopped, the same call removes the rest."""

    agent: str
    documents: list[str]
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class MadeVectors:
    """The number of vectors that were made. If it was stopped, the same call makes the rest."""

    agent: str
    vectors: int
    is_complete: bool = True


class OfKnowledge(OfAgents):
    """The knowledge of an agent: its own documents, or those of a person (a bare JID) or a conversation (its id)."""

    person: Annotated[str | None, About("Documents of this person only.", "JID")] = None
    conversation: Annotated[str | None, About("Documents of this conversation only.")] = None


@operation(
    "knowledge.list",
    view=View(
        examples=["knowledge list notes"],
        given=["agent"],
        table=TableView(
            "documents",
            columns=["document", "passages", "characters", ("added", moment("added_at"))],
            rows=lambda found: found.documents,
        ),
        dump=lambda found: list(map(asdict, found.documents)),
        links=["knowledge.remove"],
        beside=["knowledge.search", "knowledge.add"],
    ),
)
async def list_documents(call: Call, arguments: OfKnowledge) -> DocumentList:
    """List the documents of an agent."""
    _check_owner(arguments)
    agent = await select_agent(call.host, arguments.agent)
    if call.host.database is None:
        return DocumentList(agent, [], has_vectors=False, missing=0)
    knowledge = call.host.knowledge(agent)
    found = await knowledge.list(person=arguments.person, conversation=arguments.conversation)
    documents = [
        StoredDocument(one.name, one.passages, one.indexed, one.characters, format_rfc3339(one.added_at)) for one in found
    ]
    missing = sum((await knowledge.missing()).values())
    return DocumentList(agent, documents, knowledge.embedder is not None, missing)


class SearchKnowledge(OfKnowledge):
    """A question or a few words, the most passages, and the lowest score."""

    query: str
    limit: Annotated[int, Ge(1), About("Show at most this many passages.")] = 5
    threshold: Annotated[float, Ge(0), Le(1), About("The lowest score to show.")] = 0.7


@operation(
    "knowledge.search",
    view=View(
        examples=[
            'knowledge search notes "How long can I return it?"',
            "knowledge search notes refund --threshold 0.5",
        ],
        given=["agent", "query"],
        table=TableView(
            lambda wanted: (
                f"passages with a score of {wanted.threshold:g} or more"
                + ("; try a lower --threshold" if wanted.threshold else "")
            )
        ),
        role="content",
    ),
)
async def search_knowledge(call: Call, arguments: SearchKnowledge) -> list[FoundPassage]:
    """Show the passages that an agent finds for a question, with scores, best first.

    QUERY is a question or a few words.
    """
    agent, owner = await select_agent(call.host, arguments.agent), _owner(arguments)
    if call.host.database is None:
        return []
    found = await call.host.knowledge(agent).search(arguments.query, arguments.limit, arguments.threshold, **owner)
    return [FoundPassage(hit.score, hit.document, hit.passage, hit.text) for hit in found]


class AddDocument(OfKnowledge):
    """A text and the name of its document."""

    name: str
    text: str
    is_markdown: bool = False


@operation("knowledge.add", is_change=True, max_request_bytes=MAX_TEXT_REQUEST_BYTES)
async def add_document(call: Call, arguments: AddDocument) -> AddedDocument:
    """Add a document to the knowledge of an agent, or change it."""
    agent, knowledge, person = await _open(call.host, arguments)
    text, name, owner = arguments.text, arguments.name, _owner(arguments)
    if (outcome := await knowledge.find_outcome(text, name, **owner)) is not None:
        await call.record(agent, "knowledge.add", name, person=person)
    progress = _Progress(call)
    try:
        outcome = await knowledge.add(text, name, is_markdown=arguments.is_markdown, progress=progress.report, **owner)
    except _StoppedError:
        return AddedDocument(agent, outcome or "same", is_complete=False)
    return AddedDocument(agent, outcome)


class RemoveDocuments(OfKnowledge):
    """The names of documents; all without names."""

    names: list[str] | None = None


@operation("knowledge.remove", is_change=True, max_request_bytes=MAX_TEXT_REQUEST_BYTES)
async def remove_documents(call: Call, arguments: RemoveDocuments) -> RemovedDocuments:
    """Remove documents from the knowledge of an agent."""
    agent, knowledge, person = await _open(call.host, arguments)
    owner = _owner(arguments)
    names = [document.name for document in await knowledge.list(**owner)]
    if arguments.names is not None:
        names = [name for name in names if name in arguments.names]
    removed: list[str] = []
    for number, name in enumerate(names):
        if call.is_stopped:
            return RemovedDocuments(agent, removed, is_complete=False)
        call.on_progress(number, len(names))
        await call.record(agent, "knowledge.remove", name, person=person)
        if await knowledge.remove(name, **owner):
            removed.append(name)
    return RemovedDocuments(agent, removed)


@operation(
    "knowledge.reindex",
    is_change=True,
    view=View(
        examples=["knowledge reindex notes"],
        given=["agent"],
        progress="vectors",
        done=lambda one: f"{one.agent}: computed {count(one.vectors, 'vector')}.",
        dump=lambda one: {"indexed": one.vectors},
    ),
)
async def reindex_knowledge(call: Call, arguments: OfAgents) -> MadeVectors:
    """Compute missing and outdated vectors for the knowledge of an agent.

    A vector is outdated if another model computed it. After an interruption, run the same command again to continue.
    """
    agent = await select_agent(call.host, arguments.agent)
    knowledge = call.host.knowledge(agent)
    if knowledge.embedder is None:
        raise ConfigError("knowledge.embedder", "is none: knowledge is searched by words only, which needs no vectors")
    if not await knowledge.count_outdated():
        return MadeVectors(agent, 0)
    await call.record(agent, "knowledge.reindex", "all documents")
    progress = _Progress(call)
    try:
        return MadeVectors(agent, await knowledge.reindex(progress.report))
    except _StoppedError:
        return MadeVectors(agent, progress.done, is_complete=False)


class _StoppedError(Exception):
    """The caller has asked for an early end."""


class _Progress:
    """The progress of vectors, of which each batch is stored at once."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.done = 0

    def report(self, done: int, total: int) -> None:
        self.done = done
        self._call.on_progress(done, total)
        if self._call.is_stopped:
            raise _StoppedError


async def _open(host: OperationHost, arguments: OfKnowledge) -> tuple[str, memory.Knowledge, str]:
    _check_owner(arguments)
    agent, conversation = await select_agent(host, arguments.agent), arguments.conversation
    person = arguments.person or ("" if conversation is None else await owner_of(host, agent, conversation))
    return agent, host.knowledge(agent), person


def _check_owner(arguments: OfKnowledge) -> None:
    if arguments.person and arguments.conversation:
        raise ConfigError("conversation", "a document belongs to a person or to a conversation; leave one of them out")


def _owner(arguments: OfKnowledge) -> dict[str, str | None]:
    return {"person": arguments.person, "conversation": arguments.conversation}
