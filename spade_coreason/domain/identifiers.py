"""The ids of conversations, sessions and requests, as pure functions of agent, sender and thread.

A thread id is chosen by its sender, so it is neither a secret nor a key. The plain thread belongs to the first sender who
uses it with an agent. For any other sender the conversation is `{thread}_{sender}` (seed: Memory API, Conversation
Threading).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias
from uuid import NAMESPACE_URL, UUID, SafeUUID, uuid4, uuid5

SESSION_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:session")

INBOX_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:inbox")

THREAD_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:thread")

STEP_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:step")

NOTIFICATION_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:notification")

SCHEDULE_NAMESPACE = uuid5(NAMESPACE_URL, "urn:spade-coreason:schedule")

EXPORT_SCHEMA = "ai.coreason.export"
"""The schema that an export of a person's data names."""

NO_DIGEST = b""

_IS_SAFE = SafeUUID.unknown  # Python 3.11 calls a function for each look at a member
_INBOX_HASH = hashlib.sha1(INBOX_NAMESPACE.bytes, usedforsecurity=False)

_LONG_CHARACTERS = 2**16

# The bits of variant and version (RFC 9562, 4).
_VERSION_MASK = ~(0xC000 << 48 | 0xF000 << 64)

_VERSION_5 = 0x8000 << 48 | 5 << 76


def derive_session_id(agent: str, owner: str, conversation_id: str) -> UUID:
    """Derive the session id of a conversation: a UUID version 5, the same after a restart."""
    return uuid5(SESSION_NAMESPACE, json.dumps([agent, owner, conversation_id], ensure_ascii=False))


def derive_inbox_key(agent: str, sender: str, stanza_id: str, content: str, server_id: str = "") -> UUID:
    """Derive the key by which the inbox finds a possible duplicate: from agent, bare sender, stanza id and content.

    The server's id takes the place of a missing stanza id. Without either, every key is different.
    """
    # XML has no NUL, so no text can be moved from one part to the next.
    if stanza_id:
        source = f"{agent}\0{sender}\0{stanza_id}\0"
    elif server_id:
        source = f"{agent}\0{sender}\0\0{server_id}\0"
    else:
        return uuid4()
    # The result of `uuid5` at half its cost: `uuid5` looks up the algorithm and checks its arguments on every call. The
    # fields of a UUID can be set in no other way.
    digest = _INBOX_HASH.copy()
    if len(content) < _LONG_CHARACTERS:
        digest.update((source + content).encode())
    else:  # without a copy
        digest.update(source.encode())
        digest.update(content.encode())
    key = object.__new__(UUID)
    object.__setattr__(key, "int", int.from_bytes(digest.digest()[:16], "big") & _VERSION_MASK | _VERSION_5)
    object.__setattr__(key, "is_safe", _IS_SAFE)
    return key


def derive_request_key(agent: str, sender: str, request_id: UUID) -> UUID:
    """Derive the inbox key of a program's request from agent, bare sender and the id that the program gave it.

    A request that is sent again has the same key, whatever else is around it.
    """
    return derive_inbox_key(agent, sender, "", "", f"\0{request_id}")


def digest_request(payload: Mapping[str, Any], capability: object) -> bytes:
    """Return a hash of what a request asks: its payload, and the capability that it names."""
    asked = json.dumps([payload, capability], ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(asked.encode()).digest()[:16]


def derive_step_key(request: UUID, name: str, number: int) -> UUID:
    """Derive the idempotency key of a durable step, the same in every run of its request.

    `request` is the inbox key of the request. `number` counts the uses of the name within its turn.
    """
    return uuid5(STEP_NAMESPACE, f"{request}\0{number}\0{name}")


@lru_cache(maxsize=4096)
def derive_thread(session: UUID, peer: str) -> str:
    """Derive the thread on which an agent asks `peer` for the conversation of `session`.

    Two people who use one agent thus have two conversations with its peer.
    """
    return str(uuid5(THREAD_NAMESPACE, json.dumps([str(session), peer])))


def is_reserved_thread(thread: str, agent: str) -> bool:
    """Return True if a thread has the form of an id built here: `{x}_{agent}` or `{thread}_{jid}`."""
    if thread.endswith(f"_{agent}"):
        return True
    head, at, host = thread.rpartition("@")
    return bool(at and host) and "_" in head and not any(c.isspace() for c in host)


def candidate_conversation_ids(thread: str | None, sender: str, agent: str) -> list[str]:
    """Return the ids that the conversation of `sender` on `thread` may have, first choice first. Both JIDs are bare."""
    own = f"{thread}_{sender}" if thread else f"{sender}_{agent}"
    contested = f"{own}_{_digest_owner(sender)}"
    if thread and not is_reserved_thread(thread, agent):
        return [thread, own, contested]
    return [own, contested]


def recover_thread(conversation_id: str, owner: str, agent: str) -> str | None:
    """Return the thread of the conversation with this id: the reverse of `candidate_conversation_ids`."""
    contested = f"_{_digest_owner(owner)}"
    for name in (conversation_id, conversation_id.removesuffix(contested)):
        for thread in (None, name, name.removesuffix(f"_{owner}")):
            if thread != "" and conversation_id in candidate_conversation_ids(thread, owner, agent):
                return thread
    return conversation_id


def _digest_owner(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()[:16]


def choose_conversation_id(candidates: Sequence[str], sender: str, owners: Mapping[str, str]) -> str | None:
    """Choose the id for `sender` among `candidates`; None if other owners have taken all of them.

    `owners` gives the owner of each id that is taken. A sender who has a later choice retains it, even if an earlier one has
    become free.
    """
    own = [candidate for candidate in candidates if owners.get(candidate) == sender]
    free = [candidate for candidate in candidates if candidate not in owners]
    return own[-1] if own else free[0] if free else None


NoticeKind: TypeAlias = Literal["question", "reminder", "end", "stuck"]
"""The news that a notification has of a question: it is asked, it still waits, it was taken back, or no one may answer it."""


def derive_notice_id(question_id: str, person: str, kind: NoticeKind) -> UUID:
    """Derive the id of the notification by which a person (a bare JID) hears of a question."""
    return uuid5(NOTIFICATION_NAMESPACE, f"{kind}\0{question_id}\0{person}")


def derive_asking_ids(question_id: str, person: str) -> list[str]:
    """Return the ids of the notifications by which a person is asked and reminded."""
    kinds: tuple[NoticeKind, ...] = ("question", "reminder")
    return [str(derive_notice_id(question_id, person, kind)) for kind in kinds]
