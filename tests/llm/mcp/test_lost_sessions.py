"""A server that has forgotten the session of a client (HTTP 404): the call is sent once more, in a new one, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from spade_coreason import AgentTester
from spade_coreason.llm import LLMAgent
from spade_coreason.llm.mcp.server import MCPServer
from spade_coreason.testing import FakeModel, tool_call
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.llm.test_agent import run_helper_agent
from tests.support.approvals import APPROVER, Desk, read_question, run_desk
from tests.support.chat_completions import text_answer, tool_call_answer
from tests.support.mcp_servers.servers import last_tool_results, log_lines, sdk_server, wait_until_listening
from tests.support.wait import TIMEOUT_S


class SdkServer:
    """A server of the SDK that keeps its sessions in memory: it forgets them when it starts again, at the same address."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._description = ""
        [self._port] = find_free_ports(1)
        self.options = {"url": f"http://127.0.0.1:{self._port}/mcp", "timeout_s": 30}

    async def __aenter__(self) -> SdkServer:
        command = [*sdk_server(self.log)["command"], str(self._port), "sessions", self._description]
        self._process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
        await wait_until_listening(self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def restart(self, description: str = "") -> None:
        """Start again; `description` is another one for its tool that erases."""
        await self.__aexit__()
        self._description = description
        await self.__aenter__()

    def erased(self) -> list[str]:
        return [line for line in log_lines(self.log) if line.startswith("erased")]


def server_of(t: AgentTester) -> MCPServer:
    assert isinstance(t.agent, LLMAgent)
    [server] = t.agent.mcp_servers._servers
    return server


async def approve(t: AgentTester) -> None:
    _, code = await read_question(t)
    await t.say(f"/approve {code}", user=APPROVER)


async def test_an_approved_call_is_not_used_up_by_a_server_that_has_forgotten_its_session(tmp_path: Path) -> None:
    model = FakeModel([tool_call("files__erase", name="a"), "Done."])
    async with SdkServer(tmp_path / "log") as server, run_desk(model, Desk(), mcp={"files": server.options}) as t:
        await t.say("erase it", timeout=30)
        assert server_of(t).is_connected
        await server.restart()
        await approve(t)
        assert (await t.message()).text == "Done."
        assert server.erased() == ["erased a"]
        assert model.requests[-1].tool_results == ["erased a"]


async def test_calls_that_find_their_session_forgotten_at_once_run_once_each(tmp_path: Path) -> None:
    calls = tool_call_answer(*(("files__add", {"a": number, "b": 1}) for number in range(5)))
    async with SdkServer(tmp_path / "log") as server:
        options: dict[str, Any] = {"mcp": {"files": server.options}, "limits": {"tool_timeout_s": TIMEOUT_S}}
        async with run_helper_agent(text_answer("Yes."), calls, text_answer("Done."), **options) as (model, t):
            await t.ask("are you there?")
            await server.restart()
            assert (await t.ask("go", timeout=TIMEOUT_S)).text == "Done."
    assert last_tool_results(model.requests[-1]) == ["1", "2", "3", "4", "5"]


async def test_a_tool_that_has_changed_with_the_new_session_is_not_called(tmp_path: Path) -> None:
    model = FakeModel([tool_call("files__erase", name="a"), "Done."])
    async with SdkServer(tmp_path / "log") as server, run_desk(model, Desk(), mcp={"files": server.options}) as t:
        await t.say("erase it", timeout=30)
        await server.restart("Erases all files.")
        await approve(t)
        assert (await t.message()).text == "Done."
        assert server.erased() == []
        assert model.requests[-1].tool_results == ["error: the MCP server files has changed erase, which was not called"]


class ForgetfulServer:
    """A server of the protocol before 2026, which answers calls with `respond`, and opens a session as often as it is asked."""

    def __init__(self, *, breaks_off: bool) -> None:
        self.breaks_off = breaks_off
        self.sessions = 0
        self.calls: list[str] = []
        self.resumed = asyncio.Event()

    async def respond(self, request: web.Request) -> web.StreamResponse:
        session = request.headers.get("mcp-session-id", "")
        if request.method != "POST":
            if "Last-Event-ID" in request.headers:
                self.resumed.set()
                return web.Response(status=404)
            return web.Response(status=405)
        message = await request.json()
        result: dict[str, Any]
        match message["method"]:
            case "initialize":
                self.sessions += 1
                info = {"name": "old", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
                session = str(self.sessions)
            case "tools/list":
                result = {"tools": [{"name": "pay", "inputSchema": {"type": "object"}}]}
            case "tools/call":
                self.calls.append(session)
                if not self.breaks_off:
                    return web.Response(status=404)
                stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                await stream.prepare(request)
                await stream.write(b"id: 1\nretry: 1\ndata: \n\n")  # the result has begun
                return stream
            case "server/discover":
                return web.Response(status=404)
            case _:
                return web.Response(status=202)
        headers = {"mcp-session-id": session}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)


@asynccontextmanager
async def call_forgetful_server(*, breaks_off: bool) -> AsyncIterator[tuple[ForgetfulServer, str]]:
    """Let an agent call the tool of a server; yield the server and the result that the model gets."""
    server = ForgetfulServer(breaks_off=breaks_off)
    application = web.Application()
    application.router.add_route("*", "/mcp", server.respond)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    mcp = {"web": {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/mcp", "timeout_s": 30}}
    answers = tool_call_answer(("web__pay", {})), text_answer("Sorry.")
    try:
        async with run_helper_agent(*answers, mcp=mcp, limits={"tool_timeout_s": TIMEOUT_S}) as (model, t):
            assert (await t.ask("go", timeout=TIMEOUT_S)).text == "Sorry."
        [result] = last_tool_results(model.requests[-1])
        yield server, result
    finally:
        await runner.cleanup()


async def test_a_second_404_is_an_error_that_says_what_to_do() -> None:
    async with call_forgetful_server(breaks_off=False) as (server, result):
        assert server.calls == ["1", "2"]
        assert result == (
            "error: the MCP server web does not know the session that it has just opened (HTTP 404), and did not run the call;"
            " if there are several servers behind its address, let each session stay at one"
        )


async def test_a_call_whose_result_had_begun_is_not_sent_twice() -> None:
    async with call_forgetful_server(breaks_off=True) as (server, result):
        assert server.resumed.is_set()
        assert server.calls == ["1"]
        assert result.startswith("error: the MCP server web ")
