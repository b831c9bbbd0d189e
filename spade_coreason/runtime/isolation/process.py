"""The process of an agent, as the platform has it: its start, its messages, its health, its output and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ...concurrency import TokenBucket
from ...domain.observability.tracing import TURN_TRACE, TurnTrace
from ...domain.texts.terminal_text import escape_label
from ...exceptions import AgentProcessError, ConfigError
from .calls import ChildCalls
from .description import AgentDescription, Isolation
from .errors import dump_error, load_error
from .frames import MAX_FRAME_BYTES, FrameConnection, Message, ProtocolError
from .turns import OpenTurn

log = logging.getLogger(__name__)

_MODULE = "spade_coreason.runtime.isolation.child"
_MAX_CALLS = 1000
"""The most calls of a process that wait for their answer."""
_MAX_UNACKNOWLEDGED_BYTES = 4 * MAX_FRAME_BYTES
"""The most bytes of replies that have arrived and are not sent on. A process that keeps to its windows stays far below."""
_OUTPUT_READ_BYTES = 65_536
_OUTPUT_PAUSE_S = 0.001
"""The pause after each read of printed text. A pipe that an agent fills without end costs the platform little CPU then."""
_MAX_LINE_BYTES = 16_384
_SHOWN_BYTES = 65_536
"""The printed text that is shown at once; it comes back at a sixteenth of it a second. The rest is dropped and counted."""
_DROPPED_NOTE_S = 1.0
"""The time from the first dropped byte to the line with their number. All that is printed in this time is dropped too."""
_LOG_RECORDS = 1000
_LOG_RECORDS_PER_S = 100
_DROPPED_RECORDS = 20_000
"""The log records beyond those that are dropped. More than these come from no agent that uses `logging`."""
_MAX_LOGGERS = 200
_MAX_LOG_TEXT = 20_000
_EXIT_STATUS_S = 1.0
_POLL_S = 0.01


class AgentProcess:
    """One process of an agent, from its start to its end. It is created in the running event loop.

    `on_ending` is called once it takes no more turns, and `on_ended` with the cause once it has ended. Every turn that is open
    then fails with AgentProcessError.
    """

    def __init__(
        self,
        jid: str,
        isolation: Isolation,
        calls: ChildCalls,
        build: dict[str, Any],
        on_ending: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._jid = jid
        self._isolation = isolation
        self._calls = calls
        self._on_ending = on_ending
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._built: AgentDescription | Exception | None = None
        self._built_event = asyncio.Event()
        self._turns: dict[int, OpenTurn] = {}
        self._last_turn = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unacknowledged_bytes = 0
        self.cause: str | None = None
        """The cause of the end; None while the process runs."""
        self._conclusion: asyncio.Task[None] | None = None
        self._is_closing = False
        self._pinged_at: float | None = None
        self._checked_at = self._loop.time()
        self._check_timer: asyncio.TimerHandle | None = None
        self._log_bucket, self._dropped_records = TokenBucket(_LOG_RECORDS, _LOG_RECORDS_PER_S), 0
        self._flood_bucket = TokenBucket(_DROPPED_RECORDS, _DROPPED_RECORDS / 10)
        self._logger_names: set[str] = set()
        self._shown_bucket = TokenBucket(_SHOWN_BYTES, _SHOWN_BYTES / 16)
        self._dropped_bytes = self._dropped_lines = 0
        self._dropped_timer: asyncio.TimerHandle | None = None
        self._partial_line = b""
        self._output_timer: asyncio.TimerHandle | None = None
        ours, theirs = socket.socketpair()
        self._output, output = os.pipe()
        os.set_blocking(self._output, False)
        # In the thread of the event loop: on Linux the process dies with the thread that started it (child.py).
        try:
            self._popen = isolation.popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno()), jid],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            ours.close()
            os.close(self._output)
            raise
        finally:
            theirs.close()
            os.close(output)
        self.pid = self._popen.pid
        self._frames = FrameConnection(ours, self._receive, self._on_closed, MAX_FRAME_BYTES)
        self._loop.add_reader(self._output, self._read_output)
        self._frames.send(["build", build])

    # Building

    def build(self) -> AgentDescription:
        """Block until the agent is made. Raise ConfigError or another error if it cannot be made."""
        deadline = time.monotonic() + self._isolation.timings.build_s
        outputs: tuple[int, ...] = (self._output,)
        while self._built is None and self.cause is None and not self._frames.is_closed:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                self.end(f"took longer than {self._isolation.timings.build_s:g} s for the import and the constructor")
                break
            if self._frames.exchange(min(remaining_s, _POLL_S * 5), *outputs):
                data = self._read_output_bytes()
                outputs = outputs if data else ()
                self._show_output(data or b"")
        if self._built is None and self.cause is None:
            self.cause = self._await_exit()
        try:
            return self._result()
        except BaseException:
            self._kill()  # the event loop may end before it runs the rest
            raise

    async def wait_until_built(self) -> AgentDescription:
        """Wait as `build` does, without blocking."""
        try:
            async with asyncio.timeout(self._isolation.timings.build_s):
                await self._built_event.wait()
        except TimeoutError:
            self.end(f"took longer than {self._isolation.timings.build_s:g} s for the import and the constructor")
        return self._result()

    def _result(self) -> AgentDescription:
        if isinstance(self._built, AgentDescription):
            self._check_timer = self._loop.call_later(self._isolation.timings.check_s, self._check)
            return self._built
        error = self._built or AgentProcessError(self._jid, self.cause or "ended")
        self.end("could not create its agent")
        raise error

    # Turns

    async def run(self, turn: OpenTurn, message: Message) -> object:
        """Run a turn, or a call of a method, in the process. `message` begins it. See `OpenTurn.run`."""
        if self.cause is not None or self._frames.is_closed:
            raise AgentProcessError(self._jid, self.cause or "ended")
        self._last_turn = turn.id = self._last_turn + 1
        self._turns[turn.id] = turn
        message[1] = turn.id
        try:
            self._frames.send(message)
            return await turn.run(self)
        except GeneratorExit:  # the turn is abandoned, and its process ends soon
            turn.is_abandoned = True
            raise
        finally:
            if not turn.is_abandoned or turn.is_ended:
                self._turns.pop(turn.id, None)

    def send(self, message: Message) -> None:
        """Send a message to the process."""
        self._frames.send(message)

    def cancel(self, turn: OpenTurn) -> None:
        """Cancel a turn in the process. If it has not ended after the grace, the process is ended."""
        grace_s = self._isolation.timings.cancel_grace_s
        self._frames.send(["cancel", turn.id])
        self._loop.call_later(grace_s, self._end_unless_ended, turn, f"did not stop a cancelled turn within {grace_s:g} s")

    def _end_unless_ended(self, turn: OpenTurn, cause: str) -> None:
        if not turn.is_ended:
            self.end(cause)

    def on_acknowledged(self, size: int) -> None:
        """Note that `size` bytes of replies were sent on."""
        self._unacknowledged_bytes -= size

    # Messages of the process

    def _receive(self, message: Message, size: int) -> None:
        """Handle a message of the process. Any fault in it is the fault of the process."""
        try:
            self._handlers[message[0]](self, size, *message[1:])
        except ProtocolError:
            raise
        except Exception as error:
            log.debug("%s: a faulty message", self._jid, exc_info=True)
            raise ProtocolError(f"a wrong message {message[0][:40]!r} ({type(error).__name__}: {str(error)[:100]})") from error

    def _on_do(self, size: int, turn_id: int, name: str, args: list[Any]) -> None:
        self._put(turn_id, size, name, args, None)

    def _on_ask(self, size: int, call_id: int, turn_id: int, name: str, args: list[Any]) -> None:
        if not isinstance(call_id, int) or call_id in self._tasks:
            raise ProtocolError(f"the call {call_id!r} out of turn")
        if name in OpenTurn.ORDERED:
            self._put(turn_id, size, name, args, call_id)
            return
        if len(self._tasks) >= _MAX_CALLS:
            self.answer(call_id, None, RuntimeError(f"{_MAX_CALLS:,} calls are already waiting for an answer"))
            return
        turn = self._turns[turn_id] if turn_id else None
        trace = None if turn is None else turn.trace
        work = self._calls.start(name, args, turn, partial(self._send_event, call_id))
        self._tasks[call_id] = asyncio.create_task(self._answer(call_id, work, trace))

    def _put(self, turn_id: int, size: int, name: str, args: list[Any], call_id: int | None) -> None:
        self._unacknowledged_bytes += size
        if self._unacknowledged_bytes > _MAX_UNACKNOWLEDGED_BYTES:
            raise ProtocolError("more than it may before the platform has acknowledged it")
        self._turns[turn_id].put(name, args, size, call_id)

    async def _answer(self, call_id: int, work: Awaitable[object], trace: TurnTrace | None) -> None:
        if trace is not None:
            TURN_TRACE.set(trace)
        try:
            self.answer(call_id, await work, None)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the agent's code gets it
            self.answer(call_id, None, error)
        finally:
            self._tasks.pop(call_id, None)

    def answer(self, call_id: int, value: object, error: Exception | None) -> None:
        """Answer a call of the process with a value or an error."""
        self._frames.send(["answer", call_id, None if error is None else dump_error(error), value])

    def _send_event(self, call_id: int, *values: object) -> None:
        self._frames.send(["event", call_id, values])

    def _on_drop(self, size: int, call_id: int) -> None:
        if (task := self._tasks.get(call_id)) is not None:
            task.cancel()

    def _on_end(self, size: int, turn_id: int, error: dict[str, Any] | None, value: object) -> None:
        turn = self._turns[turn_id]
        if turn.is_abandoned:
            del self._turns[turn_id]
        turn.end(value, None if error is None else load_error(error))

    def _on_pong(self, size: int) -> None:
        if self._pinged_at is None:
            raise ProtocolError("a pong without a ping")
        self._pinged_at = None

    def _on_built(self, size: int, description: object) -> None:
        if self._built is not None:
            raise ProtocolError("a second description")
        self._built = AgentDescription.load(description)
        self._built_event.set()

    def _on_failed(self, size: int, place: str, error: dict[str, Any]) -> None:
        if self._built is None:
            loaded = load_error(error)
            self._built = ConfigError(str(place), str(error["text"])) if isinstance(loaded, ConfigError) else loaded
            self._built_event.set()

    def _on_log(self, size: int, name: str, level: int, text: str) -> None:
        if not self._log_bucket.take(1):
            self._dropped_records += 1
            if not self._flood_bucket.take(1):
                raise ProtocolError("log records without end")
            return
        if name not in self._logger_names and len(self._logger_names) >= _MAX_LOGGERS:
            name = "spade_coreason.agent"
        self._logger_names.add(name)
        if self._dropped_records:
            text += f" ({self._dropped_records:,} records before this one were dropped)"
            self._dropped_records = 0
        logging.getLogger(name[:200]).log(int(level), "%s", text[:_MAX_LOG_TEXT], extra={"agent": self._jid})

    _handlers: ClassVar[dict[str, Callable[..., None]]] = {
        "do": _on_do,
        "ask": _on_ask,
        "drop": _on_drop,
        "end": _on_end,
        "pong": _on_pong,
        "built": _on_built,
        "failed": _on_failed,
        "log": _on_log,
    }

    # Health

    def _check(self) -> None:
        """Ask the process to react, and measure its memory."""
        timings, now = self._isolation.timings, self._loop.time()
        if _find_exit(self.pid) is not None:  # and a program that it started holds the connection open
            self._frames.close()
            self._on_closed(None)
            return
        if self._pinged_at is not None:  # the time in which the platform itself was held up does not count
            self._pinged_at += max(0.0, now - self._checked_at - timings.check_s)
        self._checked_at = now
        if self._pinged_at is None:
            self._pinged_at = now
            self._frames.send(["ping", log_levels()])
        elif now - self._pinged_at > timings.blocked_s:
            self.end(f"did not react for {timings.blocked_s:g} s")
            return
        memory_mb, limit_mb = self._measure_memory_mb(), self._isolation.memory_mb
        if limit_mb is not None and memory_mb is not None and memory_mb > limit_mb:
            self.end(f"used {memory_mb:,} MiB of memory (memory_mb: {limit_mb:,})")
            return
        self._check_timer = self._loop.call_later(timings.check_s, self._check)

    def _measure_memory_mb(self) -> int | None:
        """Return the resident memory in MiB; None if the system does not tell."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_bytes().split()[1])
        except (OSError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE") // 1_048_576

    # Output

    def _read_output(self) -> None:
        """Read what is printed at once, shown or not: the process must never wait for it."""
        data = self._read_output_bytes()
        if data is None:
            return
        self._loop.remove_reader(self._output)
        if data:
            self._output_timer = self._loop.call_later(_OUTPUT_PAUSE_S, self._resume_output)
            self._show_output(data)

    def _resume_output(self) -> None:
        self._loop.add_reader(self._output, self._read_output)

    def _read_output_bytes(self) -> bytes | None:
        try:
            return os.read(self._output, _OUTPUT_READ_BYTES)
        except BlockingIOError:
            return None

    def _show_output(self, data: bytes) -> None:
        """Print text of the process to standard error, each line with the agent's name. The end of a line may come later."""
        shown = 0 if self._dropped_timer is not None else self._shown_bucket.take_most(len(data))
        *lines, self._partial_line = (self._partial_line + data[:shown]).splitlines(keepends=True) or [b""]
        is_cut = shown < len(data)
        if is_cut or self._partial_line.endswith(b"\n") or len(self._partial_line) > _MAX_LINE_BYTES:
            lines.append(self._partial_line)
            self._partial_line = b""
        for line in b"".join(lines).decode(errors="replace").splitlines():
            self._print(line)
        if is_cut:
            self._dropped_bytes += len(data) - shown
            self._dropped_lines += data.count(b"\n", shown)
            if self._dropped_timer is None:
                self._dropped_timer = self._loop.call_later(_DROPPED_NOTE_S, self._note_dropped_output)

    def _note_dropped_output(self) -> None:
        """Tell how much is not shown, and show text again."""
        self._dropped_timer = None
        lines = max(1, self._dropped_lines)
        count = f"{self._dropped_bytes:,} bytes ({lines:,} line{'s' if lines != 1 else ''})"
        self._print(f"{count} of printed output are not shown")
        self._dropped_bytes = self._dropped_lines = 0

    def _show_last_output(self) -> None:
        """Print the last words, such as those of a segmentation fault."""
        self._show_output(self._read_output_bytes() or b"")
        if self._partial_line:
            self._print(self._partial_line.decode(errors="replace"))
        if self._dropped_timer is not None:
            self._dropped_timer.cancel()
            self._note_dropped_output()

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):  # standard error of the platform is closed, which ends no turn
            print(escape_label(f"{self._jid}: {line}"), file=sys.stderr)

    # The end

    def end(self, cause: str) -> None:
        """End the process and all that it started, for this cause. A second end does nothing."""
        if self.cause is None:
            self.cause = cause
        self._frames.close()
        self._conclude()

    async def close(self) -> None:
        """Close the connection, so that the process ends by itself, and end it after a grace. No restart follows."""
        self._is_closing = True
        if self._conclusion is None:
            self._frames.flush()
            self._frames.close()
            if (await asyncio.to_thread(self._poll_exit, self._isolation.timings.exit_s)) is None:
                log.warning("%s: its process did not end by itself, and was killed", self._jid)
            self.end("was stopped")
        if self._conclusion is not None:
            await self._conclusion

    def _on_closed(self, error: ProtocolError | None) -> None:
        """Handle the end of the connection: by a fault, or because the process has ended or closed it."""
        if error is not None:
            self.end(f"sent {error}")
        elif not self._is_closing:
            self._conclude()

    def _conclude(self) -> None:
        if self._conclusion is None:
            self._on_ending()
            self._conclusion = asyncio.create_task(self._finish())

    async def _finish(self) -> None:
        for timer in (self._check_timer, self._output_timer):
            if timer is not None:
                timer.cancel()
        if self.cause is None:
            self.cause = await asyncio.to_thread(self._await_exit)
        await asyncio.to_thread(self._kill)
        self._loop.remove_reader(self._output)
        if self._output_timer is not None:
            self._output_timer.cancel()
        self._show_last_output()
        os.close(self._output)
        for task in list(self._tasks.values()):
            task.cancel()
        error = AgentProcessError(self._jid, self.cause)
        for turn in list(self._turns.values()):
            turn.end(None, error)
        self._turns.clear()
        self._built_event.set()
        if not self._is_closing:
            self._on_ended(self.cause)

    def _await_exit(self) -> str:
        """Wait for the end of a process that has closed its connection, and return the cause."""
        status = self._poll_exit(_EXIT_STATUS_S)
        return "closed its connection" if status is None else _describe_exit(status)

    def _poll_exit(self, timeout_s: float) -> int | None:
        # Its group must be ended before its id is free for another process, so that it is not awaited in the usual way.
        deadline = time.monotonic() + timeout_s
        while (status := _find_exit(self.pid)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return status

    def _kill(self) -> None:
        """End the process, its group, and on Linux all processes of its session. A second call does nothing."""
        if self._popen.returncode is not None:
            return
        for pid in (-self.pid, *_find_session(self.pid)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self._popen.wait()


def log_levels() -> dict[str, int]:
    """Return the levels of the root logger and of ours, which the process takes over."""
    return {name: logging.getLogger(name).getEffectiveLevel() for name in ("", "spade_coreason")}


def _find_exit(pid: int) -> int | None:
    """Return the exit status of a child process, or the negative number of its signal; None while it runs. Do not reap it."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was ended by the signal {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by the signal {-status}"


def _find_session(leader: int) -> Sequence[int]:
    """Return the processes of a session that are in a group of their own; none if the system has no /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == leader:
                found.append(int(path.parent.name))
    return found
