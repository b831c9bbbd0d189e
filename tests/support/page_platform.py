"""A platform with the page in the browser, as the process that `up` is, which can be killed and started again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support import page_agents
from tests.support.program import RunningCommand, run_command, run_in_background
from tests.support.servers.server import XmppServer

_REFUND_DESK = Path(__file__).parents[2] / "examples" / "refund_desk" / "refund_desk.py"
AGENTS = {
    "echo": "spade_coreason.agents.echo:EchoAgent",
    "notes": "spade_coreason.agents.notes:NotesAgent",
    "refunds": "refund_desk:RefundDesk",
    "writer": "page_agents:WritingAgent",
}
"""The agents of a platform by name."""
_CONFIGURATION = "platform.yaml"


class PagePlatform:
    """A platform with the agents echo, notes, refunds and writer, and the people carol and felix, who approves refunds.

    Without a server it has the embedded one, and its guest. `web` has more settings of that section. With `reloads`, it runs
    with `--reload`. `agents` has other agents, by name, than those.
    """

    def __init__(
        self,
        directory: Path,
        server: XmppServer | None = None,
        web: Mapping[str, Any] | None = None,
        *,
        agents: Mapping[str, str] = AGENTS,
        reloads: bool = False,
    ) -> None:
        self.directory = directory
        self._reloads = reloads
        self.was_down = False
        """Whether requests may have failed, since it was not running."""
        [port] = find_free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._stack = ExitStack()
        self._accounts = {name: (f"{name}@localhost", "") for name in (*agents, "carol", "felix")}
        if server is not None:
            self._accounts = {name: _create_account(server) for name in self._accounts}
        people = [self.jid("carol"), self.jid("felix")]
        settings = {
            "server": {"mode": "embedded", "people": people} if server is None else server.settings,
            "data_dir": "data",
            "web": {"port": port, **(web or {})},
            "access": {"groups": {"finance": [self.jid("felix")]}},
            "agents": [self._configure(name, place) for name, place in agents.items()],
        }
        shutil.copy(_REFUND_DESK, directory)
        shutil.copy(page_agents.__file__, directory)
        (directory / _CONFIGURATION).write_text(json.dumps(settings))
        (directory / _CONFIGURATION).chmod(0o600)

    def _configure(self, name: str, place: str) -> dict[str, Any]:
        jid, password = self._accounts[name]
        return {"jid": jid, "agent": place, **({"password": password} if password else {})}

    def __enter__(self) -> PagePlatform:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start it, and return when it is ready."""
        arguments = ("up", "-c", _CONFIGURATION, *(["--reload"] if self._reloads else []))
        self._up: RunningCommand = self._stack.enter_context(run_in_background(*arguments, cwd=self.directory, until="Ready"))

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self.was_down = True
        self._up.process.kill()
        self._stack.close()

    def configure(self, agent: str, **settings: Any) -> None:
        """Change settings of an agent in the configuration. With `--reload`, return when they count."""
        file = self.directory / _CONFIGURATION
        before = json.loads(file.read_text())
        for one in before["agents"]:
            one.update(settings if one["jid"] == self.jid(agent) else {})
        self.was_down = True
        self._up.output = ""
        file.write_text(json.dumps(before))
        if self._reloads:
            self._up.wait_for("^Reloaded")

    def open_gate(self) -> None:
        """Let the writer go on."""
        (self.directory / "gate").touch()

    def jid(self, name: str) -> str:
        """Return the bare JID of an agent or a person."""
        return self._accounts[name][0]

    def address(self, agent: str) -> str:
        """Return the address of the conversation without a thread in the page, from the # on."""
        return "#" + urlencode({"agent": self.jid(agent), "thread": ""})

    def run(self, *arguments: str) -> str:
        """Run another command beside it. Return what it prints."""
        done = run_command(*arguments, "-c", _CONFIGURATION, cwd=self.directory)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def link(self, name: str) -> str:
        """Return a fresh link for a person; of the guest for ""."""
        return self.run("web", *([self.jid(name)] if name else []))


def _create_account(server: XmppServer) -> tuple[str, str]:
    with ThreadPoolExecutor(1) as thread:  # the thread of the browser has an event loop that runs
        return thread.submit(asyncio.run, server.account()).result()
