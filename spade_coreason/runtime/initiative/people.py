"""People: how an agent writes first, to a person or a room."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4, uuid5

from ...contracts import AgentRequest, AnyBlock, Notification
from ...domain.callers import is_caller
from ...domain.identifiers import NOTIFICATION_NAMESPACE
from ...domain.jid import bare_jid, parse_jid
from ...domain.messages import EVERY, MAX_ID_CHARACTERS
from ...domain.topics import PUBLISHER, ROOT_SENDER
from ..steps.current import CURRENT_JOURNAL, CURRENT_REQUEST
from .notifications import AgentNotifications, dump_blocks

NAME_A_PERSON = "name a person, with their JID"


class People:
    """The people and rooms that an agent writes to without being asked: the parameter `people` of its constructor."""

    def __init__(self, agent: str, notifications: AgentNotifications) -> None:
        self._agent = agent
        self._notifications = notifications

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
            created.append(await self._notifications.notify(own_id or idempotency_key, to, thread, content, root))
            return created[0].id

        journal = CURRENT_JOURNAL.get()
        if journal is None or journal.is_closed:
            await create(person, blocks, thread, key, str(uuid4()))
            return created[0]
        notification_id = await journal.run_once("people.notify", create, (person, blocks, thread, key), "retry")
        return created[0] if created else await self.outcome(notification_id)

    async def outcome(self, notification_id: str | UUID) -> Notification:
        """Return what became of a notification. LookupError if there is none, or none any more."""
        found = await self._notifications.find(str(notification_id))
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
