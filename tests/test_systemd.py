"""config/spade-coreason.service, without a running systemd: its keys, its sandbox, and its commands started by hand."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.program import run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

UNIT = Path(__file__).parents[1] / "config" / "spade-coreason.service"
MAX_EXPOSURE = 20  # tenths of systemd's scale, on which 100 is a service without a sandbox


def values(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.M)


@pytest.fixture
def installed_unit(tmp_path: Path) -> Path:
    """The unit with a program that exists, for the checks of systemd."""
    unit = tmp_path / UNIT.name
    [start] = values("ExecStart")
    unit.write_text(UNIT.read_text().replace(start, "/bin/true").replace("WorkingDirectory=/srv/agents", "WorkingDirectory=/"))
    return unit


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    require("systemd", shutil.which("systemd-analyze") is not None)
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_systemd_knows_every_key_of_the_unit(installed_unit: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(installed_unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    installed_unit.write_text(installed_unit.read_text().replace("ProtectHome=yes", "ProtectHomes=yes"))
    assert "ProtectHomes" in analyze("verify", "--man=no", "--recursive-errors=no", str(installed_unit)).stderr


def test_the_sandbox_of_the_unit_is_tight(installed_unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(installed_unit))
    assert done.returncode == 0, done.stdout


async def test_the_unit_starts_and_stops_a_platform(prosody: XmppServer, tmp_path: Path) -> None:
    """Run ExecStart with its environment, in the directories of the unit below `tmp_path`."""
    jid, password = await prosody.account()
    etc, project, data = (tmp_path / name for name in ("etc/spade-coreason", "srv/agents", "var/lib/spade-coreason"))
    for directory in (etc, project, data):
        directory.mkdir(parents=True)
    (etc / "platform.yaml").write_text(
        f"server: {{mode: external, host: {prosody.host}, port: {prosody.port}, tls: {{ca_file: '{prosody.ca_file}'}}}}\n"
        f"agents:\n  - {{jid: {jid}, agent: 'greeter:Greeter', password: '${{ECHO_PASSWORD}}'}}\n"
    )
    (project / "greeter.py").write_text(
        "class Greeter:\n    def __init__(self, manifest): self.manifest = manifest\n"
        "    async def assist(self, request, session, response): await response.markdown('Hello')\n"
    )
    program, *arguments = [word.replace("/etc/", f"{tmp_path}/etc/") for word in shlex.split(values("ExecStart")[0])]
    assert program == "/opt/spade-coreason/bin/spade-coreason"
    environment = dict(pair.split("=", 1) for pair in values("Environment")[0].split())
    environment["SPADE_COREASON_DATA_DIR"] = environment["SPADE_COREASON_DATA_DIR"].replace("/var/", f"{tmp_path}/var/")
    assert environment["SPADE_COREASON_DATA_DIR"].endswith(f"/{values('StateDirectory')[0]}")

    # Without the file of passwords: a mistake in the configuration, after which systemd does not try again.
    refused = await asyncio.to_thread(run_command, *arguments, cwd=project, env=environment)
    assert str(refused.returncode) in values("RestartPreventExitStatus")[0].split()
    environment["ECHO_PASSWORD"] = password
    with run_in_background(*arguments, cwd=project, env=environment, until="Ready") as up:
        async with StockClient(*await prosody.account(), prosody) as alice:
            assert await alice.ask("hello", jid) == "Hello"
        shown = await asyncio.to_thread(run_command, "status", "--data", str(data), cwd=tmp_path)
        assert shown.returncode == 0
        assert (await asyncio.to_thread(up.stop, signal.SIGTERM))[0] == 0
    assert [path.name for path in project.iterdir()] == ["greeter.py"]
    assert (data / "platform.db").exists()
