"""The door with clients for Node: OpenAI's own, and Vercel's AI SDK. npm installs them once, into `build`."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.door_agents import Desk
from tests.support.doors import KEY
from tests.support.node_packages import install_packages
from tests.support.openai_door import MODEL, OpenAIDoor, serve_agent

_SCRIPTS = Path(__file__).parent / "node"

pytestmark = [
    pytest.mark.release,  # they are downloaded
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def packages() -> Path:
    """Install the packages, unless they are there."""
    directory = install_packages(_SCRIPTS, "node-clients")
    for script in _SCRIPTS.glob("*.js"):
        shutil.copy(script, directory)
    return directory


async def run(packages: Path, script: str, door: OpenAIDoor) -> Any:
    """Run a script with Node, and return the JSON that it prints."""
    arguments = "node", script, f"{door.url}/v1", KEY, MODEL
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*arguments, cwd=packages, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def test_the_client_of_openai_for_node(url: str, packages: Path) -> None:
    async with serve_agent(url, Desk()) as door:
        found = await run(packages, "openai_client.js", door)
    assert found == {
        "models": [MODEL],
        "chat": "done: hello",
        "stream": ["one ", "two ", "three"],
        "thoughts": "let me see",
        "responses": ["done: hello", "done: more"],
        "retrieved": "done: more",
        "streamed": "done: think",
        "error": [404, "model_not_found"],
    }


async def test_the_ai_sdk_of_vercel(url: str, packages: Path) -> None:
    desk = Desk()
    async with serve_agent(url, desk) as door:
        found = await run(packages, "ai_client.js", door)
    for name in ("responses", "chat", "compatible"):
        # OpenAI's chat completions have no place for thoughts; the provider for compatible servers reads them.
        thoughts = None if name == "chat" else "let me see"
        assert found[name] == {
            "texts": [f"done: hello {name}", "done: more"],
            "pieces": ["one ", "two ", "three"],
            "finish": "stop",
            "thoughts": thoughts,
            "tokens": 25,
        }
    sessions = {query: session for (_, query), session in zip(desk.seen, desk.sessions, strict=True)}
    assert sessions["hello compatible"] == sessions["more"]  # the last one of the three
