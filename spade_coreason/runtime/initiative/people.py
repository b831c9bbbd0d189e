"""People: how an agent writes first, to a person or a room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import UUID, uuid4, uuid5

from pydantic import TypeAdapter, ValidationError

from ...contracts import AgentRequest, AnyBlock, MarkdownBlock, Notification
from ...domain.callers import is_caller
from ...domain.identifiers import NOTIFICATION_NAMESPACE
from ...domain.jid import bare_jid, parse_jid
from ...domain.messages import EVERY, MAX_ID_CHARACTERS
from ...domain.topics import PUBLISHER, ROOT_SENDER
from ..peers.peers import CURRENT_REQUEST
from ..turns.current_journal import CURRENT_JOURNAL

NAME_A_PERSON = "name a person, with their JID"
MAX_CONTENT_BYTES = 2**18
"""The largest content of a notification, as JSON in UTF-8."""
_BLOCKS: TypeAdapter[list[AnyBlock]] = TypeAdapter(list[AnyBlock])


class NotificationSink(Protocol):
    """The receiver of notifications: the notifier of the agent."""

    async def notify(self, notification_id: str, person: str, thread: str | None, content: str, root: str) -> Notification:
        """Store a notification, unless there is one with its id, and return it."""
        ...

    async def find(self, notification_id: str) -> Notification | None:
        """Return a notification, or None."""
        ...


class People:
    """The people and rooms that an agent writes to without being asked: the parameter `people` of its constructor."""

    def __init__(self, agent: str, get_sink: Callable[[], NotificationSink]) -> None:
        self._agent = agent
        self._get_sink = get_sink

    async def notify(
        self, to: str, content: str | Sequence[AnyBlock] | AnyBlock, *, key: str | None = None, thread: str | None = None
    ) -> Notification:
        """Write to a person, or to a room that the agent has joined. It is stored when this returns, and sent when it may.

        `to` is a bare JID. `content` is a text in Markdown, or blocks. It appears in the person's conversation without a
        thread, or in that of `thread`, and its reply continues that conversation.

        In a turn this is a durable step: a turn that runs again notifies once. In a task of the agent, `key` makes a repetition
        harmless: the first notification to the person with it counts, for seven days.

        The state of what is returned is "waiting", or "refused" with the reason: the person has no access, has switched
        notifications off, or had `notifications.per_day` of them. In quiet hours it waits. `outcome` tells what became of it.

        Raise ValueError for an address or a content that cannot be sent, and StoreError if it cannot be stored.
        """
        person = check_address(to)
        _check_thread(thread)
        blocks = dump_blocks(content)
        own_id = None if key is None else str(uuid5(NOTIFICATION_NAMESPACE, f"{self._agent}\0{person}\0{key}"))
        root = find_root(CURRENT_REQUEST.get(), self._agent)
        created: list[Notification] = []

        async def create(to: str, content: str, thread: str | None, key: str | None, idempotency_key: str) -> str:
            created.append(await self._get_sink().notify(own_id or idempotency_key, to, thread, content, root))
            return created[0].id

        journal = CURRENT_JOURNAL.get()
        if journal is None or journal.is_closed:
            await create(person, blocks, thread, key, str(uuid4()))
            return created[0]
        notification_id = await journal.run_once("people.notify", create, (person, blocks, thread, key), "retry")
        return created[0] if created else await self.outcome(notification_id)

    async def outcome(self, notification_id: str | UUID) -> Notification:
        """Return what became of a notification. LookupError if there is none, or none any more."""
        found = await self._get_sink().find(str(notification_id))
        if found is None:
            raise LookupError(
                f"there is no notification {notification_id}; they are kept for seven days after their last change"
            )
        return found


def find_root(request: AgentRequest | None, agent: str) -> str:
    """Return the bare JID of the person behind a request of an agent; "" without one."""
    if request is None or EVERY in request.metadata:
        return ""
    metadata = request.metadata
    root = metadata.get("occupant") or metadata.get(ROOT_SENDER) or metadata.get(PUBLISHER) or metadata.get("sender")
    person = bare_jid(root) if isinstance(root, str) else ""
    return "" if person == agent else person


def check_address(to: str) -> str:
    """Return the bare JID of a person or a room. ValueError, which names the mistake, for anything else."""
    try:
        address = parse_jid(_check_is_no_caller(to))
    except (ValueError, AttributeError) as error:
        raise ValueError(f"people.notify: {error}") from error
    if "/" in address:
        raise ValueError(
            f"people.notify writes to a person or a room, not to one device: {to!r}; leave out the part from the / on"
        )
    return address


def _check_is_no_caller(to: str) -> str:
    if is_caller(to):
        raise ValueError(f"{to!r} is a caller of a door, which fetches replies and gets nothing else; {NAME_A_PERSON}")
    return to


def _check_thread(thread: object) -> str | None:
    """Return a thread, or None. ValueError for anything that cannot be one."""
    if thread is None or (isinstance(thread, str) and len(thread) <= MAX_ID_CHARACTERS and "\0" not in thread):
        return thread
    raise ValueError(f"people.notify: the thread is a text of at most {MAX_ID_CHARACTERS:,} characters")


def dump_blocks(content: Any) -> str:
    """Return the JSON text of a text or of blocks, for storage. ValueError if they cannot be sent."""
    if isinstance(content, str):
        content = [MarkdownBlock(content=content)]
    elif not isinstance(content, Sequence):
        content = [content]
    try:
        blocks = _BLOCKS.validate_python(list(content))
    except ValidationError as error:
        raise ValueError(f"people.notify takes a text or blocks, not {content!r:.200}: {error.error_count()} errors") from error
    if not any(block.block_type != "MARKDOWN" or block.content.strip() for block in blocks):
        raise ValueError("people.notify: there is nothing to send; give it a text")
    text = dump_reply_blocks(blocks)
    if (size := len(text.encode())) > MAX_CONTENT_BYTES:
        raise ValueError(
            f"people.notify: the content has {size:,} bytes (limit: {MAX_CONTENT_BYTES:,}); upload it and send the link"
        )
    return text


def dump_reply_blocks(blocks: Sequence[AnyBlock]) -> str:
    """Return the JSON text of the blocks of a reply, of any size, for storage."""
    # The ids of blocks are made at random: with them no two runs of a turn would be the same.
    return _BLOCKS.dump_json([block.model_copy(update={"id": UUID(int=0)}) for block in blocks]).decode()


def load_blocks(content: object) -> list[AnyBlock]:
    """Return the blocks of a stored content."""
    return _BLOCKS.validate_python(content)
