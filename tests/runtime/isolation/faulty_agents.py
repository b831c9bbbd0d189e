"""Agents that cannot be made, or not always; each name says why."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

from spade_coreason import AgentDefinition, AgentRequest, ConfigError, Response, Session

log = logging.getLogger("isolated.words")


class PlainAgent:
    """Answers with its word."""

    manifest = AgentDefinition.simple("plain")

    def __init__(self, word: str, number: int = 0) -> None:
        self.word = word

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown(f"{self.word} in process {os.getpid()}")


class RaisingAgent(PlainAgent):
    """Raises in its constructor."""

    def __init__(self) -> None:
        raise ValueError("no such word")


class MisconfiguredAgent(PlainAgent):
    """Refuses an option."""

    def __init__(self) -> None:
        raise ConfigError("options.word", "is no word")


class ExitingAgent(PlainAgent):
    """Ends the process in its constructor."""

    def __init__(self) -> None:
        os._exit(3)


class ExitingLaterAgent(PlainAgent):
    """Ends the process in its constructor, unless the file `may-start` is in its directory."""

    def __init__(self, directory: str) -> None:
        if not (Path(directory) / "may-start").exists():
            os._exit(3)
        super().__init__("yes")


class LeavingAgent(PlainAgent):
    """Leaves Python in its constructor."""

    def __init__(self) -> None:
        sys.exit("enough")


class SleepingAgent(PlainAgent):
    """Sleeps in its constructor."""

    def __init__(self) -> None:
        print("so tired")
        time.sleep(1000)


class TakenCommandAgent(PlainAgent):
    """Is no agent: its assist is no coroutine."""

    def __init__(self) -> None: ...

    def assist(self) -> None: ...  # type: ignore[override]


async def _interrupt() -> None:
    raise KeyboardInterrupt


class UncertainAgent:
    """Starts up only while the file `may-start` is in its directory. It prints and logs what it is asked to."""

    manifest = AgentDefinition.simple("uncertain")

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.has_started = False

    async def startup(self) -> None:
        with (self.directory / "starts").open("a") as file:
            file.write("x")
        if not (self.directory / "may-start").exists():
            raise RuntimeError("not yet")
        self.has_started = True

    def shutdown(self) -> None:
        (self.directory / "shutdown").touch()

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        match request.payload["query"].split():
            case ["die"]:
                os._exit(1)
            case ["interrupt", "in", "a", "task"]:
                await asyncio.create_task(_interrupt())
            case ["send", "itself", "a", "signal"]:
                os.kill(os.getpid(), signal.SIGINT)
            case ["stop", "the", "loop"]:
                asyncio.get_running_loop().stop()
                await asyncio.sleep(0)
            case ["print", *words]:
                print(*words, "\x1b[31m")
                print("and an error", file=sys.stderr, flush=True)
                sys.stdout.flush()
            case ["log", *words]:
                log.warning(" ".join(words))
                await asyncio.to_thread(log.info, "in a thread")
        await response.markdown(f"started: {self.has_started}")
