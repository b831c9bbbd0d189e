"""The official client of A2A for JavaScript. It is installed once, into build/a2a-js; without npm the test is skipped."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.a2a_door import BINDINGS, serve_a2a
from tests.support.door_agents import Desk
from tests.support.doors import KEY
from tests.support.hosting import PROJECT

_PACKAGE = "@a2a-js/sdk@1.3.0"
_INSTALL_S, _RUN_S = 120, 60


async def _run(*command: str, timeout_s: float, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    async with asyncio.timeout(timeout_s):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def _install() -> Path:
    directory = PROJECT / "build" / "a2a-js"
    if not (directory / "node_modules" / "@a2a-js").is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        await _run("npm", "install", "--silent", "--prefix", str(directory), _PACKAGE, timeout_s=_INSTALL_S)
    return directory


@pytest.mark.timeout(300)
async def test_the_javascript_client_asks_streams_and_answers(url: str) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    directory, desk = await _install(), Desk()
    desk.release.set()
    async with serve_a2a(url, desk) as server:
        for binding in BINDINGS:
            command = ["node", str(Path(__file__).with_name("client.mjs")), server.url, binding]
            got = json.loads(await _run(*command, timeout_s=_RUN_S, A2A_KEY=KEY, A2A_JS=str(directory)))
            done = got.pop("done")
            assert got == {
                "answered": "done: hello",
                "found": "done: hello",
                "streamed": "one two",
                "asked": "TASK_STATE_INPUT_REQUIRED",
            }
            assert done.endswith("painted blue")
