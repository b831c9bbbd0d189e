"""`spade-coreason knowledge`"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from ...exceptions import ConfigError, KnowledgeError
from ..account import data_option
from ..completion import agents as known_agents
from ..console import bar, json_text, one_line, printable, table, when
from ..context import Group, run
from ..errors import say
from ..settings import config_option, storage_settings
from ..stored import confirm, opened

_PATH = click.Path(path_type=Path)


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`-c FILE`, `--data DIR`, `--json`, and whose knowledge it is."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--conversation", metavar="ID", help="What belongs to this conversation."),
        click.option("--person", metavar="JID", help="What belongs to this person."),
        data_option,
        config_option("config/platform.yaml, if there is one"),
    ):
        function = option(function)
    return function


_agent = click.argument("agent", shell_complete=known_agents)


@click.group("knowledge", cls=Group)
def command() -> None:
    """Give documents to agents, and see what they know.

    \b
      spade-coreason knowledge add notes handbook.pdf docs/
      spade-coreason knowledge search notes "How long can I return it?"
      spade-coreason knowledge reindex notes
    """


@command.command("add")
@_agent
@click.argument("paths", nargs=-1, required=True, type=_PATH)
@_options
def add(
    agent: str,
    paths: tuple[Path, ...],
    file: Path | None,
    data: Path | None,
    person: str | None,
    conversation: str | None,
    as_json: bool,
) -> None:
    """Give an agent files: text, Markdown and PDF.

    PATHS are files, and directories of which all are meant. Works beside a running platform, which takes them in. A file that
    is known already changes nothing, one that has changed is updated, and what was interrupted goes on where it was, by the
    same command again.

    \b
      spade-coreason knowledge add notes handbook.pdf docs/
      spade-coreason knowledge add notes contract.md --person alice@example.org
    """
    raise SystemExit(run(_add(agent, paths, file, data, _whose(person, conversation), as_json)))


async def _add(
    agent: str, paths: tuple[Path, ...], file: Path | None, data: Path | None, whose: dict[str, str], as_json: bool
) -> int:
    from ...memory import files_in

    files = list(files_in(paths, storage_settings(file, data).data_dir))
    if not files:
        raise KnowledgeError(f"{', '.join(map(str, paths))}: there are no text, Markdown or PDF files below it")
    done: list[dict[str, str]] = []
    async with _opened(file, data, agent, makes=True) as knowledge:
        with bar(len(files)) as progress:
            for path in files:
                progress.begin(path.name)
                try:
                    outcome = await knowledge.add_file(path, **whose, progress=progress.part)
                except KnowledgeError as error:  # the others are added all the same
                    say(error)
                    outcome = "failed"
                done.append({"document": str(path.absolute()), "outcome": outcome})
                progress.end()
        jid = knowledge.store.agent
    if as_json:
        print(json_text(done, indent=2))
    else:
        counts = Counter(one["outcome"] for one in done)
        parts = [f"{counts[kind]} {kind}" for kind in ("new", "changed", "same", "failed") if counts[kind]]
        print(f"{jid}: {len(done)} document{'' if len(done) == 1 else 's'}: {', '.join(parts)}.")
    return int(any(one["outcome"] == "failed" for one in done))


@command.command("list")
@_agent
@_options
def list_(
    agent: str, file: Path | None, data: Path | None, person: str | None, conversation: str | None, as_json: bool
) -> None:
    """List the documents of an agent. Works beside a running platform.

    \b
      spade-coreason knowledge list notes
    """
    run(_list(agent, file, data, _whose(person, conversation), as_json))


async def _list(agent: str, file: Path | None, data: Path | None, whose: dict[str, str], as_json: bool) -> None:
    async with _opened(file, data, agent, reads_only=True) as knowledge:
        found = await knowledge.list(**whose) if knowledge is not None else []
        missing = await knowledge.missing() if knowledge is not None else {}
    if as_json:
        from ...contracts.base import in_json

        records = [
            {
                "document": document.name,
                "passages": document.passages,
                "indexed": document.indexed,
                "characters": document.characters,
                "added_at": in_json(document.added_at),
            }
            for document in found
        ]
        print(json_text(records, indent=2))
        return
    if not found:
        print("There is nothing.")
    else:
        rows = [(d.name, d.passages, d.indexed, d.characters, when(d.added_at)) for d in found]
        table(("document", "passages", "indexed", "characters", "added"), rows)
    if missing:
        count = sum(missing.values())
        print(f"{count} passages have no vector by the configured model: spade-coreason knowledge reindex {agent}")


@command.command("search")
@_agent
@click.argument("query")
@click.option("--limit", type=click.IntRange(1), default=5, show_default=True, help="So many passages at most.")
@click.option("--threshold", type=click.FloatRange(0, 1), default=0.7, show_default=True, help="The least score.")
@_options
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
    """Show what an agent recalls for a question, with scores. Works beside a running platform.

    QUERY is the question, or some words of it.

    \b
      spade-coreason knowledge search notes "How long can I return it?"
      spade-coreason knowledge search notes refund --threshold 0.5
    """
    whose = {**({"person": person} if person else {}), **({"conversation": conversation} if conversation else {})}
    run(_search(agent, query, limit, threshold, file, data, whose, as_json))


async def _search(
    agent: str,
    query: str,
    limit: int,
    threshold: float,
    file: Path | None,
    data: Path | None,
    whose: dict[str, str],
    as_json: bool,
) -> None:
    async with _opened(file, data, agent, reads_only=True) as knowledge:
        found = await knowledge.search(query, limit, threshold, **whose) if knowledge is not None else []
    if as_json:
        records = [{"score": f.score, "document": f.document, "passage": f.passage, "text": f.text} for f in found]
        print(json_text(records, indent=2))
    elif not found:
        print(f"Nothing has a score of {threshold:g} or more{'; a lower --threshold may find some' if threshold else ''}.")
    for hit in found if not as_json else ():
        print(f"{hit.score:.2f}  {one_line(hit.document, 10_000)} ({hit.passage})")
        print("      " + printable(hit.text).replace("\n", "\n      "))


@command.command("remove")
@_agent
@click.argument("documents", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Remove all documents.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_options
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
    """Take documents away from an agent: names as `knowledge list` shows them, files, or directories of files.

    Works beside a running platform.

    \b
      spade-coreason knowledge remove notes handbook.pdf
      spade-coreason knowledge remove notes --all
    """
    if bool(documents) == everything:
        raise ConfigError("knowledge remove", "say what: DOCUMENTS or --all, one of them")
    run(_remove(agent, documents, file, data, _whose(person, conversation), yes, as_json))


async def _remove(
    agent: str,
    documents: tuple[str, ...],
    file: Path | None,
    data: Path | None,
    whose: dict[str, str],
    yes: bool,
    as_json: bool,
) -> None:
    async with _opened(file, data, agent) as knowledge:
        known = [document.name for document in await knowledge.list(**whose)] if knowledge is not None else []
        names = list(dict.fromkeys(name for wanted in documents for name in _meant(wanted, known))) if documents else known
        if names:
            confirm(f"remove {len(names)} document{'' if len(names) == 1 else 's'} of {agent}", yes or bool(documents))
        for name in names:
            await knowledge.remove(name, **whose)
        jid = knowledge.store.agent if knowledge is not None else agent
    if as_json:
        print(json_text(names, indent=2))
        return
    print(f"{jid}: removed {len(names)} document{'' if len(names) == 1 else 's'}." if names else f"{jid}: there was nothing.")
    for name in names:
        print(f"  {name}")


def _meant(wanted: str, known: list[str]) -> list[str]:
    path = str(Path(wanted).absolute())
    found = [name for name in known if name in (wanted, path) or name.startswith(f"{path}/")]
    if not found:
        raise ConfigError("DOCUMENTS", f'there is no "{wanted}"; `knowledge list` shows what there is')
    return found


@command.command("reindex")
@_agent
@config_option("config/platform.yaml, if there is one")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def reindex(agent: str, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Make the vectors that are missing or of another model, of all that an agent knows.

    Works beside a running platform. What was interrupted goes on where it was, by the same command again.

    \b
      spade-coreason knowledge reindex notes
    """
    run(_reindex(agent, file, data, as_json))


async def _reindex(agent: str, file: Path | None, data: Path | None, as_json: bool) -> None:
    async with _opened(file, data, agent) as knowledge:
        if knowledge is not None and knowledge.embedder is None:
            raise ConfigError("knowledge.embedder", "is none: knowledge is found by its words, which needs no index")
        with bar(1) as progress:
            progress.begin(agent)
            count = await knowledge.reindex(progress.part) if knowledge is not None else 0
        jid = knowledge.store.agent if knowledge is not None else agent
    print(json_text({"indexed": count}) if as_json else f"{jid}: made {count} vector{'' if count == 1 else 's'}.")


def _whose(person: str | None, conversation: str | None) -> dict[str, str]:
    if person and conversation:
        raise ConfigError("--conversation", "a document belongs to a person or to a conversation; leave one of them out")
    return {**({"person": person} if person else {}), **({"conversation": conversation} if conversation else {})}


@asynccontextmanager
async def _opened(
    file: Path | None, data: Path | None, agent: str, *, reads_only: bool = False, makes: bool = False
) -> AsyncIterator[Any]:
    """The knowledge of an agent; None where nothing was ever stored. Where a platform runs, that one changes it."""
    from ...app import SOCKET
    from ...config import is_owned

    data_dir = storage_settings(file, data).data_dir
    is_changed_there = not reads_only and is_owned(data_dir) and (data_dir / SOCKET).exists()
    async with opened(file, data, agent, alone=not (reads_only or is_changed_there), makes=makes) as storage:
        if storage.database is None:
            yield None
            return
        from ...app import Librarian, embedder_of
        from ...memory import Knowledge
        from ...storage import KnowledgeStore

        store, embedder = KnowledgeStore(storage.database, storage.only_agent), embedder_of(storage.settings)
        knowledge = Librarian(store, embedder, data_dir) if is_changed_there else Knowledge(store, embedder)
        try:
            yield knowledge
        finally:
            await knowledge.close()
