"""`run` and `ask` on a server that they do not start, with a password by a file and by the environment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.program import run_command, run_in_background, run_in_vain
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

ECHO = "spade_coreason.agents.echo:EchoAgent"


def create_login(server: XmppServer, directory: Path, password_source: str) -> tuple[str, list[str], dict[str, str]]:
    """Create an account. Return its JID, and the options and environment of a command in `directory` that uses it."""
    jid, password = asyncio.run(server.account())
    options = ["--jid", jid, "--host", server.host, "--port", str(server.port), "--ca-file", str(server.ca_file)]
    if password_source == "--password-file":
        (directory / "secret").write_text(f"{password}\n")
        return jid, [*options, password_source, "secret"], {}
    if password_source == "--password-env":
        return jid, [*options, password_source, "ECHO_PASSWORD"], {"ECHO_PASSWORD": password}
    return jid, options, {password_source: password}


async def ask_as_stock_client(text: str, agent: str, server: XmppServer) -> str:
    async with StockClient(*await server.account(), server) as alice:
        return await alice.ask(text, agent)


@pytest.mark.parametrize("password_source", ["--password-file", "--password-env", "SPADE_COREASON_PASSWORD"])
def test_an_agent_runs_on_another_server_and_answers_a_stock_client(
    prosody: XmppServer, tmp_path: Path, password_source: str
) -> None:
    jid, options, env = create_login(prosody, tmp_path, password_source)
    with run_in_background("run", ECHO, *options, cwd=tmp_path, env=env, until="spade-coreason ask") as run:
        assert run.output.startswith(f"{jid} is online (")
        assert asyncio.run(ask_as_stock_client("hello there", jid, prosody)) == "hello there"
        code, _, err = run.stop()
        assert code == 0
        assert err.startswith("warning: localhost: files cannot be uploaded, ")
        assert err.count("\n") == 1


def test_ask_finds_the_server_of_the_configuration_where_no_platform_runs(prosody: XmppServer, tmp_path: Path) -> None:
    """Otherwise it looked for example.org, and said that it has no address."""
    agent, options, env = create_login(prosody, tmp_path, "SPADE_COREASON_PASSWORD")
    asker, _, env_of_asker = create_login(prosody, tmp_path, "SPADE_COREASON_PASSWORD")
    server = f"{{mode: external, host: {prosody.host}, port: {prosody.port}, tls: {{ca_file: '{prosody.ca_file}'}}}}"
    (tmp_path / "desk.yaml").write_text(
        f"server: {server}\nstorage: {{url: '${{NOT_SET}}'}}\n"
        f"agents: [{{jid: {agent}, agent: '{ECHO}', password: '${{NOT_SET}}'}}]\n"
    )
    question = ("ask", agent, "hello", "-c", "desk.yaml", "--jid", asker)
    with run_in_background("run", ECHO, *options, cwd=tmp_path, env=env, until="spade-coreason ask", may_log=["localhost"]):
        done = run_command(*question, cwd=tmp_path, env=env_of_asker)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    done, timeout_s = run_in_vain(*question, cwd=tmp_path, env=env_of_asker)
    assert done.returncode == 3  # the server stores the message until the agent comes
    assert done.stderr == f"warning: no platform is running on data\nerror: {agent} did not answer in {timeout_s} s\n"
    local = run_command("ask", "echo", "hi", cwd=tmp_path)
    assert (local.returncode, "no platform is running on data" in local.stderr) == (4, True)


def test_ask_finds_an_authority_beside_the_configuration_and_names_the_key_of_one_that_cannot_be_used(
    prosody: XmppServer, tmp_path: Path
) -> None:
    """It said "No such file or directory", without a file and a key."""
    agent, options, env = create_login(prosody, tmp_path, "SPADE_COREASON_PASSWORD")
    asker, _, env_of_asker = create_login(prosody, tmp_path, "SPADE_COREASON_PASSWORD")
    elsewhere = tmp_path / "etc"
    elsewhere.mkdir()
    (elsewhere / "desk.yaml").write_text(
        f"server: {{mode: external, host: {prosody.host}, port: {prosody.port}, tls: {{ca_file: ca.pem}}}}\n"
        f"agents: [{{jid: {agent}, agent: '{ECHO}', password: '${{NOT_SET}}'}}]\n"
    )
    question = ("ask", agent, "hello", "-c", "etc/desk.yaml", "--jid", asker)
    for content, problem in ((None, "no such file: {}; correct"), ("x", "{} is no PEM file with a certificate; correct")):
        if content is not None:
            (elsewhere / "ca.pem").write_text(content)
        done = run_command(*question, cwd=tmp_path, env=env_of_asker)
        place = f"error: etc/desk.yaml: server.tls.ca_file: {problem.format(elsewhere / 'ca.pem')}"
        assert (done.returncode, done.stdout, done.stderr.startswith(place)) == (2, "", True), done.stderr
    (tmp_path / "no.pem").write_text("x")
    by_option = ("ask", agent, "hello", "--jid", asker, "--host", prosody.host, "--ca-file", "no.pem")
    done = run_command(*by_option, cwd=tmp_path, env=env_of_asker)
    assert done.stderr.startswith("error: server.tls.ca_file (--ca-file): no.pem is no PEM file with a certificate; ")
    (elsewhere / "ca.pem").write_bytes(prosody.ca_file.read_bytes())
    with run_in_background("run", ECHO, *options, cwd=tmp_path, env=env, until="spade-coreason ask", may_log=["localhost"]):
        done = run_command(*question, cwd=tmp_path, env=env_of_asker)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


@pytest.mark.parametrize("password_source", ["--password-file", "SPADE_COREASON_PASSWORD"])
def test_an_agent_on_another_server_is_asked(prosody: XmppServer, tmp_path: Path, password_source: str) -> None:
    agent, options, env = create_login(prosody, tmp_path, "SPADE_COREASON_PASSWORD")
    with run_in_background("run", ECHO, *options, cwd=tmp_path, env=env, until="spade-coreason ask"):
        _, options, env = create_login(prosody, tmp_path, password_source)
        done = run_command("ask", agent, "hello there", *options, cwd=tmp_path, env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hello there\n", "")
