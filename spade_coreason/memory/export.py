"""Export of everything that one agent stores about a person, as one JSON object: the data that `erase_person` deletes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ..contracts.times import format_rfc3339, utc_now
from ..domain.identifiers import EXPORT_SCHEMA
from ..domain.preferences import PREFERENCES_SCOPE, Preferences
from ..domain.texts.json_text import read_json
from ..storage import (
    MESSAGE_COUNT_SCOPES,
    AgentRepository,
    DocumentCollection,
    FoundConversation,
    FoundRequest,
    InboxRecord,
    KeyRepository,
    StoredConversation,
    StoredKey,
    StoredQuestion,
    TopicItem,
    find_spans,
    from_micros,
    load_bodies,
    to_micros,
)
from .erasure import find_person_records, is_entry_within
from .interaction.store import AgentInteractionMemory

VERSION = 1

_STATES = ("received", "answered", "closed")


async def export_person(
    repository: AgentRepository,
    memory: AgentInteractionMemory | None,
    owner: str,
    *,
    clock: Callable[[], datetime] = utc_now,
) -> dict[str, Any]:
    """Return everything that the agent stores about a person, ready for `json.dumps`.

    `memory` is the agent's interaction memory, if it has one. `owner` is a bare JID. Times are RFC 3339 in UTC. Keys:

    - `schema`, `version`, `agent`, `person`, `exported_at`.
    - `conversations`: the newest first. Each has its record, its `variables` and all stored `turns`, oldest first.
      The person's reactions to a reply are in the turn, in `meta.feedback`.
    - `variables`: those for all conversations of the person.
    - `messages_today`: the number and the bytes of the messages of the last day, which their quota counts.
    - `preferences`: the settings that the person chose.
    - `memories`: the entries of the interaction memory, by conversation id.
    - `documents`: knowledge that belongs to the person or to one of their conversations, turns included.
    - `audit`: the entries of the audit trail about the person.
    - `incidents`: the failures that the person was told of. The exceptions behind them are for the operator: they may contain
      secrets of the agent.
    - `topics`: at a topic broker, the `subscriptions` of the person, and the items that it `published`.
    - `notifications`: what the agent sent the person first in the last seven days, or will, and what a request of the person
      has sent to others; `schedules`: what is due for the person.
    - `questions`: those that the person was asked, and those of their requests: open ones, and those of the last seven days.
      One has its answer if the person gave it, or asked for it. `parked_requests`: the requests that wait for an answer; their
      durable steps are in `requests`.
    - `keys`: the keys that stand for the person at this agent, without their secrets. They are not deleted with the data.
    - `doors`: of a caller by a door, the `threads` of conversations that its client can name, and the `files` that it sent in
      the last seven days, without their data.
    - `callers`: an export for the caller of each of those keys.
    - `requests`: the messages of the last seven days that are not finished, or that ended the process. Those whose turn was
      interrupted have its durable `steps`.
    - `finished_requests`: the number of the other messages of the last seven days. Their text is in the turns.
    """
    owner, records, conversation_ids = await find_person_records(repository, owner)
    shown, entries = await repository.load_shown(owner), await memory.aget_entries() if memory is not None else {}
    topics = await repository.topics.load_of_person(owner)
    preferences = Preferences.from_stored(await repository.load_variables(PREFERENCES_SCOPE, owner))
    requests = [_export_request(record) for record in await repository.inbox.load_received_from(owner)]
    telling = [request for request in requests if request["state"] != _STATES[-1] or request.keys() - {"received_at", "state"}]
    return {
        "schema": EXPORT_SCHEMA,
        "version": VERSION,
        "agent": repository.agent,
        "person": owner,
        "exported_at": format_rfc3339(clock()),
        "conversations": [await _export_conversation(repository, record) for record in records],
        "variables": await _export_variables(repository, "person", owner),
        "messages_today": await _export_variables(repository, MESSAGE_COUNT_SCOPES["person"], owner),
        "preferences": {name: value for name, value in asdict(preferences).items() if value is not None},
        "memories": {
            name: [{"content": content, "timestamp": timestamp} for content, timestamp in entries[name]]
            for name in conversation_ids
            if name in entries
        },
        "documents": await _export_documents(repository, owner, conversation_ids),
        "audit": [row["entry"] for row in shown["audit"]],
        "incidents": shown["incidents"],
        "topics": {"subscriptions": list(topics.patterns), "published": [_export_item(item) for item in topics.published]},
        "notifications": shown["notifications"],
        "schedules": shown["schedules"],
        "tasks": shown["tasks"],
        "questions": [_export_question(one, owner) for one in await repository.questions.load_about(owner)],
        "parked_requests": shown["parked_requests"],
        "keys": [
            _export_key(key)
            for key in await KeyRepository(repository.database).load_of(owner)
            if repository.agent in (*key.agent_jids, *key.withdrawn_jids)
        ],
        "doors": await _export_door_data(repository, owner),
        "callers": [
            await export_person(repository, memory, caller, clock=clock) for caller in await repository.find_callers_of(owner)
        ],
        "requests": telling,
        "finished_requests": len(requests) - len(telling),
    }


async def export_cut(
    repository: AgentRepository, memory: AgentInteractionMemory | None, conversation: FoundConversation
) -> dict[str, Any]:
    """Return what came from a person in a conversation that belongs to an agent or a room: what `cut_conversation` erases.

    Keys: `conversation_id`, `turns`, `variables`, `memories` and `documents`, as in `export_person`.
    """
    name, spans = conversation.record.conversation_id, await find_spans(repository.database, conversation)
    entries = (await memory.aget_entries()).get(name, []) if memory is not None else []
    times = {turn.began_at for turn in conversation.turns}
    values = await repository.load_variables_of("person", conversation.record.owner, times.__contains__)
    values |= await repository.load_variables_of("conversation", name, times.__contains__)
    documents = await repository.knowledge.load_texts([DocumentCollection("conversation", name)])
    return {
        "conversation_id": name,
        "turns": [read_json(turn) for turn in await load_bodies(repository.database, conversation.turns)],
        "variables": {key: read_json(value) for key, value in values.items()},
        "memories": [
            {"content": content, "timestamp": timestamp} for content, timestamp in entries if is_entry_within(timestamp, spans)
        ],
        "documents": [
            {"name": document, "added_at": format_rfc3339(added_at), "text": text}
            for _, document, added_at, text in documents
            if to_micros(added_at) in spans and not document.startswith("turn ")
        ],
    }


async def _export_door_data(repository: AgentRepository, owner: str) -> dict[str, Any]:
    files = [
        {"name": one.name, "type": one.type, "size": one.size, "sent_at": format_rfc3339(from_micros(one.created_at))}
        for one in await repository.callers.load_files_of(owner)
    ]
    return {"threads": await repository.callers.load_threads_of(owner), "files": files}


def export_waiting(request: FoundRequest) -> dict[str, Any]:
    """Return a stored request that came from a person through an agent or a room."""
    text = None if request.request is None else read_json(request.request)
    return {"received_at": format_rfc3339(request.received_at), "request": text}


async def _export_conversation(repository: AgentRepository, record: StoredConversation) -> dict[str, Any]:
    status = record.status
    return {
        "conversation_id": record.conversation_id,
        "session_id": record.session_id,
        "state": status.state.value,
        "interaction_count": status.interaction_count,
        "max_interactions": record.max_interactions,
        "created_at": format_rfc3339(status.created_at),
        "last_interaction": format_rfc3339(status.last_interaction),
        "variables": await _export_variables(repository, "conversation", record.conversation_id),
        "turns": [read_json(turn) async for turn in repository.turns.iterate(record.id)],
    }


async def _export_variables(repository: AgentRepository, scope: str, holder: str) -> dict[str, Any]:
    return {name: read_json(value) for name, value in (await repository.load_variables(scope, holder)).items()}


async def _export_documents(repository: AgentRepository, owner: str, conversation_ids: list[str]) -> list[dict[str, Any]]:
    collections = [
        DocumentCollection("person", owner),
        *(DocumentCollection("conversation", name) for name in conversation_ids),
    ]
    return [
        {collection.scope: collection.holder, "name": name, "added_at": format_rfc3339(added_at), "text": text}
        for collection, name, added_at, text in await repository.knowledge.load_texts(collections)
    ]


def _export_request(record: InboxRecord) -> dict[str, Any]:
    request: dict[str, Any] = {"received_at": format_rfc3339(record.received_at), "state": _STATES[record.state]}
    for name, text in (("request", record.request), ("answer", record.reply)):
        if text is not None:
            request[name] = read_json(text)
    if record.steps:
        request["steps"] = [
            {"name": step.name, "use": step.number, **({} if step.result is None else {"result": read_json(step.result)})}
            for step in record.steps
        ]
    return request


def _export_key(key: StoredKey) -> dict[str, Any]:
    times = {
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "last_used_at": key.last_used_at,
    }
    named = {name: None if micros is None else format_rfc3339(from_micros(micros)) for name, micros in times.items()}
    return {"name": key.name, "agents": key.agent_jids, "created_by": key.created_by, **named}


def _export_question(question: StoredQuestion, person: str) -> dict[str, Any]:
    """Return a question. Others who were asked or who asked are not named, and the code of an approval is no one's to read."""
    is_request, is_answer = question.requester == person, question.decided_by == person
    answer = None if question.answer is None or not (is_request or is_answer) else read_json(question.answer)
    return {
        "question_id": question.question_id,
        "kind": question.kind,
        "is_of_own_request": is_request,
        "is_answered_by_person": is_answer,
        "thread": question.thread,
        "text": question.text,
        **read_json(question.form),
        "state": question.state,
        "answer": {name: value for name, value in answer.items() if name not in ("person", "by")} if answer else None,
        "created_at": format_rfc3339(from_micros(question.created_at)),
        "expires_at": format_rfc3339(from_micros(question.expires_at)),
        "changed_at": format_rfc3339(from_micros(question.changed_at)),
    }


def _export_item(item: TopicItem) -> dict[str, Any]:
    return {
        "item_id": item.item_id,
        "topic": item.topic,
        "published_at": format_rfc3339(item.published_at),
        "payload": item.payload,
    }
