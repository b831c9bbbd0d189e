"""What a person sees, and what a server gets, where a connection is not safe."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.test_up import agent_of, echo_on, one_line, wait_for_status, write_external_config
from tests.support.hosting import Tunnel
from tests.support.private_host import run_on_private_host
from tests.support.program import run_command, run_in_background
from tests.support.servers import prosody as prosody_server
from tests.support.servers.requirements import require
from tests.support.servers.scripted import Peer, contains_password, mechanisms, run_script
from tests.support.servers.server import XmppServer

ECHO = "spade_coreason.agents.echo:EchoAgent"
PASSWORD = "a-password-of-its-own"
HOST = ("--host", "127.0.0.1", "--port", "PORT")


def hide_starttls(data: bytes) -> bytes:
    """Do what an attacker on the path may do before TLS."""
    return re.sub(rb"<starttls[^>]*/>|<starttls.*?</starttls>", b"", data)


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "echo@localhost", "a secret question", "--jid", "me@localhost", *HOST),
        ("chat", "echo@localhost", "--jid", "me@localhost", *HOST),
        ("run", ECHO, "--jid", "echo@localhost", "--register", *HOST),
        ("check", "-c", "platform.yaml"),
        ("up", "-c", "platform.yaml"),
    ],
    ids=lambda command: command[0],
)
async def test_no_command_sends_anything_to_a_server_without_tls(command: Sequence[str], tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.offer(mechanisms("ANONYMOUS", "PLAIN"))
        await peer.serve()

    async with run_script(script) as server:
        settings = {"mode": "external", "host": "127.0.0.1", "port": server.port}
        agent = {"jid": "echo@localhost", "password": PASSWORD, "agent": ECHO, "register": True}
        (tmp_path / "platform.yaml").write_text(json.dumps({"server": settings, "agents": [agent]}))
        (tmp_path / "platform.yaml").chmod(0o600)
        arguments = [part.replace("PORT", str(server.port)) for part in command]
        env = {"SPADE_COREASON_PASSWORD": PASSWORD}
        done = await asyncio.to_thread(run_command, *arguments, cwd=tmp_path, env=env, stdin="a secret question\n")
    assert done.returncode == 4, done.stderr
    text = done.stdout + done.stderr
    assert f"127.0.0.1:{server.port}: it offers no TLS, so no login was tried; enable TLS on the server" in text
    assert "Ready" not in text
    assert re.fullmatch(r"(?:<stream:stream[^>]*>)+", server.received), server.received


async def test_an_attacker_who_hides_starttls_gets_nothing(prosody: XmppServer, tmp_path: Path) -> None:
    """Also at a reconnection: the agent waits until its server is back."""
    echo = await echo_on(prosody)
    async with Tunnel(prosody) as tunnel:
        file = write_external_config(tmp_path, prosody, tunnel.port, echo)
        with run_in_background("up", "-c", str(file), cwd=tmp_path, until="", may_log=["files", "connect"]) as up:
            await asyncio.to_thread(up.wait_for, "^Ready")
            tunnel.edit = hide_starttls
            tunnel.cut()
            status = await wait_for_status(
                tmp_path / "data", lambda status: "offers no TLS" in str(status.agents[0].connection_problem)
            )
            assert status.agents[0].state == "reconnecting"
            tunnel.edit = lambda data: data
            status = await wait_for_status(tmp_path / "data", lambda status: status.is_healthy)
            assert "TLS 1.3, certificate of localhost" in str(agent_of(status, echo["jid"]).security)
            await asyncio.to_thread(up.stop)


@pytest.mark.servers
async def test_plain_text_to_this_machine_is_a_setting_and_a_warning(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    with prosody_server.prosody(tmp_path / "server", requires_tls=False) as server:
        echo, (person, password) = await echo_on(server), await server.account()
        async with Tunnel(server) as tunnel:
            tunnel.edit = hide_starttls  # a server that has no TLS
            file = write_external_config(tmp_path, server, tunnel.port, echo)
            settings = json.loads(file.read_text())
            settings["server"]["tls"]["required"] = False
            file.write_text(json.dumps(settings))
            with run_in_background("up", "-c", str(file), cwd=tmp_path, until="", may_log=["files", "is off"]) as up:
                await asyncio.to_thread(up.wait_for, "^Ready")
                options = ("--jid", person, "-c", str(file))
                env = {"SPADE_COREASON_PASSWORD": password}
                asked = await asyncio.to_thread(run_command, "ask", echo["jid"], "hi", *options, cwd=tmp_path, env=env)
                assert (asked.returncode, asked.stdout) == (0, "hi\n")
                shown = await asyncio.to_thread(up.run_command, "status", "-c", str(file))
                problem = f"127.0.0.1:{tunnel.port} is used without TLS (server.tls.required is off)"
                assert problem in shown.stdout.splitlines()
                _, _, err = await asyncio.to_thread(up.stop)
            checked = await asyncio.to_thread(run_command, "check", "-c", str(file), cwd=tmp_path)
    assert "server.tls.required: is off" in one_line(err, "tls.required")
    assert checked.returncode == 0
    assert f"127.0.0.1:{tunnel.port}, no TLS, SCRAM-SHA-" in checked.stdout
    assert problem in checked.stdout


async def test_a_server_that_is_not_verified_is_named_by_status(prosody: XmppServer, tmp_path: Path) -> None:
    file = write_external_config(tmp_path, prosody, prosody.port, await echo_on(prosody), trusts=False)
    settings = json.loads(file.read_text())
    settings["server"]["tls"]["verify"] = False
    file.write_text(json.dumps(settings))
    with run_in_background("up", "-c", str(file), cwd=tmp_path, until="^Ready", may_log=["files", "is off"]) as up:
        shown = await asyncio.to_thread(up.run_command, "status", "-c", str(file))
        as_json = json.loads((await asyncio.to_thread(up.run_command, "status", "-c", str(file), "--json")).stdout)
        _, _, err = await asyncio.to_thread(up.stop)
    problem = f"the certificate of 127.0.0.1:{prosody.port} is not verified (server.tls.verify is off)"
    assert problem in shown.stdout.splitlines()
    [agent] = as_json["agents"]
    assert agent["security_problem"] == problem
    assert "certificate not verified, SCRAM-SHA-" in agent["security"]
    assert "server.tls.verify: is off" in one_line(err, "tls.verify")


@pytest.mark.servers
def test_a_dual_stack_server_is_reached_from_a_host_with_ipv4_only(tmp_path: Path) -> None:
    require("Prosody", prosody_server.installed())
    done = run_on_private_host("tests.cli.dual_stack", tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    code, out = found["check"]
    assert code == 0, out
    assert re.search(r"two\.agents\.test:\d+ \(127\.0\.0\.1\), TLS 1\.3, certificate of agents\.test until ", out)
    code, out, err, shown = found["ask"]
    assert (code, out) == (0, "hello\n"), err
    assert "1 of 1 agents online" in shown
    code, out = found["refused"]
    assert code == 4
    text = " ".join(out.split())
    for place in (
        "one.agents.test:1 (2001:db8::1): Network is unreachable",
        "one.agents.test:1 (127.0.0.1): Connection refused",
    ):
        assert place in text
    code, err, has_password = found["scram"]
    assert (code, has_password) == (5, False)
    assert "wrong password, or no such account, and it cannot be registered at a server that is not verified" in err
    code, err, has_password = found["plain only"]
    assert (code, has_password) == (4, False)
    assert "it offers PLAIN only, which would show the password to a server that is not verified" in err
    code, out, received = found["plain"]
    assert code == 4
    text = " ".join(out.split())
    assert "it offers no TLS, and plain text is permitted to this machine's loopback addresses only" in text
    assert re.fullmatch(r"<stream:stream[^>]*>", received)


def test_the_password_is_found_in_any_form() -> None:
    """The check of these tests can fail."""
    for text in ("x<auth>AG1lAGEtcGFzc3dvcmQtb2YtaXRzLW93bg==</auth>", f"<password>{PASSWORD}</password>"):
        assert contains_password(text, PASSWORD)
    assert not contains_password("<stream:stream to='localhost' xmlns='jabber:client'>", PASSWORD)
