"""Importing the package changes nothing but the modules that are loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import import_side_effects

ROOT = Path(__file__).parents[1]
MAY_APPEAR = re.compile(r"pyjabber_xep0363_\w+$")
"""SPADE imports pyjabber, which makes a directory for uploads at its import; the first agent removes it."""
MAY_BE_SET: set[str] = set()
"""Variables of the environment that an import may set."""


def test_importing_every_module_leaves_the_process_and_its_files_as_they_were(tmp_path: Path) -> None:
    directories = {name: str(tmp_path) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    environment = {**os.environ, **directories, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, import_side_effects.__file__]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    changed = report["changed"]
    before, after = changed.pop("files", ([], []))
    assert [name for name in {*before} ^ {*after} if not MAY_APPEAR.match(name)] == []
    before, after = changed.pop("environment", ({}, {}))
    assert {name for name in {**before, **after} if before.get(name) != after.get(name)} <= MAY_BE_SET
    assert changed == {}
    assert {"spade_coreason.xmpp.host", "spade_coreason.xmpp.connection.slixmpp_client", "spade_coreason.cli.app"} <= set(
        report["modules"]
    )
    assert done.stderr == ""


def test_side_effects_of_an_import_are_detected(tmp_path: Path) -> None:
    (tmp_path / "meddling").mkdir()
    (tmp_path / "meddling" / "__init__.py").write_text("")
    (tmp_path / "meddling" / "module.py").write_text(
        "import asyncio, logging, os, pathlib, signal, threading\n"
        "pathlib.Path('made').touch()\n"
        "os.environ['MEDDLED'] = '1'\n"
        "logging.getLogger().addFilter(lambda record: True)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    program = [sys.executable, import_side_effects.__file__, "meddling"]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    changed = set(json.loads(done.stdout)["changed"])
    assert changed == {"files", "environment", "root logger", "signal handlers", "threads", "event loop policy"}


def test_the_first_agents_clean_up_after_spade_and_slixmpp_once(tmp_path: Path) -> None:
    program = (
        "import asyncio, logging, pathlib\n"
        "from spade_coreason.agents.echo import EchoAgent\n"
        "from spade_coreason.contracts import AgentDefinition\n"
        "from spade_coreason.domain.access import AccessPolicy\n"
        "from spade_coreason.domain.policy import Policy\n"
        "from spade_coreason.runtime import AgentParts, AgentRules, Files, PeerOptions\n"
        "from spade_coreason.storage import AgentRepository, open_database\n"
        "from spade_coreason.xmpp.connection.endpoint import ServerEndpoint\n"
        "from spade_coreason.xmpp.connection.login import Login\n"
        "from spade_coreason.xmpp.host import HostedAgent\n"
        "async def main():\n"
        "    made = list(pathlib.Path().glob('pyjabber_xep0363_*'))\n"
        "    database = await open_database('sqlite+aiosqlite:///platform.db')\n"
        "    agent, access = EchoAgent(AgentDefinition.simple('echo')), AccessPolicy('a@localhost')\n"
        "    repository = AgentRepository(database, 'a@localhost')\n"
        "    rules = AgentRules(access, Policy())\n"
        "    parts = lambda network, upload: AgentParts(repository, network, Files(upload), PeerOptions(), rules)\n"
        "    build = lambda network, upload: parts(network, upload).build_runtime(agent)\n"
        "    endpoint = ServerEndpoint('127.0.0.1', 9)\n"
        "    logins = [Login(jid, 'x') for jid in ('a@localhost', 'b@localhost')]\n"
        "    agents = [HostedAgent(login, endpoint, build, stanza_bytes=65536) for login in logins]\n"
        "    left = list(pathlib.Path().glob('pyjabber_xep0363_*'))\n"
        "    await database.close()\n"
        "    print(len(made), len(left), len(logging.getLogger().filters))\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1 0 1\n"
