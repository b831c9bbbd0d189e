"""The systemd units of config/, without a running systemd: their keys, their sandbox, and their commands started by hand."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from spade_coreason.app.loop_watch import BLOCKED_S
from spade_coreason.exceptions import LeaseLostError
from tests.docs.pages import DOCS, read_page
from tests.support.databases import execute
from tests.support.notify_socket import open_notify_socket
from tests.support.program import COMMAND, run_command, run_in_background
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import find_program, require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually

CONFIG = Path(__file__).parents[1] / "config"
UNIT = CONFIG / "spade-coreason.service"
WORKER = CONFIG / "spade-coreason@.service"
BACKUP = CONFIG / "spade-coreason-backup.service"
MAX_EXPOSURE = 20  # tenths of systemd's scale, on which 100 is a service without a sandbox


def values(key: str, unit: Path = UNIT) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.M)


@pytest.fixture(params=[UNIT, WORKER], ids=lambda unit: unit.name)
def installed_unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit with a program that exists, for the checks of systemd."""
    source: Path = request.param
    unit = tmp_path / source.name
    [start] = values("ExecStart", source)
    unit.write_text(
        source.read_text().replace(start, "/bin/true").replace("WorkingDirectory=/srv/agents", "WorkingDirectory=/")
    )
    return unit


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    require("systemd", find_program("systemd-analyze") is not None)
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.servers
def test_systemd_knows_every_key_of_the_unit(installed_unit: Path) -> None:
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(installed_unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    installed_unit.write_text(installed_unit.read_text().replace("ProtectHome=yes", "ProtectHomes=yes"))
    assert "ProtectHomes" in analyze("verify", "--man=no", "--recursive-errors=no", str(installed_unit)).stderr


@pytest.mark.servers
def test_systemd_knows_every_key_of_the_backup_and_its_timer(tmp_path: Path) -> None:
    backup, timer = tmp_path / BACKUP.name, tmp_path / "spade-coreason-backup.timer"
    backup.write_text(BACKUP.read_text())
    timer.write_text(timer_text := (CONFIG / timer.name).read_text())
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(timer), str(backup))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    timer.write_text(timer_text.replace("OnCalendar=03:00", "OnCalendar=25:00"))
    assert "25:00" in analyze("verify", "--man=no", "--recursive-errors=no", str(timer)).stderr


def test_the_backup_of_the_unit_is_restored(tmp_path: Path) -> None:
    """Run the commands of the backup in the directories of the unit below `tmp_path`."""
    etc, data, backups = (tmp_path / name for name in ("etc", "var/lib/spade-coreason", "var/lib/spade-coreason-backups"))
    for directory in (etc, backups):
        directory.mkdir(parents=True)
    assert {f"/var/lib/{name}" for name in values("StateDirectory", BACKUP)[0].split()} == {
        f"/{directory.relative_to(tmp_path)}" for directory in (data, backups)
    }
    (etc / "platform.yaml").write_text(
        f"data_dir: {data}\nagents:\n  - {{jid: notes@localhost, agent: 'spade_coreason.agents.notes:NotesAgent'}}\n"
    )
    program = tmp_path / "spade-coreason"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    old, recent = backups / "old.tar", backups / "recent.tar"
    for file, age_days in ((old, 16), (recent, 2)):
        file.touch()
        os.utime(file, (time.time() - age_days * 86_400,) * 2)
    with run_in_background("up", "-c", str(etc / "platform.yaml"), cwd=tmp_path, until="Ready") as up:
        assert up.run_command("ask", "notes@localhost", "I like green tea", "--data", str(data)).returncode == 0
        for key in ("ExecStart", "ExecStartPost"):
            # What systemd replaces in a command, and the directories.
            command = values(key, BACKUP)[0].replace("$$", "$").replace("%%", "%").replace("*.tar", "'*.tar'")
            command = command.replace("/opt/spade-coreason/bin/spade-coreason", str(program))
            command = command.replace("/etc/spade-coreason", str(etc)).replace("/var/", f"{tmp_path}/var/")
            subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, timeout=TIMEOUT_S)
    [made] = set(backups.iterdir()) - {recent}
    assert run_command("storage", "restore", str(made), "--data", "restored", cwd=tmp_path).returncode == 0
    exported = run_command("sessions", "list", "--data", "restored", cwd=tmp_path)
    assert "notes@localhost" in exported.stdout


@pytest.mark.servers
def test_the_sandbox_of_the_unit_is_tight(installed_unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", str(installed_unit))
    assert done.returncode == 0, done.stdout


@pytest.mark.servers
@pytest.mark.parametrize("installed_unit", [UNIT], indirect=True, ids=lambda unit: unit.name)
def test_a_platform_of_its_own_has_the_unit_with_its_own_places_and_limits(installed_unit: Path) -> None:
    """A drop-in adds to lists, and `KEY=` empties them. Nothing of the first platform may be left in one."""
    drop_in = installed_unit.with_name(f"{installed_unit.name}.d") / "own.conf"
    drop_in.parent.mkdir()
    [text] = [block.text for block in read_page(DOCS / "how-to/isolation.md").blocks if block.title == drop_in.name]
    [start] = re.findall(r"^ExecStart=(.+)$", text, re.M)
    drop_in.write_text(text.replace(start, "/bin/true").replace("/srv/reports", "/"))
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(installed_unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert set(re.findall(r"^(\w+)=$", text, re.M)) == {"ExecStart", "EnvironmentFile", "StateDirectory"}
    place = re.compile(r"/(?:etc|var/lib|srv)/[\w-]+|^(?:User|StateDirectory)=.+$", re.M)
    of_the_first = text.replace("/srv/reports", "/srv/agents").replace("reports", "spade-coreason")
    assert set(place.findall(UNIT.read_text().partition("[Unit]")[2])) == set(place.findall(of_the_first))
    drop_in.write_text(drop_in.read_text().replace("MemoryMax=", "MemoryMaximum="))
    assert "MemoryMaximum" in analyze("verify", "--man=no", "--recursive-errors=no", str(installed_unit)).stderr


def test_a_worker_has_the_unit_of_a_platform_with_what_several_need() -> None:
    def keys(unit: Path) -> set[str]:
        return {line for line in unit.read_text().partition("[Unit]")[2].splitlines() if not line.startswith("#")}

    assert keys(UNIT) - keys(WORKER) == {
        "Description=spade_coreason: agents on an XMPP server",
        "RestartSec=5",
        "TimeoutStopSec=30",
    }
    assert keys(WORKER) - keys(UNIT) == {
        "Description=spade_coreason: worker %i",
        "StartLimitIntervalSec=0",
        "EnvironmentFile=-/etc/spade-coreason/worker-%i",
        "RestartSec=1",
        f"RestartForceExitStatus={LeaseLostError.exit_code}",
        "TimeoutStopSec=120",
    }


@pytest.mark.parametrize("unit", [UNIT, WORKER], ids=lambda unit: unit.name)
def test_the_watchdog_waits_until_the_platform_knows_what_blocks_it(unit: Path) -> None:
    """The event loop reports at half of the time. The platform looks four times in its own, and then writes the stacks."""
    [watchdog_s] = values("WatchdogSec", unit)
    assert int(watchdog_s) / 2 > BLOCKED_S * 1.25
    assert values("Type", unit) == ["notify"]


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
    # A wrong password: servers lock out an address that tries it again and again.
    environment["ECHO_PASSWORD"] = "wrong"
    refused = await asyncio.to_thread(run_command, *arguments, cwd=project, env=environment)
    assert (refused.returncode, "refuses the login" in refused.stderr) == (5, True)
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


async def test_two_workers_of_the_template_share_the_agents(prosody: XmppServer, postgres: Postgres, tmp_path: Path) -> None:
    """Run ExecStart of the template twice, as systemd does for spade-coreason@1 and spade-coreason@2."""
    etc, data = tmp_path / "etc/spade-coreason", tmp_path / "var/lib/spade-coreason"
    for directory in (etc, data):
        directory.mkdir(parents=True)
    accounts = [await prosody.account() for _ in range(2)]
    (etc / "platform.yaml").write_text(
        f"server: {{mode: external, host: {prosody.host}, port: {prosody.port}, tls: {{ca_file: '{prosody.ca_file}'}}}}\n"
        "storage: {url: '${DATABASE_URL}'}\nagents:\n"
        + "".join(
            f"  - {{jid: {jid}, agent: 'spade_coreason.agents.echo:EchoAgent', password: {password}}}\n"
            for jid, password in accounts
        )
    )
    _, *arguments = [word.replace("/etc/", f"{tmp_path}/etc/") for word in shlex.split(values("ExecStart", WORKER)[0])]
    environment = dict(pair.split("=", 1) for pair in values("Environment", WORKER)[0].split())
    environment["SPADE_COREASON_DATA_DIR"] = str(data)
    environment["DATABASE_URL"] = url = postgres.url()

    def count_shares() -> list[int]:
        rows = execute(url, "SELECT worker, count(*) AS shared FROM leases WHERE worker IS NOT NULL GROUP BY worker")
        return [row["shared"] for row in rows]

    with open_notify_socket() as notices:
        environment["NOTIFY_SOCKET"] = notices.address
        with run_in_background(*arguments, cwd=etc, env=environment, until="Ready") as first:
            assert notices.receive() == "READY=1"
            with run_in_background(*arguments, cwd=etc, env=environment, until="Ready") as second:
                assert notices.receive() == "READY=1"
                await eventually(lambda: count_shares() == [1, 1])
                assert (data / "workers" / "2" / "run.json").exists()
                assert (await asyncio.to_thread(first.stop, signal.SIGTERM))[0] == 0
                assert notices.receive() == "STOPPING=1"
                await eventually(lambda: count_shares() == [2])
                async with StockClient(*await prosody.account(), prosody) as alice:
                    assert [await alice.ask("hello", jid) for jid, _ in accounts] == ["hello", "hello"]
                assert (await asyncio.to_thread(second.stop, signal.SIGTERM))[0] == 0
