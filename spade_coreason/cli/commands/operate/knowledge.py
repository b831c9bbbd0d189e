"""The command `spade-coreason knowledge`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from ....exceptions import ConfigError, KnowledgeError
from ....operations.knowledge import list_documents
from ...completion import complete_agents
from ...errors import print_error
from ...operations import confirm, open_platform, parse_person, print_stopped, yes_option
from ...settings import load_storage_settings
from ...terminal.console import print_json, print_line, progress_bar
from ...views import make_group, make_parameters

_PATH = click.Path(path_type=Path)


command = make_group("knowledge", "knowledge", "knowledge add notes handbook.pdf docs/")


@command.command("add")
@click.argument("paths", nargs=-1, required=True, type=_PATH)
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
    from ....operations.knowledge import OfKnowledge, add_document

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
                contents = {"is_markdown": document.is_markdown}
                wanted = add_document.read_arguments(
                    {"agent": jid, "name": str(path.absolute()), "text": document.text, **contents, **owner}
                )
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


@command.command("remove")
@click.argument("documents", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove all documents.")
@yes_option
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

    from ....operations.knowledge import OfKnowledge, RemoveDocuments, remove_documents

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


for _command in (add, remove):
    _command.params[:0] = [click.Argument(["agent"], shell_complete=complete_agents), *make_parameters(list_documents)[1:]]


def _match_documents(pattern: str, document_names: list[str]) -> list[str]:
    path = str(Path(pattern).absolute())
    found = [name for name in document_names if name in (pattern, path) or name.startswith(f"{path}/")]
    if not found:
        raise ConfigError("DOCUMENTS", f'there is no document "{pattern}"; `knowledge list` shows them all')
    return found


def _owner_arguments(person: str | None, conversation: str | None) -> dict[str, str]:
    return {
        **({"person": parse_person(person)} if person else {}),
        **({"conversation": conversation} if conversation else {}),
    }
