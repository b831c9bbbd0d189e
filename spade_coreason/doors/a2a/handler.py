"""The operations of the protocol on one agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC
from typing import Any, NoReturn
from uuid import UUID, uuid4
from weakref import WeakValueDictionary

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import a2a_pb2
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE, MAX_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.proto_utils import validate_proto_required_fields

from ...contracts.json_schema import check_for
from ...contracts.times import utc_now
from ...domain.identifiers import digest_request
from ...domain.texts.error_chain import describe_error_chain
from ...domain.texts.json_text import dump_json
from ...exceptions import StoreError
from ...storage import DoorThread, KnownRequest
from ..agents import DoorAgent
from ..caller import Caller
from ..errors import HttpError
from ..files import store_files
from ..streaming import wait_while_connected
from .live_tasks import LiveTask, LiveTasks
from .messages import MessageContent, check_id, derive_task_id, make_message, read_content, read_metadata, read_value
from .progress import TERMINAL, TaskProgress, Update
from .stored_tasks import THREAD_PREFIX, StoredTasks, TaskFilter

log = logging.getLogger(__name__)

CALLER = "caller"
"""The key of the caller in the state of a call."""
REQUEST = "request"
"""The key of the HTTP request there."""


class AgentHandler(RequestHandler):
    """The operations of A2A on one agent. Each sees the tasks of the caller only."""

    def __init__(self, agent: DoorAgent, public_url: str) -> None:
        self._agent = agent
        self._public_url = public_url
        self._live = LiveTasks(agent)
        self._stored = StoredTasks(agent)
        self._beginnings = WeakValueDictionary[UUID, asyncio.Lock]()
        """A lock for each task that is about to begin."""

    # Messages

    async def on_message_send(self, params: a2a_pb2.SendMessageRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """Answer with the task, once its request is stored; by default once it is over or waits for an answer."""
        configuration = params.configuration
        length = _read_length(configuration)
        with self._failures():
            sent = await self._send(params, _caller_of(context))
            if isinstance(sent, LiveTask):
                if not configuration.return_immediately:
                    # The task goes on without its client, which must not hold a place among the requests of its key.
                    await wait_while_connected(context.state[REQUEST], sent.wait_until_settled())
                sent = sent.progress.snapshot()
        return _cut_history(sent, length)

    async def on_message_send_stream(
        self, params: a2a_pb2.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Update]:
        """Yield the task, once its request is stored, and then its updates until it is over or asks the caller."""
        with self._failures():
            sent = await self._send(params, _caller_of(context))
            if isinstance(sent, a2a_pb2.Task):
                yield sent
                return
            async with aclosing(_follow(sent)) as updates:
                async for update in updates:
                    yield update
                    is_status = not isinstance(update, a2a_pb2.TaskArtifactUpdateEvent)
                    if is_status and update.status.state == a2a_pb2.TASK_STATE_INPUT_REQUIRED:
                        return

    async def _send(self, params: a2a_pb2.SendMessageRequest, caller: Caller) -> LiveTask | a2a_pb2.Task:
        if params.configuration.HasField("task_push_notification_config"):
            raise PushNotificationNotSupportedError
        message = params.message
        # The SDK would look for required fields in all values, at 14 µs each. These are all that a message has.
        parts = [a2a_pb2.Part()] * bool(message.parts)
        validate_proto_required_fields(a2a_pb2.Message(message_id=message.message_id, role=message.role, parts=parts))
        check_id(message.message_id, "messageId")
        check_id(message.context_id, "contextId")
        if message.task_id:
            return await self._answer(message, caller)
        content = await check_for(caller.address, read_content, message, self._agent.manifest)
        task_id = derive_task_id(caller.address, self._agent.jid, message.message_id)
        await self._store_files(caller, task_id, content)
        digest = digest_request(content.payload, content.capability)
        async with self._beginnings.setdefault(task_id, asyncio.Lock()):  # the same message may come twice at once
            known = await self._stored.find(caller, task_id)
            if (live := self._live.find(caller, task_id)) is not None:
                _check_same(digest, live.digest)
                return live
            if known is not None:
                return await self._repeat(caller, task_id, known, digest)
            return await self._begin(caller, task_id, message, content, digest)

    async def _store_files(self, caller: Caller, task_id: UUID, content: MessageContent) -> None:
        if content.files:
            repository = self._agent.repository.callers
            content.add_attachments(await store_files(repository, caller, task_id, content.files, self._public_url))

    async def _begin(
        self, caller: Caller, task_id: UUID, message: a2a_pb2.Message, content: MessageContent, digest: bytes
    ) -> LiveTask | a2a_pb2.Task:
        """Ask the agent. The task is returned once the request is stored, or refused."""
        context_id = message.context_id or str(uuid4())
        metadata: dict[str, Any] = {"message_id": message.message_id}
        if message.metadata:
            metadata["message_metadata"] = read_metadata(message)
        if content.capability is not None:
            metadata["capability"] = content.capability
        reply = await self._agent.ask(
            caller,
            content.payload,
            request_id=task_id,
            thread=THREAD_PREFIX + context_id,
            metadata=metadata,
            waits=True,
        )
        stored = make_message(message.message_id, str(task_id), context_id, message.parts, is_user=True)
        stored.metadata.CopyFrom(message.metadata)
        progress = TaskProgress(str(task_id), context_id, stored)
        live = self._live.begin(caller, progress, digest, reply)
        if reply.stored is None:
            await live.wait_until_settled()
            if content.files:
                await self._agent.repository.callers.delete_files(caller.address, task_id)
        else:
            await reply.stored
            if await self._agent.backend.is_paused() and live.progress.status.state == a2a_pb2.TASK_STATE_SUBMITTED:
                live.pause()
        return live

    async def _repeat(self, caller: Caller, task_id: UUID, known: KnownRequest, digest: bytes) -> LiveTask | a2a_pb2.Task:
        """Return the task of a message that was sent before."""
        _check_same(digest, known.digest)
        task = await self._stored.load(caller, task_id, known)
        return task if task.status.state in TERMINAL else self._adopt(caller, task, known)

    def _adopt(self, caller: Caller, task: a2a_pb2.Task, known: KnownRequest) -> LiveTask:
        if (live := self._live.find(caller, UUID(task.id))) is not None:
            return live
        progress = TaskProgress(task.id, task.context_id, None)
        progress.history = list(task.history)
        progress.status = task.status
        return self._live.adopt(caller, progress, known.digest)

    async def _answer(self, message: a2a_pb2.Message, caller: Caller) -> LiveTask | a2a_pb2.Task:
        """Answer the question of a task."""
        found = await self._find(caller, message.task_id)
        task = found.progress.snapshot() if isinstance(found, LiveTask) else found
        if message.context_id and message.context_id != task.context_id:
            raise InvalidParamsError("contextId is not that of the task; send the message without it")
        text, request_id = _read_answer(message), UUID(task.id)
        key, body = digest_request({"answer": message.message_id}, task.id), digest_request({"answer": text}, None)
        threads = self._agent.repository.callers
        if (named := (await threads.find_threads(caller.address, [key])).get(key)) is None:
            if not isinstance(found, LiveTask):
                raise UnsupportedOperationError("the task is over; send the message without taskId, with its contextId")
            questions = await self._agent.find_questions(caller, request_id)
            if not questions:
                raise UnsupportedOperationError(
                    "the task does not wait for an answer of yours; send the message without taskId"
                )
            # It is stored before the answer is given: what is sent again answers the same question, or fetches.
            new = DoorThread(THREAD_PREFIX + task.context_id, task.id, body, questions[0].id)
            named = await threads.save_thread(caller.address, key, new, utc_now())
        _check_same(body, named.body or b"")
        question = await self._agent.find_question(caller, request_id, named.question or "")
        if question is None or not question.is_open:
            return found
        answered = await self._agent.answer(caller, question, text)
        if answered.outcome == "unsuitable":
            await threads.delete_threads(caller.address, [key])
            raise InvalidParamsError(f"the answer does not fit the question: {answered.problem}")
        if answered.outcome == "taken" and isinstance(found, LiveTask):
            found.go_on(make_message(message.message_id, task.id, task.context_id, message.parts, is_user=True))
        return found

    # Tasks

    async def _find(self, caller: Caller, task_id: str) -> LiveTask | a2a_pb2.Task:
        """Return a task of the caller: a live one, or one that is over. Raise TaskNotFoundError."""
        try:
            request_id = UUID(task_id)
        except ValueError:
            raise TaskNotFoundError from None
        if (live := self._live.find(caller, request_id)) is not None:
            await live.check()
            return live
        known = await self._stored.find(caller, request_id)
        if known is None:
            raise TaskNotFoundError
        task = await self._stored.load(caller, request_id, known)
        return task if task.status.state in TERMINAL else self._adopt(caller, task, known)

    @validate_request_params
    async def on_get_task(self, params: a2a_pb2.GetTaskRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """Return a task of the caller."""
        length = _read_length(params)
        with self._failures():
            found = await self._find(_caller_of(context), params.id)
        task = found.progress.snapshot() if isinstance(found, LiveTask) else found
        return _cut_history(task, length)

    @validate_request_params
    async def on_list_tasks(self, params: a2a_pb2.ListTasksRequest, context: ServerCallContext) -> a2a_pb2.ListTasksResponse:
        """Return the tasks of the caller, those changed last first."""
        length = _read_length(params)
        size = params.page_size if params.HasField("page_size") else DEFAULT_LIST_TASKS_PAGE_SIZE
        if not 1 <= size <= MAX_LIST_TASKS_PAGE_SIZE:
            raise InvalidParamsError(f"pageSize must be between 1 and {MAX_LIST_TASKS_PAGE_SIZE}")
        after = params.status_timestamp_after.ToDatetime(tzinfo=UTC) if params.HasField("status_timestamp_after") else None
        context_id = check_id(params.context_id, "contextId")
        wanted = TaskFilter(context_id, params.status, after, length != 0, params.include_artifacts)
        with self._failures():
            page = await self._stored.list_page(_caller_of(context), wanted, size, params.page_token)
        for task in page.tasks:
            _cut_history(task, length)
        return a2a_pb2.ListTasksResponse(
            tasks=page.tasks, next_page_token=page.next_token, page_size=size, total_size=page.total
        )

    @validate_request_params
    async def on_cancel_task(self, params: a2a_pb2.CancelTaskRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """Cancel a task of the caller."""
        caller = _caller_of(context)
        with self._failures():
            found = await self._find(caller, params.id)
            if isinstance(found, a2a_pb2.Task):
                raise TaskNotCancelableError("the task is over")
            if not await self._agent.requests.cancel(caller, found.request_id):
                raise TaskNotCancelableError("the task is about to end")
            found.cancel()
        return found.progress.snapshot()

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: a2a_pb2.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Update]:
        """Yield a task of the caller as it is now, and then its updates."""
        with self._failures():
            found = await self._find(_caller_of(context), params.id)
            if isinstance(found, a2a_pb2.Task):
                raise UnsupportedOperationError("the task is over; get it")
            async with aclosing(_follow(found)) as updates:
                async for update in updates:
                    yield update

    # What this server does not have

    async def _refuse_push_notifications(self, params: object, context: ServerCallContext) -> NoReturn:
        raise PushNotificationNotSupportedError

    on_create_task_push_notification_config = _refuse_push_notifications
    on_get_task_push_notification_config = _refuse_push_notifications
    on_list_task_push_notification_configs = _refuse_push_notifications
    on_delete_task_push_notification_config = _refuse_push_notifications

    async def on_get_extended_agent_card(
        self, params: a2a_pb2.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> NoReturn:
        """Refuse: the card needs a key already, so there is only one."""
        raise UnsupportedOperationError("there is no extended card: the card itself needs a key")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Answer failures with a sentence. The SDK would send the text of any exception."""
        try:
            yield
        except A2AError:
            raise
        except HttpError as error:
            raise InvalidRequestError(error.detail) from error
        except ConnectionError as error:
            raise InternalError("the agent does not run at the moment; try again in a while") from error
        except StoreError as error:
            raise InternalError("the platform cannot store anything at the moment; try again in a while") from error
        except Exception as error:
            chain = describe_error_chain(error)
            frames = "; ".join(f"{frame.function} ({frame.file}:{frame.line})" for frame in chain[-1].frames[-6:])
            log.error("%s: an A2A request failed with %s: %s", self._agent.jid, chain[-1].type, frames)
            raise InternalError("the server failed to do this; its log has the reason") from error


def _caller_of(context: ServerCallContext) -> Caller:
    caller: Caller = context.state[CALLER]
    return caller


def _check_same(digest: bytes, earlier: bytes) -> None:
    if digest != earlier:
        raise InvalidParamsError("this messageId was used for another message; send this one with a new id")


def _read_answer(message: a2a_pb2.Message) -> str:
    """Return an answer as text: JSON for data."""
    texts = [part.text for part in message.parts if part.HasField("text")]
    data = [dump_json(read_value(part.data)) for part in message.parts if part.HasField("data")]
    if len(texts) + len(data) != len(message.parts) or (texts and data) or len(data) > 1:
        raise InvalidParamsError("an answer is texts, or one JSON value")
    return data[0] if data else "\n\n".join(texts)


async def _follow(live: LiveTask) -> AsyncGenerator[Update]:
    """Yield a task as it is now, and then its updates."""
    task, follower = live.progress.snapshot(), live.follow()
    try:
        yield task
        async for update in follower:
            yield update
    finally:
        follower.close()


def _read_length(
    params: a2a_pb2.GetTaskRequest | a2a_pb2.ListTasksRequest | a2a_pb2.SendMessageConfiguration,
) -> int | None:
    """Return the most messages of the history that a caller wants; None for all."""
    if not params.HasField("history_length"):
        return None
    if params.history_length < 0:
        raise InvalidParamsError("historyLength must not be negative")
    return int(params.history_length)


def _cut_history(task: a2a_pb2.Task, length: int | None) -> a2a_pb2.Task:
    """Leave the last messages of the history."""
    if length is not None and len(task.history) > length:
        del task.history[: len(task.history) - length]
    return task
