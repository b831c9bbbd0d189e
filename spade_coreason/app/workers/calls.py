"""Calls between workers: a worker asks another one to do something with an agent that it serves, or with itself."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast, get_type_hints

from pydantic import ValidationError

from ...concurrency import Tasks, cancel_tasks
from ...contracts import QuestionState
from ...domain.quotas import QuotaUsage
from ...exceptions import CoReasonError, StoreError
from ...operations.host import RunningAgent, find_log_level, set_log_level
from ...operations.rpc.form import FLAG, Method, OtherFormError, dump_error
from ...operations.status import AgentStatus, RunningTurn, WebStatus
from ...storage import (
    OTHER_WORKER,
    CallRepository,
    CutOffTurn,
    ErasureReport,
    FoundConversation,
    PendingRequest,
    Settled,
    StoredConversation,
    StoredQuestion,
    WorkerCall,
)
from .served_replies import ServedAgentBackend

log = logging.getLogger(__name__)

_CHECK_S = 1.0
_STOP_S = 0.2
"""The time between two looks of a caller for a wish to end early."""
_MOVES = 30
_MOVE_S = 0.2
"""The most times that a caller asks again, and the time in between, while an agent goes from one worker to another."""
TAKEOVER_S = 10.0
"""The time for which a caller at a door waits for the next worker of its agent."""
_MOVED = '{"moved":true}'
"""The answer of a worker that does not serve the agent, or not yet."""
WORKER = "a worker"
"""A worker itself in an error, in place of the JID of an agent."""
_UNDONE_BY = {"agent.erasure.refuse_person": "agent.erasure.admit_person", "agent.hold_turns": "agent.release_turns"}
"""The methods whose effect lasts until another one is called: it is, once the caller has ended without that."""
_TYPES = {
    kind.__name__: kind
    for kind in (
        CutOffTurn,
        ErasureReport,
        FoundConversation,
        PendingRequest,
        QuestionState,
        QuotaUsage,
        RunningTurn,
        Settled,
        StoredConversation,
        StoredQuestion,
    )
}
"""The types in the signatures of `RunningAgent`, whose module imports them for type checkers only."""


class WorkerState(NamedTuple):
    """The state of a worker as it tells it: the status of its agents, its process id, and its HTTP server."""

    pid: int
    agents: list[AgentStatus]
    web: WebStatus | None


class RunningWorker(Protocol):
    """A worker as others ask it."""

    def report(self) -> Awaitable[WorkerState]:
        """Return the state of the worker and its agents."""
        ...

    async def find_log_level(self) -> str:
        """Return the level of the log of the worker."""
        ...

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of the worker."""
        ...


class ThisWorker(NamedTuple):
    """This worker as others ask it (`RunningWorker`)."""

    report: Callable[[], Awaitable[WorkerState]]

    async def find_log_level(self) -> str:
        """Return the level of the log of this process."""
        return find_log_level()

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of this process."""
        set_log_level(level)


class CallTargets(NamedTuple):
    """The targets of calls from other workers: a function for each kind, which returns None for one that runs elsewhere.

    A call names the kind before its method, such as `agent.find_pause`. A function gets the bare JID of an agent, that of
    workers "".
    """

    agent: Callable[[str], RunningAgent | None] = lambda agent: None
    worker: Callable[[str], RunningWorker | None] = lambda agent: None
    backend: Callable[[str], ServedAgentBackend | None] = lambda agent: None


class Kinds(Protocol):
    """The kinds of targets."""

    agent: RunningAgent
    worker: RunningWorker
    backend: ServedAgentBackend


@cache
def _methods(protocol: type) -> Mapping[str, Method]:
    """Return the methods of a protocol by their names; those of its parts are named `part.method`."""
    functions = inspect.getmembers(protocol, inspect.isfunction)
    own = {name: Method.of(function, _TYPES) for name, function in functions if not name.startswith("_")}
    parts = get_type_hints(protocol).items()
    return own | {f"{part}.{name}": method for part, kind in parts for name, method in _methods(kind).items()}


class _MovedError(Exception):
    """The worker that was asked does not serve the agent, or not yet."""


class WorkerCalls:
    """The calls that this worker makes and answers.

    Every `check_s` seconds a caller looks for its answer without being told, and for a worker that has ended.
    """

    def __init__(self, calls: CallRepository, targets: CallTargets, check_s: float = _CHECK_S) -> None:
        self._calls = calls
        self._check_s = check_s
        self._targets = targets
        self._wake = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[str | None]] = {}
        """The calls of this worker that are stored and have no answer yet. None is that of a worker that has ended."""
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._stopped: set[int] = set()
        """The calls to this worker that run, and those of them that are to end early."""
        self._lasting: dict[tuple[int, str, str, str], object] = {}
        """The calls that undo what lasts, for a caller that ends: caller, agent, method, arguments; and their target."""
        self._undoing = Tasks()
        self._task = asyncio.create_task(self._run(), name="worker-calls")

    def wake(self) -> None:
        """Look for calls and answers."""
        self._wake.set()

    async def close(self) -> None:
        """Cancel all calls."""
        await asyncio.gather(cancel_tasks(self._task, *self._serving.values()), self._undoing.stop(), return_exceptions=True)

    # The side of the caller

    def agent(self, agent: str) -> RunningAgent:
        """Return an agent (a bare JID) that another worker serves. If it changes its worker, the new one is asked."""
        return cast(RunningAgent, _Remote(agent, _methods(Kinds), partial(self._ask_agent, agent, []), "agent."))

    def backend(self, agent: str) -> ServedAgentBackend:
        """Return the backend of an agent (a bare JID) that another worker serves, for doors.

        If it changes its worker, the new one is asked. ConnectionError if there is none for some seconds. A method may have
        been called at a worker that has ended since.
        """
        return cast(ServedAgentBackend, _Remote(agent, _methods(Kinds), partial(self._ask_backend, agent), "backend."))

    def worker(self, worker: int) -> RunningWorker:
        """Return another worker."""
        return cast(RunningWorker, _Remote(WORKER, _methods(Kinds), partial(self._ask_worker, worker), "worker."))

    async def _ask_agent(
        self, agent: str, bound: list[int], method: str, arguments: str, should_go_on: Callable[[], bool] | None
    ) -> str:
        """Ask the worker that serves an agent. What lasts binds all that follows to the same worker, the one in `bound`."""
        for _ in range(_MOVES):
            with suppress(_MovedError):
                add = partial(self._calls.ask_agent, agent=agent, only=bound[0] if bound else None)
                worker, result = await self._ask(add, agent, method, arguments, should_go_on)
                if method in _UNDONE_BY and not bound:
                    bound.append(worker)
                return result
            await asyncio.sleep(_MOVE_S)
        raise StoreError(
            f"{agent}: no worker serves it at the moment; run the same again once `spade-coreason status` shows it online"
        )

    async def _ask_backend(self, agent: str, method: str, arguments: str, should_go_on: Callable[[], bool] | None) -> str:
        deadline = asyncio.get_running_loop().time() + TAKEOVER_S
        while True:
            with suppress(_MovedError, WorkerEndedError):
                return (await self._ask(partial(self._calls.ask_agent, agent=agent), agent, method, arguments, None))[1]
            if asyncio.get_running_loop().time() > deadline:
                raise ConnectionError(f"{agent} does not run at the moment")
            await asyncio.sleep(_MOVE_S)

    async def _ask_worker(self, worker: int, method: str, arguments: str, should_go_on: Callable[[], bool] | None) -> str:
        try:
            add = partial(self._calls.ask_worker, worker=worker)
            return (await self._ask(add, WORKER, method, arguments, should_go_on))[1]
        except _MovedError:
            raise WorkerEndedError("the worker has ended") from None

    async def _ask(
        self,
        add: Callable[..., Awaitable[int | None]],
        what: str,
        method: str,
        arguments: str,
        should_go_on: Callable[[], bool] | None,
    ) -> tuple[int, str]:
        """Call a method. Return the worker that was asked, and its answer. Raise _MovedError if nothing was done."""
        call = self._calls.row_ids.next()
        is_stored, is_stopped = True, False
        try:
            worker = await add(call, method=method, arguments=arguments)
            is_stored = worker not in (None, OTHER_WORKER)
            if worker is None:
                raise _MovedError
            if worker == OTHER_WORKER:
                raise StoreError(f"{what}: another worker serves it now; run the same again, which does what is left")
            answered = self._waiting[call] = asyncio.get_running_loop().create_future()
            while not answered.done():
                self._wake.set()  # the answer may be there before it is waited for
                await asyncio.wait([answered], timeout=self._check_s if should_go_on is None else _STOP_S)
                if should_go_on is not None and not is_stopped and not should_go_on():
                    is_stopped = True
                    await self._calls.stop(call, worker)
            answer = answered.result()
        finally:
            self._waiting.pop(call, None)
            if is_stored:  # also if it is cancelled before it knows that
                with suppress(StoreError):
                    self._calls.delete(call)
        if answer is None:
            raise WorkerEndedError(
                f"{what}: the worker that was asked has ended before it answered; run the same again, which does what is left"
            )
        if answer == _MOVED:
            raise _MovedError
        return worker, answer

    # The side of the worker that is asked

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._look()
                continue
            except StoreError as error:
                log.debug("the calls of other workers cannot be read: %s", error)
            except Exception:
                log.exception("the calls of other workers cannot be answered; it tries again")
            await asyncio.sleep(_STOP_S)
            self._wake.set()

    async def _look(self) -> None:
        waiting, serving, callers = set(self._waiting), set(self._serving), {key[0] for key in self._lasting}
        found, alive = await self._calls.read(callers)
        asked = {call.id for call, _ in found if call.worker == self._calls.worker}
        for call, is_expired in found:
            if (
                call.caller == self._calls.worker
                and (answered := self._waiting.get(call.id)) is not None
                and not answered.done()
            ):
                if call.answer is not None:
                    answered.set_result(call.answer)
                elif is_expired:
                    answered.set_result(None)
            if call.worker == self._calls.worker and call.answer is None:
                if call.is_stopped:
                    self._stopped.add(call.id)
                if call.id not in self._serving and call.id not in serving:
                    self._serving[call.id] = asyncio.create_task(self._serve(call))
        for lost in waiting - {call.id for call, _ in found}:
            if (answered := self._waiting.get(lost)) is not None and not answered.done():
                answered.set_result(None)
        for cancelled in serving - asked:
            if (task := self._serving.get(cancelled)) is not None:
                task.cancel()
        for key in [key for key in self._lasting if key[0] in callers - alive]:
            self._undoing.start(self._undo(*key[1:], self._lasting.pop(key)))

    async def _undo(self, agent: str, method: str, arguments: str, target: object) -> None:
        try:
            undoing = _methods(Kinds)[method]
            await _call(undoing, target, method, undoing.arguments.validate_json(arguments), None)
        except Exception:
            log.exception("%s: %s failed after the end of the worker that had asked", agent, method)

    async def _serve(self, call: WorkerCall) -> None:
        try:
            answer = await self._answer(call)
            while True:  # without its answer, the call would be made again
                try:
                    await self._calls.answer(call, answer)
                    break
                except StoreError as error:
                    log.debug("the answer to another worker cannot be stored yet: %s", error)
                    await asyncio.sleep(_STOP_S)
        finally:
            del self._serving[call.id]
            self._stopped.discard(call.id)

    async def _answer(self, call: WorkerCall) -> str:
        try:
            if (method := _methods(Kinds).get(call.method)) is None:
                raise OtherVersionError(call.agent or WORKER, call.method)
            kind = call.method.partition(".")[0]
            if (target := getattr(self._targets, kind)(call.agent)) is None:
                return _MOVED
            try:
                arguments = method.arguments.validate_json(call.arguments)
            except ValidationError:
                raise OtherVersionError(call.agent or WORKER, call.method) from None
            try:
                result = await _call(method, target, call.method, arguments, lambda: call.id not in self._stopped)
            except ValueError as error:
                return dump_error(error).decode()
            self._note_lasting(call, target, result)
            return method.answer.dump(result).decode()
        except CoReasonError as error:
            return dump_error(error).decode()
        except Exception as error:
            if kind == "backend" and isinstance(error, ConnectionError):  # the agent is about to start or to stop
                return _MOVED
            log.exception("%s: the call %s of another worker failed", call.agent, call.method)
            return dump_error(CoReasonError("the worker failed to do this; its log has the reason")).decode()

    def _note_lasting(self, call: WorkerCall, target: object, result: object) -> None:
        if (undoing := _UNDONE_BY.get(call.method)) is not None and result is not False:
            self._lasting[call.caller, call.agent, undoing, call.arguments] = target
        self._lasting.pop((call.caller, call.agent, call.method, call.arguments), None)


class WorkerEndedError(StoreError):
    """The worker that was asked has ended before it answered. The same call again does what is left."""


class OtherVersionError(StoreError):
    """A call to a worker of another version, which does not know the method or its arguments, or answers in another form."""

    def __init__(self, what: str, method: str) -> None:
        super().__init__(
            f"{what}: its worker has another version, and the two do not understand each other ({method}); finish the upgrade,"
            " so that all workers have one version, and try again"
        )


class _Remote:
    """Something in another worker: each method is a call. `part` is the prefix of its methods, such as "agent.erasure."."""

    def __init__(self, what: str, methods: Mapping[str, Method], ask: Callable[..., Awaitable[str]], part: str) -> None:
        self._what = what
        self._methods = methods
        self._ask = ask
        self._part = part

    def __getattr__(self, name: str) -> Any:
        name = self._part + name
        if (method := self._methods.get(name)) is None:
            if any(each.startswith(f"{name}.") for each in self._methods):
                return _Remote(self._what, self._methods, self._ask, f"{name}.")
            raise AttributeError(name)

        def begin(*values: Any, **further: Any) -> asyncio.Task[Any]:
            should_go_on = further.pop(FLAG, None)
            if method.has_flag and should_go_on is None:
                *values, should_go_on = values  # type: ignore[assignment]  # it is the last one
            values = (*values, *(further[name] for name in method.names if name in further))
            task = asyncio.ensure_future(self._perform(name, method, values, should_go_on))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # one that nobody awaits is not told
            return task

        return begin

    async def _perform(self, name: str, method: Method, values: tuple[Any, ...], should_go_on: Any) -> Any:
        arguments = method.arguments.dump_json(values).decode()
        answer = await self._ask(name, arguments, should_go_on)
        try:
            return method.answer.load(answer)["result"]
        except OtherFormError:
            raise OtherVersionError(self._what, name) from None


async def _call(
    method: Method, target: object, name: str, arguments: Sequence[Any], should_go_on: Callable[[], bool] | None
) -> Any:
    path = name.partition(".")[2]
    return await attrgetter(path)(target)(*arguments, *([should_go_on] if method.has_flag else []))
