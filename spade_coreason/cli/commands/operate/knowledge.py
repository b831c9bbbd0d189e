"""The command `spade-coreason knowledge`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ....exceptions import ConfigError, KnowledgeError
from ...account import data_option
from ...completion import complete_agents
from ...context import CLIGroup, json_option
from ...errors import print_error
from ...operations import confirm, open_platform, parse_person, print_stopped, yes_option
from ...settings import config_option, load_storage_settings
from ...terminal.console import format_timestamp, print_json, print_line, print_table, print_text, progress_bar

_PATH = click.Path(path_type=Path)


def _knowledge_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `-c FILE`, `--data DIR`, `--person`, `--conversation` and `--json`."""
    for option in (
        json_option("Print JSON."),
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
    from ....memory import find_files, read_document
    from ....operations.knowledge import AddDocument, OfKnowledge, add_document, list_documents

    owner = _owner_arguments(person, conversation)
    files = list(find_files(paths, load_storage_settings(file, data).data_dir))
    if not files:
        raise KnowledgeError(f"{', '.join(map(str, paths))}: contains no text, Markdown or PDF files")
    records: list[dict[str, str]] = []
    with open_platform(file, data, changes=True, creates_directory=True) as platform, progress_bar(len(files)) as progress:
        jid = platform.perform(list_documents, OfKnowledge(agent=agent, **owner)).agent
        is_complete = True
        for path in files:
            progress.start_item(path.name)
            try:
                document = read_document(path)
                contents = {"text": document.text, "is_markdown": document.is_markdown}
                wanted = AddDocument(agent=jid, name=str(path.absolute()), **contents, **owner)
                added = platform.perform(add_document, wanted, progress.update_item)
                outcome, is_complete = added.outcome, added.is_complete
            except (KnowledgeError, ConfigError) as error:  # the other files are still added
                if isinstance(error, ConfigError) and error.place:
                    raise  # it concerns all files
                print_error(error if isinstance(error, KnowledgeError) else KnowledgeError(f"{path}: {error}"))
                outcome = "failed"
            records.append({"document": str(path.absolute()), "outcome": outcome})
            progress.finish_item()
            if not is_complete or platform.was_interrupted:
                is_complete = False
                break
    if as_json:
        print_json(records)
    else:
        counts = Counter(record["outcome"] for record in records)
        parts = [f"{counts[kind]} {kind}" for kind in ("new", "changed", "same", "failed") if counts[kind]]
        print_line(f"{jid}: {len(records)} document{'' if len(records) == 1 else 's'}: {', '.join(parts)}.")
    if not is_complete:
        return print_stopped()
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
    from ....operations.knowledge import OfKnowledge, list_documents

    with open_platform(file, data) as platform:
        found = platform.perform(list_documents, OfKnowledge(agent=agent, **_owner_arguments(person, conversation)))
    if as_json:
        print_json([asdict(document) for document in found.documents])
        return
    if not found.documents:
        print_line("No documents.")
    else:
        columns = ("document", "passages", *(("indexed",) if found.has_vectors else ()), "characters", "added")
        rows = []
        for one in found.documents:
            indexed = (one.indexed,) if found.has_vectors else ()
            rows.append((one.document, one.passages, *indexed, one.characters, format_timestamp(one.added_at)))
        print_table(columns, rows)
    if found.missing:
        remedy = f"run: spade-coreason knowledge reindex {agent}"
        print_line(f"{found.missing} passages have no vector of the configured model; {remedy}")


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
    from ....operations.knowledge import SearchKnowledge, search_knowledge

    owner = _reader_arguments(person, conversation)
    with open_platform(file, data) as platform:
        wanted = SearchKnowledge(agent=agent, query=query, limit=limit, threshold=threshold, **owner)
        found = platform.perform(search_knowledge, wanted)
    if as_json:
        print_json([asdict(hit) for hit in found])
    elif not found:
        print_line(f"No passage has a score of {threshold:g} or more{'; try a lower --threshold' if threshold else ''}.")
    for hit in found if not as_json else ():
        print_line(f"{hit.score:.2f}  {hit.document} ({hit.passage})")
        print_text(hit.text, "      ", "      ")


@command.command("remove")
@_agent_argument
@click.argument("documents", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove all documents.")
@yes_option
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
) -> int:
    """Remove documents from the knowledge of an agent.

    DOCUMENTS are names from `knowledge list`, files, or directories of files. Works while the platform runs.

    \b
      spade-coreason knowledge remove notes handbook.pdf
      spade-coreason knowledge remove notes --all
    """
    if bool(documents) == everything:
        raise ConfigError("knowledge remove", "needs either DOCUMENTS or --all")

    from ....operations.knowledge import OfKnowledge, RemoveDocuments, list_documents, remove_documents

    owner = _owner_arguments(person, conversation)
    is_complete = True
    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(list_documents, OfKnowledge(agent=agent, **owner))
        known = [document.document for document in found.documents]
        names = list(dict.fromkeys(name for one in documents for name in _match_documents(one, known))) or known
        if names:
            confirm(f"remove {len(names)} document{'' if len(names) == 1 else 's'} of {agent}", yes or bool(documents))
            with progress_bar(1) as progress:
                progress.start_item("removing")
                wanted = RemoveDocuments(agent=agent, names=names, **owner)
                removed = platform.perform(remove_documents, wanted, progress.update_item)
            names, is_complete = removed.documents, removed.is_complete
    if as_json:
        print_json(names)
    else:
        count = f"removed {len(names)} document{'' if len(names) == 1 else 's'}." if names else "no documents to remove."
        print_line(f"{found.agent}: {count}")
        for name in names:
            print_line(f"  {name}")
    return 0 if is_complete else print_stopped()


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
@json_option("Print JSON.")
def reindex(agent: str, file: Path | None, data: Path | None, as_json: bool) -> int:
    """Compute missing and outdated vectors for the knowledge of an agent.

    A vector is outdated if another model computed it. Works while the platform runs. After an interruption, run the same
    command again to continue.

    \b
      spade-coreason knowledge reindex notes
    """
    from ....operations.knowledge import OfAgent, reindex_knowledge

    with open_platform(file, data, changes=True) as platform, progress_bar(1) as progress:
        progress.start_item(agent)
        found = platform.perform(reindex_knowledge, OfAgent(agent=agent), progress.update_item)
    if as_json:
        print_json({"indexed": found.vectors}, indent=None)
    else:
        print_line(f"{found.agent}: computed {found.vectors} vector{'' if found.vectors == 1 else 's'}.")
    return 0 if found.is_complete else print_stopped()


def _owner_arguments(person: str | None, conversation: str | None) -> dict[str, str]:
    if person and conversation:
        raise ConfigError("--conversation", "a document belongs to a person or to a conversation; leave one of them out")
    return _reader_arguments(person, conversation)


def _reader_arguments(person: str | None, conversation: str | None) -> dict[str, str]:
    return {
        **({"person": parse_person(person)} if person else {}),
        **({"conversation": conversation} if conversation else {}),
    }
