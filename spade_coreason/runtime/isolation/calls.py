"""The calls of an agent's process that wait for an answer: reads of the session, peers, knowledge, usage and files."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast
from uuid import UUID, uuid4

from ...contracts import AgentRequest, Interaction, Missed
from ...contracts.authoring import OnUncertain
from ...domain.cards import dump_card
from ...exceptions import UploadError
from ...memory import AgentInteractionMemory, check_entry, decode_entries, encode_entry
from ..assembly import AgentParts
from ..initiative.people import check_address, check_thread, dump_blocks, load_blocks
from ..peers.peers import CURRENT_REQUEST
from ..turns.steps import JournalAccess
from .description import load_when
from .turns import OpenTurn

MAX_UPLOAD_BYTES = 100 * 1024 * 1024
"""The largest file that an agent in a process of its own can upload."""
_EXCHANGED_NAME = re.compile(r"[0-9a-f]{32}")

SendEvent: TypeAlias = Callable[..., None]


class ChildCalls:
    """The calls that the process of one agent may make. They use the parts that the agent would have in this process."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self.directory = Path(tempfile.mkdtemp(prefix="spade-coreason-files-"))
        """A directory of this user alone. A file on its way to the server is handed over there."""
        self._upload_lock = asyncio.Lock()
        usage = parts.usage
        self._functions: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
            "usage.of_person": usage.of_person,
            "usage.of_agent": usage.of_agent,
            "usage.of_conversation": usage.of_conversation,
            "memory.read": self._read_memory,
            "memory.list": self._list_memory,
            "memory.add": self._add_memory,
            "memory.remove": self._remove_memory,
            "memory.remove_entries": self._remove_entries,
            "memory.merge": self._merge_memory,
            "knowledge.remove": self._remove,
            "knowledge.list": self._list,
            "knowledge.search": self._search,
            "knowledge.missing": parts.knowledge.missing,
            "knowledge.add_turns": self._add_turns,
            "peers.find": self._find,
            "peers.tell": self._tell,
            "people.notify": self._notify,
            "people.find": self._find_notification,
        }
        self._with_events: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
            "knowledge.add": self._add,
            "knowledge.reindex": parts.knowledge.reindex,
            "peers.stream": self._stream,
            "upload": self._upload,
        }
        self._of_turn: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
            "history": _history,
            "window": _window,
            "recall": _recall,
            "get": _get,
            "audit": _audit,
            "open_step": _open_step,
            "close_step": _close_step,
            "remind": _remind,
            "later": _later,
            "cancel_schedule": _cancel_schedule,
            "schedules": _schedules,
        }

    def start(self, name: str, args: list[Any], turn: OpenTurn | None, send_event: SendEvent) -> Coroutine[Any, Any, object]:
        """Return the work of a call. KeyError or TypeError if there is no such call."""
        if (of_turn := self._of_turn.get(name)) is not None:
            if turn is None or turn.session is None:
                raise TypeError("it needs a turn")
            return of_turn(turn, *args)
        if (with_events := self._with_events.get(name)) is not None:
            return with_events(send_event, *args)
        return self._functions[name](*args)

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    # Interaction memory

    def _get_memory(self) -> AgentInteractionMemory:
        if self._parts.memory is None:
            raise TypeError("the agent has no interaction memory")
        return self._parts.memory()

    async def _read_memory(self, conversation_id: str) -> str:
        store = self._get_memory().store
        return (await store.run(partial(store.read_lines, conversation_id))).decode()

    async def _list_memory(self) -> list[str]:
        return await self._get_memory().aget_all_conversations()

    async def _add_memory(self, conversation_id: str, line: str) -> None:
        [entry] = decode_entries(line.encode())
        await self._get_memory().aadd_information(conversation_id, entry["content"])

    async def _remove_memory(self, conversation_ids: list[str]) -> int:
        return await self._get_memory().aclear_conversations(conversation_ids)

    async def _remove_entries(self, conversation_id: str, chosen: list[list[str]]) -> int:
        store = self._get_memory().store
        return await store.run(
            partial(store.remove_entries, conversation_id, lambda entry: [entry["content"], entry["timestamp"]] in chosen)
        )

    async def _merge_memory(self, lines_by_conversation: dict[str, str]) -> int:
        checked = {
            name: bytearray().join(encode_entry(check_entry(entry)) for entry in decode_entries(lines.encode()))
            for name, lines in lines_by_conversation.items()
        }
        return await self._get_memory().amerge(checked)

    # Peers

    async def _stream(
        self,
        send_event: SendEvent,
        jid: str,
        request: dict[str, Any],
        timeout_s: float,
        origin: dict[str, Any] | None,
        options: dict[str, bool],
    ) -> None:
        _set_current_request(origin)
        asked = AgentRequest.model_validate(request)
        async for event in self._parts.peers.stream(jid, asked, timeout_s, **options):
            send_event(event.type, event.data)

    async def _find(
        self,
        capability: str | None,
        text: str | None,
        accepts: dict[str, Any] | None,
        timeout_s: float,
        origin: dict[str, Any] | None,
    ) -> object:
        _set_current_request(origin)
        found = await self._parts.peers.find(capability=capability, text=text, accepts=accepts, timeout=timeout_s)
        return [dump_card(card) for card in found]

    async def _tell(self, jid: str, request: dict[str, Any], origin: dict[str, Any] | None) -> None:
        _set_current_request(origin)
        await self._parts.peers.tell(jid, AgentRequest.model_validate(request))

    # People

    async def _notify(self, notification_id: str, person: str, thread: str | None, content: str, root: str) -> object:
        checked = str(UUID(notification_id)), check_address(person), check_thread(thread), dump_blocks(load_blocks(content))
        return await self._parts.get_notifier().notify(*checked, check_address(root) if root else "")

    async def _find_notification(self, notification_id: str) -> object:
        return await self._parts.get_notifier().find(str(notification_id))  # without one of this id, `outcome` says so

    # Knowledge

    async def _add(self, send_event: SendEvent, text: str, name: str, owner: dict[str, Any], is_markdown: bool) -> str:
        return await self._parts.knowledge.add(text, name, **owner, is_markdown=is_markdown, progress=send_event)

    async def _remove(self, name: str, owner: dict[str, Any]) -> bool:
        return await self._parts.knowledge.remove(name, **owner)

    async def _list(self, owner: dict[str, Any]) -> object:
        return await self._parts.knowledge.list(**owner)

    async def _search(self, query: str, limit: int, threshold: float, owner: dict[str, Any]) -> object:
        return await self._parts.knowledge.search(query, limit, threshold, **owner)

    async def _add_turns(self, conversation: str, turns: list[tuple[int, dict[str, Any]]]) -> None:
        numbered = [(number, Interaction.model_validate(turn)) for number, turn in turns]
        await self._parts.knowledge.add_turns(conversation, numbered)

    # Files

    async def _upload(self, send_event: SendEvent, file: str, name: str, media_type: str) -> str:
        if not _EXCHANGED_NAME.fullmatch(file):
            raise UploadError(name, "it was not handed over")
        path = self.directory / file
        try:
            async with self._upload_lock:  # one at a time, because each is in memory
                data = await asyncio.to_thread(_read_file, path)
                if data is None:
                    raise UploadError(name, f"it is not a file of at most {MAX_UPLOAD_BYTES:,} bytes")
                return await self._parts.files.upload(name, data, media_type, send_event)
        finally:
            with suppress(OSError):
                path.unlink()


def _read_file(path: Path) -> bytes | None:
    try:
        if path.is_symlink() or not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(MAX_UPLOAD_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_UPLOAD_BYTES else None


def _set_current_request(origin: dict[str, Any] | None) -> None:
    """Let requests of this task tell whose request they pass on, through how many agents; None outside of a turn."""
    if origin is not None:
        CURRENT_REQUEST.set(AgentRequest(session_id=uuid4(), payload={}, metadata=origin))


# Of a turn

_dump_turn = partial(Interaction.model_dump, mode="json", by_alias=True)


async def _history(turn: OpenTurn, limit: int, offset: int) -> object:
    return [_dump_turn(found) for found in await _session(turn).history(limit, offset)]


async def _window(turn: OpenTurn) -> object:
    return [_dump_turn(found) for found in await _session(turn).window()]


async def _recall(turn: OpenTurn, query: str, limit: int, threshold: float) -> object:
    return await _session(turn).recall(query, limit, threshold)


async def _get(turn: OpenTurn, key: str) -> object:
    missing = object()
    value = await _session(turn).get(key, missing)
    return [] if value is missing else [value]


async def _remind(turn: OpenTurn, when: Any, payload: Any, missed: Missed) -> object:
    return await _session(turn).remind(load_when(when), payload, missed=missed)


async def _later(turn: OpenTurn, payload: Any) -> object:
    return await _session(turn).later(payload)


async def _cancel_schedule(turn: OpenTurn, schedule_id: str) -> object:
    return await _session(turn).cancel_schedule(str(schedule_id))


async def _schedules(turn: OpenTurn) -> object:
    return await _session(turn).schedules()


async def _audit(turn: OpenTurn, actor: str, action: str, resource: str, success: bool) -> None:
    await cast(Any, turn.response).audit(actor, action, resource, success)


async def _open_step(turn: OpenTurn, name: str, args: list[Any], on_uncertain: OnUncertain) -> object:
    step = await _journal(turn).open_step(name, args, on_uncertain)
    if not step.is_finished:
        turn.steps[step.name, step.number] = step
    return step.number, step.arguments_hash, step.key, step.result_text


async def _close_step(turn: OpenTurn, name: str, number: int, result_text: str) -> None:
    step = turn.steps.pop((name, number))
    await _journal(turn).close_step(step, result_text)


def _journal(turn: OpenTurn) -> JournalAccess:
    if turn.journal is None:
        raise RuntimeError("there is no turn with durable steps")
    return turn.journal


def _session(turn: OpenTurn) -> Any:
    return turn.session
