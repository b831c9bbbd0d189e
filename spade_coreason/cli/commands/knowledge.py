"""The command `spade-coreason knowledge`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from ...exceptions import ConfigError, KnowledgeError
from ..account import data_option
from ..agent_storage import confirm, open_storage, parse_person
from ..completion import complete_agents
from ..context import CLIGroup, run_async
from ..errors import print_error
from ..settings import config_option, load_storage_settings
from ..terminal.console import format_time, print_json, print_line, print_table, print_text, progress_bar

_PATH = click.Path(path_type=Path)


def _knowledge_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `-c FILE`, `--data DIR`, `--person`, `--conversation` and `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--conversation", metavar="ID", help="Documents of this conversation only."),
        click.option("--person", metavar="JID", help="Documents of this person only."),
        data_option,
        config_option("config/platform.yaml, if it exists"),
    ):
        function = option(function)
    return function


_agent_argument = click.argument("agent", shell_complete=complete_agents)


@click.group("knowledge", cls=CLIGroup)
def command() -> None:
    """Add, list, search or remove the documents that agents can search.

    \b
      spade-coreason knowledge add notes handbook.pdf docs/
      spade-coreason knowledge search notes "How long can I return it?"
      spade-coreason knowledge reindex notes
    """


@command.command("add")
@_agent_argument
@click.argument("paths", nargs=-1, required=True, type=_PATH)
@_knowledge_options
def add(
    agent: str,
    paths: tuple[Path, ...],
    file: Path | None,
    data: Path | None,
    person: str | None,
    conversation: str | None,
    as_json: bool,
) -> int:
    """Add files to the knowledge of an agent: text, Markdown and PDF.

    PATHS are files or directories; a directory stands for all files below it. Works while the platform runs. Unchanged files
    are skipped, and changed files are updated. After an interruption, run the same command again to continue.

    \b
      spade-coreason knowledge add notes handbook.pdf docs/
      spade-coreason knowledge add notes contract.md --person alice@example.org
    """
    return run_async(_add(agent, paths, file, data, _owner_arguments(person, conversation), as_json))


async def _add(
    agent: str, paths: tuple[Path, ...], file: Path | None, data: Path | None, owner: dict[str, str], as_json: bool
) -> int:
    from ...memory import find_files

    files = list(find_files(paths, load_storage_settings(file, data).data_dir))
    if not files:
        raise KnowledgeError(f"{', '.join(map(str, paths))}: contains no text, Markdown or PDF files")
    records: list[dict[str, str]] = []
    async with _open_knowledge(file, data, agent, creates_directory=True) as knowledge:
        with progress_bar(len(files)) as progress:
            for path in files:
                progress.start_item(path.name)
                try:
                    outcome = await knowledge.add_file(path, **owner, progress=progress.update_item)
                except KnowledgeError as error:  # the other files are still added
                    print_error(error)
                    outcome = "failed"
                records.append({"document": str(path.absolute()), "outcome": outcome})
                progress.finish_item()
        jid = knowledge.repository.agent
    if as_json:
        print_json(records)
    else:
        counts = Counter(record["outcome"] for record in records)
        parts = [f"{counts[kind]} {kind}" for kind in ("new", "changed", "same", "failed") if counts[kind]]
        print_line(f"{jid}: {len(records)} document{'' if len(records) == 1 else 's'}: {', '.join(parts)}.")
    return int(any(record["outcome"] == "failed" for record in records))


@command.command("list")
@_agent_argument
@_knowledge_options
def list_(
    agent: str, file: Path | None, data: Path | None, person: str | None, conversation: str | None, as_json: bool
) -> None:
    """List the documents of an agent. Works while the platform runs.

    \b
      spade-coreason knowledge list notes
    """
    run_async(_list(agent, file, data, _owner_arguments(person, conversation), as_json))


async def _list(agent: str, file: Path | None, data: Path | None, owner: dict[str, str], as_json: bool) -> None:
    async with _open_knowledge(file, data, agent, is_read_only=True) as knowledge:
        found = await knowledge.list(**owner) if knowledge is not None else []
        missing = await knowledge.missing() if knowledge is not None else {}
        has_embedder = knowledge is not None and knowledge.embedder is not None
    if as_json:
        from ...contracts.base import format_rfc3339

        records = [
            {
                "document": document.name,
                "passages": document.passages,
                "indexed": document.indexed,
                "characters": document.characters,
                "added_at": format_rfc3339(document.added_at),
            }
            for document in found
        ]
        print_json(records)
        return
    if not found:
        print_line("No documents.")
    else:
        columns = ("document", "passages", *(("indexed",) if has_embedder else ()), "characters", "added")
        rows = [
            (d.name, d.passages, *((d.indexed,) if has_embedder else ()), d.characters, format_time(d.added_at)) for d in found
        ]
        print_table(columns, rows)
    if missing:
        count = sum(missing.values())
        print_line(f"{count} passages have no vector of the configured model; run: spade-coreason knowledge reindex {agent}")


@command.command("search")
@_agent_argument
@click.argument("query")
@click.option("--limit", type=click.IntRange(1), default=5, show_default=True, help="Show at most this many passages.")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.7, show_default=True, help="The lowest score to show.")
@_knowledge_options
def search(
    agent: str,
    query: str,
    limit: int,
    threshold: float,
    file: Path | None,
    data: Path | None,
    person: str | None,
    conversation: str | None,
    as_json: bool,
) -> None:
    """Show the passages that an agent finds for a question, with scores. Works while the platform runs.

    QUERY is a question or a few words.

    \b
      spade-coreason knowledge search notes "How long can I return it?"
      spade-coreason knowledge search notes refund --threshold 0.5
    """
    run_async(_search(agent, query, limit, threshold, file, data, _reader_arguments(person, conversation), as_json))


async def _search(
    agent: str,
    query: str,
    limit: int,
    threshold: float,
    file: Path | None,
    data: Path | None,
    owner: dict[str, str],
    as_json: bool,
) -> None:
    async with _open_knowledge(file, data, agent, is_read_only=True) as knowledge:
        found = await knowledge.search(query, limit, threshold, **owner) if knowledge is not None else []
    if as_json:
        records = [{"score": f.score, "document": f.document, "passage": f.passage, "text": f.text} for f in found]
        print_json(records)
    elif not found:
        print_line(f"No passage has a score of {threshold:g} or more{'; try a lower --threshold' if threshold else ''}.")
    for hit in found if not as_json else ():
        print_line(f"{hit.score:.2f}  {hit.document} ({hit.passage})")
        print_text(hit.text, "      ", "      ")


@command.command("remove")
@_agent_argument
@click.argument("documents", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove all documents.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_knowledge_options
def remove(
    agent: str,
    documents: tuple[str, ...],
    everything: bool,
    yes: bool,
    file: Path | None,
    data: Path | None,
    person: str | None,
    conversation: str | None,
    as_json: bool,
) -> None:
    """Remove documents from the knowledge of an agent.

    DOCUMENTS are names from `knowledge list`, files, or directories of files. Works while the platform runs.

    \b
      spade-coreason knowledge remove notes handbook.pdf
      spade-coreason knowledge remove notes --all
    """
    if bool(documents) == everything:
        raise ConfigError("knowledge remove", "needs either DOCUMENTS or --all")
    run_async(_remove(agent, documents, file, data, _owner_arguments(person, conversation), yes, as_json))


async def _remove(
    agent: str,
    documents: tuple[str, ...],
    file: Path | None,
    data: Path | None,
    owner: dict[str, str],
    yes: bool,
    as_json: bool,
) -> None:
    async with _open_knowledge(file, data, agent) as knowledge:
        known = [document.name for document in await knowledge.list(**owner)] if knowledge is not None else []
        names = (
            list(dict.fromkeys(name for wanted in documents for name in _match_documents(wanted, known)))
            if documents
            else known
        )
        if names:
            confirm(f"remove {len(names)} document{'' if len(names) == 1 else 's'} of {agent}", yes or bool(documents))
        for name in names:
            await knowledge.remove(name, **owner)
        jid = knowledge.repository.agent if knowledge is not None else agent
    if as_json:
        print_json(names)
        return
    print_line(
        f"{jid}: removed {len(names)} document{'' if len(names) == 1 else 's'}." if names else f"{jid}: no documents to remove."
    )
    for name in names:
        print_line(f"  {name}")


def _match_documents(pattern: str, document_names: list[str]) -> list[str]:
    path = str(Path(pattern).absolute())
    found = [name for name in document_names if name in (pattern, path) or name.startswith(f"{path}/")]
    if not found:
        raise ConfigError("DOCUMENTS", f'there is no document "{pattern}"; `knowledge list` shows them all')
    return found


@command.command("reindex")
@_agent_argument
@config_option("config/platform.yaml, if it exists")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reindex(agent: str, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Compute missing and outdated vectors for the knowledge of an agent.

    A vector is outdated if another model computed it. Works while the platform runs. After an interruption, run the same
    command again to continue.

    \b
      spade-coreason knowledge reindex notes
    """
    run_async(_reindex(agent, file, data, as_json))


async def _reindex(agent: str, file: Path | None, data: Path | None, as_json: bool) -> None:
    async with _open_knowledge(file, data, agent) as knowledge:
        if knowledge is not None and knowledge.embedder is None:
            raise ConfigError("knowledge.embedder", "is none: knowledge is searched by words only, which needs no vectors")
        with progress_bar(1) as progress:
            progress.start_item(agent)
            count = await knowledge.reindex(progress.update_item) if knowledge is not None else 0
        jid = knowledge.repository.agent if knowledge is not None else agent
    if as_json:
        print_json({"indexed": count}, indent=None)
    else:
        print_line(f"{jid}: computed {count} vector{'' if count == 1 else 's'}.")


def _owner_arguments(person: str | None, conversation: str | None) -> dict[str, str]:
    if person and conversation:
        raise ConfigError("--conversation", "a document belongs to a person or to a conversation; leave one of them out")
    return _reader_arguments(person, conversation)


def _reader_arguments(person: str | None, conversation: str | None) -> dict[str, str]:
    return {
        **({"person": parse_person(person)} if person else {}),
        **({"conversation": conversation} if conversation else {}),
    }


@asynccontextmanager
async def _open_knowledge(
    file: Path | None, data: Path | None, agent: str, *, is_read_only: bool = False, creates_directory: bool = False
) -> AsyncIterator[Any]:
    """Open the knowledge of an agent; yield None if nothing was ever stored. A running platform makes the changes itself."""
    from ...app import KNOWLEDGE_SOCKET
    from ...config import is_platform_running

    data_dir = load_storage_settings(file, data).data_dir
    is_remote = not is_read_only and is_platform_running(data_dir) and (data_dir / KNOWLEDGE_SOCKET).exists()
    async with open_storage(
        file, data, agent, is_exclusive=not (is_read_only or is_remote), creates_directory=creates_directory
    ) as storage:
        if storage.database is None:
            yield None
            return
        from ...app import RemoteKnowledge, build_embedder
        from ...memory import Knowledge
        from ...storage import KnowledgeRepository

        store, embedder = KnowledgeRepository(storage.database, storage.only_agent), build_embedder(storage.settings)
        knowledge = RemoteKnowledge(store, embedder, data_dir) if is_remote else Knowledge(store, embedder)
        try:
            yield knowledge
        finally:
            await knowledge.close()
