"""Traces of a platform: one trace over agents in several platforms and workers, without texts unless they are configured."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.trace import StatusCode

from spade_coreason import AgentDefinition, AgentRequest, Platform, ResponseHandler, SessionHandle, Settings, load_settings
from spade_coreason.cli.logging import JsonFormatter
from spade_coreason.domain.observability import spans
from spade_coreason.exceptions import ConfigError
from tests.support.a2a_server import run_a2a_server
from tests.support.all_doors import DOORS
from tests.support.chat_completions import ChatCompletionsServer, CompletionStream
from tests.support.errors import ExpectedErrors
from tests.support.hosting import write_settings
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.spans import RecordedSpans, attribute, read_spans, record_spans
from tests.support.wait import eventually
from tests.support.worker_doors import TracedDesk, run_far_doors

ECHO = "spade_coreason.agents.echo:EchoAgent"
RELAY = "spade_coreason.agents.relay:RelayAgent"
SECRET = "the surprise for Ann"


@pytest.fixture
def recorded() -> Iterator[RecordedSpans]:
    with record_spans() as found:
        yield found


class FailingAgent:
    """Raises an exception that quotes the person."""

    def __init__(self, manifest: AgentDefinition) -> None:
        self.manifest = manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        raise ValueError(request.payload["query"])


class HangingAgent:
    """Hangs the first time."""

    begun: asyncio.Event

    def __init__(self, manifest: AgentDefinition) -> None:
        self.manifest = manifest

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if not request.metadata.get("redelivered"):
            self.begun.set()
            await asyncio.Event().wait()
        await response.markdown("redelivered")


def forecast(city: str) -> str:
    """Return the weather in a city."""
    return f"sunny in {city}"


@asynccontextmanager
async def run(server: XmppServer, directory: Path, *agents: dict[str, Any], **tracing: bool) -> AsyncIterator[Platform]:
    """Run a platform with its own data, below a directory, on an external server."""
    values = {
        "server": server.settings,
        "data_dir": str(directory / "data"),
        "limits": {"grace_s": 0},
        "tracing": {"enabled": True, **tracing},
        "agents": agents,
    }
    async with Platform(await asyncio.to_thread(_load, directory, values)) as platform:
        yield platform


def _load(directory: Path, values: dict[str, Any]) -> Settings:
    directory.mkdir(exist_ok=True)
    return load_settings(write_settings(directory / "platform.yaml", values), directory, {})


async def _account(server: XmppServer, agent: str, **options: Any) -> dict[str, Any]:
    jid, password = await server.account()
    return {"jid": jid, "password": password, "agent": agent, **({"options": options} if options else {})}


async def test_one_trace_shows_three_agents_on_two_platforms(
    real_server: XmppServer, tmp_path: Path, recorded: RecordedSpans
) -> None:
    last = await _account(real_server, ECHO)
    middle = await _account(real_server, RELAY, ask=[last["jid"]])
    first = await _account(real_server, RELAY, ask=[middle["jid"]])
    async with (
        run(real_server, tmp_path / "one", first, last),
        run(real_server, tmp_path / "two", middle),
        StockClient(*await real_server.account(), real_server) as ann,
    ):
        assert SECRET in await ann.ask(SECRET, first["jid"])
        await eventually(lambda: len(recorded.of(spans.DELIVER)) == 3)
    [trace_id] = recorded.trace_ids
    a, b, c = (agent["jid"] for agent in (first, middle, last))
    assert recorded.path(recorded.get(f"invoke_agent {c}")) == [
        f"receive {a}",
        f"invoke_agent {a}",
        f"ask {b}",
        f"receive {b}",
        f"invoke_agent {b}",
        f"ask {c}",
        f"receive {c}",
        f"invoke_agent {c}",
    ]
    for name in (spans.COMMIT, spans.DELIVER):
        parents = sorted(recorded.path(span)[-2] for span in recorded.of(name))
        assert parents == sorted(f"invoke_agent {jid}" for jid in (a, b, c))
    assert len(recorded.ended) == 3 * 4 + 2
    assert {span.status.status_code for span in recorded.ended} == {StatusCode.UNSET}
    turn = recorded.get(f"invoke_agent {a}")
    assert attribute(turn, spans.OPERATION) == "invoke_agent"
    assert attribute(turn, spans.AGENT) == a
    assert attribute(turn, spans.CHANNEL) == "person"
    assert attribute(turn, spans.CONVERSATION)
    assert attribute(recorded.get(f"receive {b}"), spans.OUTCOME) == "new"
    assert attribute(recorded.get(f"ask {b}"), spans.REQUEST) == attribute(recorded.get(f"receive {b}"), spans.REQUEST)
    assert "surprise" not in recorded.texts
    assert ann.jid.partition("/")[0] not in recorded.texts
    assert len(trace_id) == 32


async def test_one_trace_shows_a_caller_and_three_agents_in_two_workers(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    tracing = {"enabled": True}
    async with run_far_doors(prosody, postgres, tmp_path, agents=3, agent=TracedDesk, tracing=tracing) as running:
        workers, owner, other = running.workers, running.owner.pid, running.other.pid
        first, *further = workers.agents
        middle, last = sorted(further, key=lambda agent: workers.find_process(agent) == owner)
        assert workers.find_process(middle) == other
        for number, door in enumerate(DOORS, 1):  # of the worker that does not serve the first agent
            trace, caller = f"{number:032x}", f"{number:016x}"
            traceparent = f"00-{trace}-{caller}-01"
            answer = await running.far.ask(door, "website", f"relay {middle} {last}", traceparent=traceparent)
            assert "done: hello" in answer.text, answer
            await eventually(partial(has_spans, tmp_path / "spans", trace, 3 * 4 + 2))
            written = read_spans(tmp_path / "spans", trace)
            spans_by_id = {span.ident: span for span in written}
            [span] = [each for each in written if each.name == f"invoke_agent {last}"]
            path = [span]
            while path[0].parent != caller:
                path.insert(0, spans_by_id[path[0].parent])
            near = workers.find_process(last)
            assert [(span.name, span.pid) for span in path] == [
                (f"receive {first}", owner),
                (f"invoke_agent {first}", owner),
                (f"ask {middle}", owner),
                (f"receive {middle}", other),
                (f"invoke_agent {middle}", other),
                (f"ask {last}", other),
                (f"receive {last}", near),
                (f"invoke_agent {last}", near),
            ]


def has_spans(file: Path, trace: str, number: int) -> bool:
    return len(read_spans(file, trace)) == number


async def test_spans_have_texts_only_if_they_are_configured(
    prosody: XmppServer, tmp_path: Path, recorded: RecordedSpans
) -> None:
    last = await _account(prosody, ECHO)
    first = await _account(prosody, RELAY, ask=[last["jid"]])
    async with (
        run(prosody, tmp_path, first, last, texts=True),
        StockClient(*await prosody.account(), prosody) as ann,
    ):
        assert SECRET in await ann.ask(SECRET, first["jid"])
        await eventually(lambda: len(recorded.of(spans.INVOKE_AGENT)) == 2)
    for name in (f"invoke_agent {first['jid']}", f"ask {last['jid']}", f"invoke_agent {last['jid']}"):
        assert attribute(recorded.get(name), spans.PAYLOAD) == json.dumps({"query": SECRET}, separators=(",", ":"))


async def test_a_failed_turn_has_the_incident_and_not_the_text(
    prosody: XmppServer, tmp_path: Path, recorded: RecordedSpans, expected_errors: ExpectedErrors
) -> None:
    expected_errors("ValueError")
    agent = await _account(prosody, f"{__name__}:FailingAgent")
    log = StringIO()
    handler = logging.StreamHandler(log)
    handler.setFormatter(JsonFormatter())
    handler.setLevel(logging.ERROR)
    logging.getLogger("spade_coreason").addHandler(handler)
    try:
        async with run(prosody, tmp_path, agent), StockClient(*await prosody.account(), prosody) as ann:
            answer = await ann.ask(SECRET, agent["jid"])
            await eventually(lambda: bool(recorded.of(spans.DELIVER)))
    finally:
        logging.getLogger("spade_coreason").removeHandler(handler)
    turn = recorded.get(spans.INVOKE_AGENT)
    entry = json.loads(log.getvalue())
    assert (entry["trace"], entry["incident"]) == (f"{turn.context.trace_id:032x}", attribute(turn, spans.INCIDENT))
    incident = attribute(turn, spans.INCIDENT)
    assert isinstance(incident, str)
    assert incident in answer
    assert (turn.status.status_code, turn.status.description) == (StatusCode.ERROR, f"incident {incident}")
    assert attribute(turn, spans.ERROR_TYPE) == "ValueError"
    assert "surprise" not in recorded.texts


async def test_a_turn_that_runs_again_after_a_restart_continues_its_trace(
    prosody: XmppServer, tmp_path: Path, recorded: RecordedSpans
) -> None:
    agent = await _account(prosody, f"{__name__}:HangingAgent")
    HangingAgent.begun = asyncio.Event()
    async with StockClient(*await prosody.account(), prosody) as ann:
        async with run(prosody, tmp_path, agent):
            ann.send(SECRET, agent["jid"])
            await HangingAgent.begun.wait()
        async with run(prosody, tmp_path, agent):
            assert str((await ann.answer())["body"]) == "redelivered"
            await eventually(lambda: len(recorded.of(spans.INVOKE_AGENT)) == 2)
    first, second = recorded.of(spans.INVOKE_AGENT)
    assert first.context.trace_id == second.context.trace_id
    assert recorded.path(first) == recorded.path(second) == [f"receive {agent['jid']}", f"invoke_agent {agent['jid']}"]
    assert attribute(first, spans.ERROR_TYPE) == "CancelledError"
    assert (attribute(first, spans.REDELIVERED), attribute(second, spans.REDELIVERED)) == (None, True)


async def test_an_agent_elsewhere_gets_the_trace_in_a_header(
    prosody: XmppServer, tmp_path: Path, recorded: RecordedSpans
) -> None:
    async with run_a2a_server() as elsewhere:
        options = {"url": elsewhere.url, "allow_private": ["127.0.0.0/8"]}
        agent = await _account(prosody, "spade_coreason.agents.a2a:RemoteA2AAgent", **options)
        async with run(prosody, tmp_path, agent), StockClient(*await prosody.account(), prosody) as ann:
            await ann.ask("data", agent["jid"])
            await eventually(lambda: bool(recorded.of(spans.INVOKE_AGENT)))
    turn = recorded.get(spans.INVOKE_AGENT).context
    given = {headers["traceparent"][:52] for _, _, headers in elsewhere.requests if "traceparent" in headers}
    assert given == {f"00-{turn.trace_id:032x}-{turn.span_id:016x}"}  # the flags follow


@pytest.mark.parametrize("texts", [False, True])
async def test_calls_of_a_model_and_of_a_tool_are_spans_below_the_turn(
    prosody: XmppServer, tmp_path: Path, recorded: RecordedSpans, *, texts: bool
) -> None:
    async def call_tools(wire: CompletionStream) -> None:
        arguments = json.dumps({"city": "Berlin"})
        calls = [
            {"index": number, "id": f"call-{number}", "function": {"name": name, "arguments": arguments}}
            for number, name in enumerate(("forecast", "made_up"))
        ]
        await wire.delta(tool_calls=calls)
        await wire.done("tool_calls")

    async def fail(wire: CompletionStream) -> web.Response:
        return web.json_response({"error": {"message": "busy"}}, status=503)

    async def answer(wire: CompletionStream) -> None:
        await wire.delta(content="It is sunny.")
        await wire.done()

    async with ChatCompletionsServer(call_tools, fail, answer) as model:
        options = {
            "model": "small",
            "endpoint": {"url": model.url, "first_pause_s": 0.01},
            "tools": [f"{__name__}:forecast"],
        }
        agent = await _account(prosody, "spade_coreason.llm:LLMAgent", **options)
        async with run(prosody, tmp_path, agent, texts=texts), StockClient(*await prosody.account(), prosody) as ann:
            ann.send(SECRET, agent["jid"])
            await eventually(lambda: bool(recorded.of(spans.DELIVER)))
    turn = recorded.get(spans.INVOKE_AGENT)
    first, failed, last = recorded.of(spans.CHAT)
    tool, unknown = sorted(recorded.of(spans.EXECUTE_TOOL), key=lambda span: span.name, reverse=True)
    for span in (first, failed, last, tool, unknown):
        assert recorded.path(span)[-2] == turn.name
    assert first.name == "chat small"
    assert attribute(first, spans.SERVER) == "127.0.0.1"
    assert attribute(first, spans.FINISH_REASONS) == ("tool_calls",)
    assert (attribute(last, spans.INPUT_TOKENS), attribute(last, spans.OUTPUT_TOKENS)) == (11, 7)
    assert attribute(failed, spans.ERROR_TYPE) == "ModelError"
    assert (tool.name, unknown.name) == ("execute_tool forecast", "execute_tool (no such tool)")
    assert attribute(tool, spans.TOOL_CALL) == "call-0"
    assert (tool.status.status_code, unknown.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert attribute(tool, spans.TOOL_RESULT) == ("sunny in Berlin" if texts else None)
    assert (SECRET in str(attribute(first, spans.INPUT_MESSAGES))) is texts
    assert ("It is sunny." in str(attribute(last, spans.OUTPUT_MESSAGES))) is texts
    assert any(word in recorded.texts for word in ("surprise", "sunny", "Berlin", "made_up")) is texts


def test_opentelemetry_is_not_imported_without_tracing(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from spade_coreason import Platform, Settings, load_settings\n"
        "from pathlib import Path\n"
        "async def main(directory):\n"
        "    async with Platform(load_settings(directory / 'platform.yaml', directory, {})):\n"
        "        print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
        "asyncio.run(main(Path(sys.argv[1])))\n"
    )

    def find_modules(*, enabled: bool) -> subprocess.CompletedProcess[str]:
        values = {
            "server": {"mode": "embedded"},
            "data_dir": str(tmp_path / "data"),
            "tracing": {"enabled": enabled},
            "agents": [{"jid": "echo@localhost", "agent": ECHO}],
        }
        (tmp_path / "platform.yaml").write_text(json.dumps(values))
        command = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True)

    assert find_modules(enabled=False).stdout == "[]\n"
    traced = find_modules(enabled=True)
    assert "'opentelemetry.trace'" in traced.stdout
    assert "there is no SDK that records spans; start with opentelemetry-instrument" in traced.stderr


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    (tmp_path / "platform.yaml").write_text(json.dumps({"tracing": {"enabled": True}}))
    with pytest.raises(ConfigError, match=r"tracing.enabled: needs the extra otel; run: pip install .*\[otel\]"):
        load_settings(tmp_path / "platform.yaml", tmp_path, {})
