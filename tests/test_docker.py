"""docker/, tested without an engine: every file that it names exists, and Prosody runs with its configuration."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from spade_coreason import AgentClient, Platform, load_settings
from spade_coreason.config.runfile import RunFile, write_run_file
from spade_coreason.storage.lock import lock_directory
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.servers.requirements import require
from tests.support.wait import TIMEOUT_S

ROOT = Path(__file__).parents[1]
DOCKER = ROOT / "docker"
DOCKERFILES = [DOCKER / "Dockerfile", DOCKER / "prosody" / "Dockerfile"]


def instructions(path: Path) -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_has_known_instructions_and_copies_what_is_there(path: Path) -> None:
    known = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    found = instructions(path)
    assert {name for name, _ in found} <= known
    assert found[0][0] == "FROM"
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_nothing_runs_as_root(path: Path) -> None:
    users = [rest for name, rest in instructions(path) if name == "USER"]
    assert users
    assert users[-1] != "root"


def test_the_platforms_image_is_slim_and_has_a_health_check(tmp_path: Path) -> None:
    found = instructions(DOCKER / "Dockerfile")
    assert all("-slim" in rest.split()[0] for name, rest in found if name == "FROM")
    [check] = [rest for name, rest in found if name == "HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"

    def is_well() -> bool:
        return subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=False).returncode == 0

    assert not is_well()
    data = tmp_path / "data"
    with lock_directory(data):
        run = RunFile(os.getpid(), "external", None, None, "example.org", True, None, None, [])
        asyncio.run(write_run_file(data, run))
        assert is_well()
    assert not is_well()


def test_compose_names_files_volumes_and_services_that_are_there() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        context = (DOCKER / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).is_file(), name
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"]
        for other in service.get("depends_on", {}):
            assert "healthcheck" in compose["services"][other]


async def test_the_platform_of_compose_runs_on_the_prosody_of_compose(tmp_path: Path) -> None:
    require("Prosody", shutil.which("prosody") is not None)
    [port] = find_free_ports(1)
    for name in ("certs", "data"):
        (tmp_path / name).mkdir()
    environment = {
        **os.environ,
        "PROSODY_DATA": str(tmp_path / "data"),
        "CERTS": str(tmp_path / "certs"),
        "C2S_PORT": str(port),
        "C2S_INTERFACE": "127.0.0.1",
        "CONFIG": str(DOCKER / "prosody" / "prosody.cfg.lua"),
        "RUN_AS_ROOT": "yes" if os.getuid() == 0 else "no",
    }
    server = await asyncio.create_subprocess_exec(
        "sh",
        str(DOCKER / "prosody" / "start.sh"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert server.stdout is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while b"Activated service 'c2s'" not in (line := await server.stdout.readline()):
                assert line, "Prosody ended"
        text = (DOCKER / "platform.yaml").read_text()
        text = text.replace("host: prosody", "host: 127.0.0.1").replace("port: 5222", f"port: {port}")
        config = tmp_path / "platform.yaml"
        config.write_text(text.replace("/certs/", f"{tmp_path}/certs/"))
        settings = load_settings(config, tmp_path, {**os.environ, "AGENT_PASSWORD": "a password"})
        ca_file = tmp_path / "certs" / "localhost.crt"
        async with Platform(settings):
            account = ("visitor@localhost", "another password")
            async with AgentClient(*account, host="127.0.0.1", port=port, ca_file=ca_file, register=True) as client:
                assert (await client.ask("echo@localhost", "hello there")).text == "hello there"
    finally:
        server.terminate()
        await server.communicate()
