"""Attacks that need no flood: one text, one turn or one file that could stop ten agents, or outlive a right.

Each runs on a platform of its own. The other agents answer other people throughout, SIGTERM stops the platform in time, and the
next start serves.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from spade_coreason import AgentClient, AgentRequest
from spade_coreason.domain.jid import local_part
from spade_coreason.domain.texts.terminal_text import escape_lines
from spade_coreason.doors.webhooks.signatures import sign_standard
from spade_coreason.exceptions import PeerFailedError
from spade_coreason.storage import decode_webhook_secret
from spade_coreason.xmpp import ServerEndpoint
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.chaos import askers
from tests.chaos.attack_run import add_tallies, end_child, run_child
from tests.cli.test_ending_agents import AGENT as ENDER, CONTAINED, FAILING
from tests.cli.test_up import write_external_config
from tests.contracts.test_json_schema import MAIL, NO_MAIL
from tests.support.large_bodies import DOORS, SHAPES, make_body, make_rpc
from tests.support.program import RunningCommand, run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.raw_client import login_at
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

_ASKERS = 3
_INTERVAL_S = 1.0
ECHO = "spade_coreason.agents.echo:EchoAgent"
VICTIM = "victim"
"""A file to which a link in the data directory leads."""
_HIDDEN = "\u202e\u2066\u200b\u0085\u2028\U000e0041"
_COMMANDS = (("status",), ("agents",), ("conversations",), ("sessions", "list"), ("requests", "list"), ("audit", "list"))


@dataclass(frozen=True)
class Scene:
    """The platform under attack: its directory, the attacked agent, the attacker, and an account of an operator."""

    server: XmppServer
    directory: Path
    up: RunningCommand
    target: str
    attacker: tuple[str, str]
    operator: tuple[str, str]
    sent_bytes: int
    """The size of what is sent to each socket."""

    def client(self) -> StockClient:
        """Return the client of the attacker."""
        return StockClient(*self.attacker, self.server)

    def program(self, account: tuple[str, str]) -> AgentClient:
        """Return a program with an account."""
        return AgentClient(*account, ServerEndpoint(self.server.host, self.server.port, ca_file=self.server.ca_file))


Act = Callable[[Scene], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class SingleText:
    """An attack: the settings of the attacked agent, what the attacker does, and what the platform has to log."""

    name: str
    act: Act
    agent: Mapping[str, Any] = field(default_factory=lambda: {"agent": ECHO})
    errors: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


async def _backtrack(scene: Scene) -> None:
    async with scene.client() as mallory:
        for number in range(4):
            mallory.send(json.dumps({"mail": f"{NO_MAIL}{number}"}), scene.target, thread=f"thread {random.random()}")
        for _ in range(4):
            assert (await mallory.answer())["body"] == "No address."


async def _end_the_process(scene: Scene) -> None:
    async with scene.client() as mallory:
        for query in (*FAILING, *CONTAINED):
            body = await mallory.ask(query, scene.target)
            assert ("(incident " in body) == (query in FAILING), body


async def _outlive_a_right(scene: Scene) -> None:
    jid = scene.attacker[0]
    async with AsyncExitStack() as stack:
        program, publisher = [
            await stack.enter_async_context(scene.program(account)) for account in (scene.attacker, scene.operator)
        ]
        operator = await stack.enter_async_context(StockClient(*scene.operator, scene.server))
        await operator.ask(f"/admit {jid}", scene.target)
        subscribed = await program.ask(scene.target, _capability("subscribe", patterns=["news/#"]))
        assert subscribed.data[0]["data"]["patterns"] == ["news/#"]
        assert jid in await operator.ask("/topics", scene.target)
        await operator.ask(f"/reject {jid}", scene.target)
        for number in range(5):
            await publisher.ask(scene.target, _capability("publish", topic="news/x", payload={"number": number}))
        assert jid not in await operator.ask("/topics", scene.target)
        too_long = {"text": "<" * 4000}  # four bytes each, of 20,000 with all that a dead letter adds
        with pytest.raises(PeerFailedError, match="the item is too long"):
            await publisher.ask(scene.target, _capability("publish", topic="news/x", payload=too_long))


def _capability(capability: str, **payload: Any) -> AgentRequest:
    return AgentRequest(session_id=uuid4(), payload=payload, metadata={"capability": capability})


async def _hide(scene: Scene) -> None:
    async with scene.client() as mallory:
        for number in range(3):
            thread = f"thread{_HIDDEN}{random.random()}"
            text = await mallory.ask(f"{number}{_HIDDEN}", scene.target, thread=thread)
            assert text.startswith(str(number)), text
        mallory.send("overlong", scene.target, id="x" * 1025)
        refusal = str((await mallory.answer())["body"])
        assert "its id or thread is too long" in refusal, refusal
    for command in _COMMANDS:
        done = await asyncio.to_thread(scene.up.run_command, *command, "-c", "platform.yaml")
        assert done.returncode == 0, (command, done.stderr)
        assert [line for line in done.stdout.splitlines() if escape_lines(line) != line] == [], command


async def _fill_the_sockets(scene: Scene) -> None:
    victim, link = scene.directory / VICTIM, scene.directory / "data" / "run.json.part"
    victim.write_text("precious")
    link.unlink(missing_ok=True)
    link.symlink_to(victim)  # the next start writes this file
    before = _read_peak_kib(scene)
    operations = ("status", "knowledge.add", "dance")
    for name in operations:
        await asyncio.to_thread(_flood_socket, scene.directory / "data" / "platform.sock", name, scene.sent_bytes)
    grown = (_read_peak_kib(scene) - before) * 1024
    # A document has 80 MiB at most; the other operations take 64 KiB.
    assert grown < scene.sent_bytes, f"{grown:,} bytes more after {len(operations)} times {scene.sent_bytes:,}"


def _flood_socket(path: Path, name: str, size: int) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        flood = stack.enter_context(socket.socket(socket.AF_UNIX))
        flood.settimeout(TIMEOUT_S)
        with suppress(OSError):
            flood.connect(str(path))
            flood.sendall(f"POST /v1/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
            chunk = b"x" * 1_000_000
            for _ in range(size // len(chunk)):
                flood.sendall(chunk)
        for sock in silent:
            with suppress(OSError):
                sock.connect(str(path))


async def _postpone(scene: Scene) -> None:
    async with scene.client() as mallory:
        body = await mallory.ask("hello", scene.target)
        assert "24 h" in body, body


async def _send_many_values(scene: Scene) -> None:
    """Send bodies of a million values, and of 12 MiB of text, by each door, and lists of tasks as large as they may be."""
    port = json.loads((scene.directory / "platform.yaml").read_text())["web"]["port"]
    name, number = local_part(scene.target), uuid4().hex[:8]
    made = {}
    for kind, options in {"keys": ["--agent", scene.target], "webhooks": [scene.target]}.items():
        command = (kind, "create", f"{kind}-{number}", *options, "-c", "platform.yaml")
        done = await asyncio.to_thread(scene.up.run_command, *command)
        assert done.returncode == 0, done.stderr
        made[kind] = done.stdout.split()[0]
    signing_key = decode_webhook_secret("standard", made["webhooks"])
    before = _read_peak_kib(scene)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S, trust_env=False) as http:

        async def post(door: str, path: str, lines: Sequence[str], body: bytes) -> httpx.Response:
            headers = dict(line.split(": ", 1) for line in lines)
            if door == "webhook":
                ident, timestamp = uuid4().hex, str(int(time.time()))
                path = f"/webhooks/webhooks-{number}"
                headers |= {"webhook-id": ident, "webhook-timestamp": timestamp}
                headers["webhook-signature"] = sign_standard(signing_key, ident, timestamp, body)
            else:
                headers["Authorization"] = f"Bearer {made['keys']}"
            return await http.post(path, content=body, headers=headers)

        for door in DOORS:
            for make in SHAPES.values():
                reply = await post(door, *make_body(door, make(400_000 if door == "webhook" else 1_000_000), name=name))
                assert reply.status_code == 413, (door, reply.text)
            reply = await post(door, *make_body(door, text="a, b " * 2_400_000, name=name))
            assert reply.status_code == 413 or "more than 262,144 characters" in reply.text, (door, reply.text)
        for _ in range(20):
            reply = await post("a2a", *make_body("a2a", SHAPES["numbers"](9900), name=name))
            assert "result" in reply.json(), reply.text
        for params in (b"", b'"historyLength":0', b'"pageSize":100,"includeArtifacts":true'):
            reply = await post("a2a", f"/a2a/{name}", ["A2A-Version: 1.0"], make_rpc("ListTasks", params))
            assert reply.json()["result"]["tasks"], reply.text
    grown = (_read_peak_kib(scene) - before) * 1024
    assert grown < 2**28, f"{grown:,} bytes more"


def _read_peak_kib(scene: Scene) -> int:
    status = Path(f"/proc/{scene.up.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


@contextmanager
def _serve_busy_model() -> Iterator[str]:
    """Serve a model that is busy until the year 9999, and yield its address."""

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(429)
            self.send_header("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


_NO_QUOTA = {"messages_per_minute": 0, "bytes_per_minute": 0}
_GUARDRAIL = {"json_schema": {"properties": {"mail": {"pattern": MAIL}}}, "message": "No address."}

SINGLE_TEXTS = {
    text.name: text
    for text in (
        SingleText(
            "a pattern that backtracks",
            _backtrack,
            {
                "agent": "spade_coreason.agents.assistant:AssistantAgent",
                "options": {"model": "script", "input_guardrails": [_GUARDRAIL]},
            },
        ),
        SingleText(
            "a turn that ends the process",
            _end_the_process,
            {"agent": "ender:ender"},
            ("code of an agent tried to end the process, which goes on", "incident"),
        ),
        SingleText(
            "a subscription without a right",
            _outlive_a_right,
            {
                "agent": "spade_coreason.agents.topics:TopicBroker",
                "access": {"allow": [], "ask": True, "operators": ["OPERATOR"]},
            },
            settings={"limits": {"stanza_bytes": 20_000}},
        ),
        SingleText(
            "a model that is busy until 9999",
            _postpone,
            {
                "agent": "spade_coreason.agents.assistant:AssistantAgent",
                "options": {"model": "busy", "endpoint": {"url": "MODEL_URL"}},
            },
        ),
        SingleText("hidden characters and overlong ids", _hide),
        SingleText("a socket without a limit, and a link", _fill_the_sockets),
        SingleText(
            "bodies of many values",
            _send_many_values,
            {
                "agent": ECHO,
                "doors": list(DOORS),
                "quotas": {"person": {"user": _NO_QUOTA}, "domain": _NO_QUOTA, "total": _NO_QUOTA},
            },
            settings={"web": {"port": "FREE_PORT"}},
        ),
    )
}


def run_single_text(
    server: XmppServer, text: SingleText, directory: Path, *, other_agents: int, seconds: float, sent_bytes: int
) -> int:
    """Attack one agent beside others for some seconds, at least once. Raise AssertionError if anybody else notices.

    Return how often the attack was repeated.
    """
    with _serve_busy_model() as url:
        return _run(server, text, directory, other_agents, seconds, sent_bytes, url)


def _run(
    server: XmppServer,
    text: SingleText,
    directory: Path,
    other_agents: int,
    seconds: float,
    sent_bytes: int,
    model_url: str,
) -> int:
    count = other_agents + 1 + _ASKERS + 2
    accounts = [asyncio.run(server.account()) for _ in range(count)]
    agents, people = accounts[: other_agents + 1], accounts[other_agents + 1 : -2]
    attacker, operator = accounts[-2:]
    (directory / "ender.py").write_text(ENDER)
    target = json.loads(json.dumps(dict(text.agent)).replace("OPERATOR", operator[0]).replace("MODEL_URL", model_url))
    configured = [target, *({"agent": ECHO} for _ in range(other_agents))]
    named = [{**agent, "jid": jid, "password": secret} for agent, (jid, secret) in zip(configured, agents, strict=True)]
    file = write_external_config(directory, server, server.port, *named)
    own = json.loads(json.dumps(dict(text.settings)).replace('"FREE_PORT"', str(find_free_ports(1)[0])))
    settings = json.loads(file.read_text()) | {"conversation": {"max_interactions": 0}, **own}
    file.write_text(json.dumps(settings))
    others = [jid for jid, _ in agents[1:]]
    task = askers.Task(
        logins=[login_at(server, account) for account in people],
        intervals_s=dict.fromkeys(others, _INTERVAL_S),
        wait_s=TIMEOUT_S,
    )
    repetitions = 0
    may_log = ["files", "has no access", "removed the subscription", "admitted", "rejected", "is off"]
    with run_in_background("up", "-c", file.name, cwd=directory, until="^Ready", errors=text.errors, may_log=may_log) as up:
        with run_child("tests.chaos.askers", task) as asking:
            scene = Scene(server, directory, up, agents[0][0], attacker, operator, sent_bytes)
            end_at = time.monotonic() + seconds
            while not repetitions or time.monotonic() < end_at:
                asyncio.run(text.act(scene))
                repetitions += 1
                assert up.run_command("status", "-c", file.name).returncode == 0
            tallies = end_child(asking, timeout_s=2 * TIMEOUT_S)
        total = add_tallies([tallies[jid] for jid in others])
        assert all(tallies[jid]["asked"] for jid in others)
        assert (total["answered"], total["errors"], total["twice"], total["crossed"]) == (total["asked"], 0, 0, 0)
        code, out, _ = up.stop(signal.SIGTERM)
        assert (code, out.splitlines()[-1]) == (0, "Stopped.")
    person, secret = people[0]
    options = ("--jid", person, "-c", file.name)
    with run_in_background("up", "-c", file.name, cwd=directory, until="^Ready", may_log=may_log):
        env = {"SPADE_COREASON_PASSWORD": secret}
        asked = run_command("ask", others[0], "still there?", *options, cwd=directory, env=env)
        assert (asked.returncode, asked.stdout) == (0, "still there?\n"), asked.stderr
    assert not (victim := directory / VICTIM).exists() or victim.read_text() == "precious"
    return repetitions
