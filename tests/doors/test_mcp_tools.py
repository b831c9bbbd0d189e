"""The tools of the MCP door: their names, schemas and arguments, and what a server that nobody asks loads."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from spade_coreason import AgentDefinition
from spade_coreason.contracts import AgentCapability
from spade_coreason.doors.agents import DoorAgents
from spade_coreason.doors.channel import DoorEvent
from spade_coreason.doors.mcp.results import ToolAnswer
from spade_coreason.doors.mcp.tools import AgentTool, make_tools


def tools_of(*agents: tuple[str, list[AgentCapability]]) -> dict[str, AgentTool]:
    doors = DoorAgents()
    for jid, capabilities in agents:
        definition = AgentDefinition.simple(jid).model_copy(update={"capabilities": capabilities})
        doors.add(jid, definition, ["mcp"])
    return make_tools(doors.list_agents("mcp"))


def capability(name: str, **keys: Any) -> AgentCapability:
    return AgentCapability(name=name, **keys)


def test_names_are_valid_unique_and_independent_of_the_order() -> None:
    agents = [
        ("desk@a.example", [capability("Ünd so"), capability("chat")]),
        ("desk@b.example", [capability("chat")]),
        ("desk_chat@a.example", [capability("x" * 80)]),
        ("öl@a.example", [capability("chat")]),
    ]
    tools = tools_of(*agents)
    assert len(tools) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) for name in tools)
    assert "desk_chat" not in tools
    assert sum(name.startswith("desk_chat_") for name in tools) == 3
    assert set(tools_of(*reversed(agents))) == set(tools)


def test_the_arguments_of_the_door_have_a_prefix_beside_those_of_the_capability() -> None:
    inputs = {"type": "object", "properties": {"answer": {"type": "integer"}}, "additionalProperties": False}
    [tool] = tools_of(("desk@a.example", [capability("count", inputs=inputs)])).values()
    described = tool.describe().input_schema
    assert set(described["properties"]) == {"answer", "conversation", "request_id", "question", "door_answer"}
    assert described["additionalProperties"] is False
    arguments = tool.read({"answer": 5, "door_answer": "red", "conversation": "c"})
    assert (arguments.payload, arguments.answer, arguments.conversation) == ({"answer": 5}, "red", "c")


def test_a_capability_without_inputs_takes_a_query() -> None:
    [tool] = tools_of(("desk@a.example", [capability("chat")])).values()
    assert tool.describe().input_schema["required"] == ["query"]


@pytest.mark.parametrize("inputs", [{}, {"properties": {"query": {"type": "string"}}}, {"type": "array"}])
def test_what_a_tool_shows_as_required_is_required(inputs: dict[str, Any]) -> None:
    [tool] = tools_of(("desk@a.example", [capability("chat", inputs=inputs)])).values()
    assert tool.describe().input_schema["required"] == ["query"]
    tool.validate({"query": "tea"})
    with pytest.raises(ValueError, match="query"):
        tool.validate({"other": "tea"})


@pytest.mark.parametrize("value", ["", "  ", 5, "a\nb", "x" * 129])
def test_a_malformed_argument_of_the_door_is_refused(value: object) -> None:
    [tool] = tools_of(("desk@a.example", [capability("chat")])).values()
    with pytest.raises(ValueError, match="conversation must"):
        tool.read({"query": "x", "conversation": value})


async def test_the_data_that_fit_the_outputs_are_the_structured_content() -> None:
    outputs = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}
    answer = ToolAnswer()
    for data in ({"city": "Berlin"}, {"celsius": 12}):
        answer.add(DoorEvent("block.data", {"data": data, "title": None}))
    assert await answer.find_structured_content(outputs) == ({"celsius": 12}, None)
    assert (await answer.find_structured_content(None))[0] == {"data": [{"city": "Berlin"}, {"celsius": 12}]}
    structured, problem = await ToolAnswer().find_structured_content(outputs)
    assert (structured, problem) == (None, "the agent has sent no data, and its capability promises some")


def test_a_repeated_reply_replaces_what_came_before() -> None:
    answer = ToolAnswer()
    for kind, data in (
        ("block.markdown", {"content": "Which colour?"}),
        ("stream.start", {"stream_id": "s", "title": None}),
        ("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "half a"}),
        ("request.repeated", {}),
        ("block.markdown", {"content": "painted blue"}),
    ):
        answer.add(DoorEvent(kind, data))
    assert answer.text == "painted blue"


def test_an_aborted_stream_has_its_replacement() -> None:
    answer = ToolAnswer()
    for kind, data in (
        ("stream.start", {"stream_id": "s", "title": None}),
        ("stream.chunk", {"stream_id": "s", "seq": 0, "chunk": "a secret"}),
        ("stream.abort", {"stream_id": "s", "reason": "a rule", "replacement": "left out"}),
    ):
        answer.add(DoorEvent(kind, data))
    assert answer.text == "left out"


def test_the_sdk_is_not_loaded_before_the_first_request() -> None:
    code = (
        "import sys; from spade_coreason.doors import DoorAgents, WebServer, make_mcp_routes; "
        "WebServer; make_mcp_routes(DoorAgents()); print({'mcp', 'mcp_types'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
