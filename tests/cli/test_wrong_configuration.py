"""Every mistake in a configuration is one line and an exit code, never a traceback."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest
from click.testing import Result

from spade_coreason.storage.backends.lock import lock_database
from tests.cli.conftest import Invoke
from tests.support.program import run_command
from tests.support.servers import prosody as prosody_server
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import require
from tests.support.servers.server import XmppServer

ECHO = "agents: [{jid: echo@localhost, agent: 'spade_coreason.agents.echo:EchoAgent'}]"
NO_AGENT = "class Empty:\n    pass\n"
DOCTOR = """
class Doctor:
    def __init__(self, manifest):
        self.manifest = manifest

    def examine(self, patient):
        return f"{patient} is well"

    async def assist(self, request, session, response):
        await response.markdown(self.examine("ada"))
"""


def assert_one_line(result: Result, code: int, *texts: str) -> None:
    assert result.exit_code == code, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    for text in texts:
        assert text in line


def write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def agents_config(text: str) -> str:
    return f"server: {{mode: embedded}}\nagents:\n  - {text}\n"


@pytest.mark.parametrize("command", ["up", "check"])
@pytest.mark.parametrize(
    ("configuration", "texts"),
    [
        (agents_config('{jdi: a@localhost, agent: "a:B"}'), ['agents[0].jdi: unknown key; did you mean "jid"?']),
        (agents_config('{jid: "not a jid", agent: "a:B"}'), ["agents[0].jid", "is not a JID"]),
        (agents_config("{jid: a@localhost, agent: nothing}"), ["agents[0].agent", "nothing:NAME"]),
        ("server: {mode: extrenal}", ["server.mode", 'did you mean "external"?']),
        ("server: {mode: auto, port: 99999}", ["server.port", "at most 65535"]),
        ("server: [", ["config/platform.yaml"]),
    ],
)
def test_a_mistake_in_the_file(invoke: Invoke, command: str, configuration: str, texts: list[str]) -> None:
    write_file(Path("config/platform.yaml"), configuration)
    assert_one_line(invoke(command), 2, "config/platform.yaml", *texts)


@pytest.mark.parametrize("command", ["up", "check"])
@pytest.mark.parametrize(
    "configuration",
    [
        agents_config("{jid: a@localhost, agent: 'spade_coreason.agents.assistant:AssistantAgent', options: {model: m}}"),
        agents_config("{jid: a@localhost, agent: 'spade_coreason.agents.echo:EchoAgent'}")
        + "knowledge: {embedder: openai, url: 'http://model.example/v1', model: m}",
        agents_config("{jid: a@localhost, agent: 'spade_coreason.agents.echo:EchoAgent'}")
        + "memory: {summariser: {url: 'http://model.example/v1', model: m}}",
    ],
    ids=["language model", "embeddings", "summaries"],
)
def test_a_proxy_of_an_unknown_kind_is_named_with_its_variable(
    invoke: Invoke, command: str, configuration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(Path("config/platform.yaml"), configuration)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://model.example/v1")
    monkeypatch.setenv("HTTP_PROXY", "socks://127.0.0.1:1080")
    result = invoke(command)
    assert result.exit_code == 2
    assert "HTTP_PROXY: socks:// proxies are not supported; write one of http://" in result.output
    assert "Traceback" not in result.output


def test_stored_data_can_be_read_without_any_password(invoke: Invoke) -> None:
    account = "{jid: a@example.org, agent: 'a:B', password: '${NOT_SET}'}"
    write_file(Path("config/platform.yaml"), f"server: {{mode: external}}\nagents:\n  - {account}\n")
    for command in (("sessions", "list"), ("conversations",), ("memory", "list")):
        assert invoke(*command).exit_code == 0
    assert_one_line(invoke("check"), 2, "NOT_SET is not set")


def test_a_path_that_is_wrong_is_a_mistake_of_usage(invoke: Invoke) -> None:
    write_file(Path("file"), "")
    assert_one_line(invoke("init", "file/x"), 2, "file/x: Not a directory")
    assert_one_line(invoke("storage", "check", "--data", "nowhere"), 2, "nothing is stored here yet")


def test_an_export_of_no_memories_names_no_success_where_nothing_is_stored(invoke: Invoke) -> None:
    done = invoke("memory", "export", "notes.json", "--agent", "notes@example.org")
    assert_one_line(done, 1, "nothing is stored here yet; name the platform's configuration with -c FILE")
    assert not Path("notes.json").exists()


def test_a_status_of_workers_names_a_mistake_that_keeps_it_from_asking_them(invoke: Invoke) -> None:
    write_file(Path("config/platform.yaml"), 'server: {mode: external}\nstorage: {url: "${DATABASE_URL}"}\n')
    assert_one_line(invoke("status"), 4, "workers on other machines are not found without the configuration: ")
    assert "DATABASE_URL is not set" in invoke("status").stderr


def test_what_is_done_on_the_machine_of_a_worker_says_so_elsewhere(invoke: Invoke) -> None:
    url = "postgresql+asyncpg://agents@127.0.0.1:1/agents"
    write_file(Path("config/platform.yaml"), f'server: {{mode: external}}\nstorage: {{url: "{url}"}}\n')
    assert_one_line(invoke("drain"), 4, "of several workers, this command reaches one on its own machine")


def test_a_check_shows_who_may_connect_to_the_database_and_refuses_one_that_is_not_in_utf_8(
    invoke: Invoke, postgres: Postgres
) -> None:
    for encoding, code, texts in (
        ("UTF8", 0, ["every user of the server may connect to the database", "; run: REVOKE CONNECT ON DATABASE second_"]),
        ("LATIN1", 2, ["has the encoding LATIN1", "createdb --encoding UTF8 --template template0"]),
    ):
        url = postgres.second_url(postgres.url(), encoding)
        write_file(Path("config/platform.yaml"), f"server: {{mode: embedded}}\nstorage: {{url: '{url}'}}\n{ECHO}\n")
        checked = invoke("check")
        assert checked.exit_code == code, checked.output
        shown = " ".join((checked.stdout + checked.stderr).split())
        assert [text for text in texts if text not in shown] == [], shown


def test_each_of_several_mistakes_has_its_line(invoke: Invoke) -> None:
    write_file(
        Path("config/platform.yaml"), "servr: {port: 1}\n" + agents_config("{jid: not a jid, agent: nothing, optons: {}}")
    )
    result = invoke("check")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    for line, key in zip(lines, ["agents[0].optons", "servr", "agents[0].jid", "agents[0].agent"], strict=True):
        assert line.startswith(f"error: config/platform.yaml: {key}: ")


@pytest.mark.parametrize(
    ("agent", "texts"),
    [
        ("wrong_module_x:A", ["there is no module wrong_module_x", "--project"]),
        ("wrong_agents:Emtpy", ['wrong_agents has no "Emtpy"; did you mean "Empty"?']),
        ("wrong_agents:Empty", ["wrong_agents:Empty is not an agent"]),
    ],
)
def test_a_class_that_is_not_there_or_no_agent(invoke: Invoke, agent: str, texts: list[str]) -> None:
    write_file(Path("wrong_agents.py"), NO_AGENT)
    write_file(Path("config/platform.yaml"), agents_config(f'{{jid: a@localhost, agent: "{agent}"}}'))
    place = "config/platform.yaml: agents[0].agent"
    assert_one_line(invoke("up"), 2, place, *texts)
    checked = invoke("check")
    assert checked.exit_code == 2
    assert place in checked.stdout
    for text in texts:
        assert text in checked.stdout
    assert_one_line(invoke("run", agent), 2, *texts)


def test_a_memory_directory_that_cannot_be_made(invoke: Invoke) -> None:
    write_file(Path("taken"), "")
    write_file(Path("config/platform.yaml"), f"server: {{mode: embedded}}\nstorage: {{memory_dir: ../taken/memory}}\n{ECHO}\n")
    place = "config/platform.yaml: storage.memory_dir: "
    assert_one_line(invoke("up"), 2, place, "taken/memory: cannot be created: Not a directory")
    checked = invoke("check")
    assert checked.exit_code == 2
    assert "taken/memory: this user has no write permission" in checked.stdout


def test_every_agent_that_is_not_there_has_its_line(invoke: Invoke) -> None:
    agents = '{jid: a@localhost, agent: "wrong_module_x:A"}\n  - {jid: b@localhost, agent: "spade_coreason.agents.echo:Ehco"}'
    write_file(Path("config/platform.yaml"), agents_config(agents))
    result = invoke("up")
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("error: config/platform.yaml: agents[0].agent: there is no module wrong_module_x")
    assert second.startswith("error: config/platform.yaml: agents[1].agent: spade_coreason.agents.echo (")
    assert 'has no "Ehco"' in second


def test_an_object_that_is_no_agent_gets_no_account(invoke: Invoke) -> None:
    Path("things.py").write_text("def thing():\n    return 3\n")
    assert "is not an agent" in invoke("run", "things:thing").stderr
    assert not Path("data/accounts.json").exists()
    assert invoke("audit", "verify").stdout == "No audit entries.\n"


def test_run_names_the_option_that_is_wrong(invoke: Invoke) -> None:
    echo = "spade_coreason.agents.echo:EchoAgent"
    assert_one_line(invoke("run", echo, "--jid", "no jid"), 2, "--jid: ", "is not a JID")
    assert_one_line(invoke("run", echo, "--option", "delay"), 2, "--option delay", "delay_s=0.2")
    assert_one_line(invoke("run", "nothing"), 2, "MODULE:ATTRIBUTE: ")
    assert_one_line(invoke("run", echo, "--password-env", "NO_SUCH_VARIABLE"), 2, "--password-env NO_SUCH_VARIABLE")
    assert_one_line(invoke("run", echo, "--host", "127.0.0.1"), 2, "SPADE_COREASON_PASSWORD", "is not set")


def test_run_names_the_password_file_that_is_wrong(invoke: Invoke) -> None:
    options = ("--host", "127.0.0.1", "--password-file", "secret")
    for content, problem in ((b"\xff", "secret is not UTF-8"), (b"one\ntwo", "secret must contain the password on one line")):
        Path("secret").write_bytes(content)
        assert_one_line(invoke("run", "spade_coreason.agents.echo:EchoAgent", *options), 2, f"--password-file: {problem}")


@pytest.mark.parametrize("option", ["--register", "--ca-file=ca.pem", "--no-verify"])
def test_run_refuses_options_of_an_existing_server_for_a_local_one(invoke: Invoke, option: str) -> None:
    echo = "spade_coreason.agents.echo:EchoAgent"
    Path("ca.pem").touch()
    problem = f"error: {option.partition('=')[0]}: needs --host or --domain; "
    with socket.create_server(("127.0.0.1", 0)) as taken:  # a local server does not start, if the option is not refused
        port = str(taken.getsockname()[1])
        assert_one_line(invoke("run", echo, "--port", port, option), 2, problem)
        assert_one_line(invoke("run", echo, "--port", port, "--jid", "echo@localhost", option), 2, problem)
    external = invoke("run", echo, "--jid", "echo@example.org", option)
    assert_one_line(external, 2, "SPADE_COREASON_PASSWORD", "is not set")


def test_run_names_the_one_of_several_agents_that_is_wrong(invoke: Invoke) -> None:
    echo, notes = "spade_coreason.agents.echo:EchoAgent", "spade_coreason.agents.notes:NotesAgent"
    assert_one_line(invoke("run", echo, "no_such_module:X"), 2, "error: no_such_module:X: ", "no_such_module")
    assert_one_line(
        invoke("run", echo, notes, echo), 2, f"error: {echo}: would get the same address as {echo}: echo@localhost; ", "init"
    )
    for option in (("--jid", "a@localhost"), ("--option", "a=1"), ("--manifest", "config/manifest.yaml")):
        write_file(Path("config/manifest.yaml"), "")
        assert_one_line(
            invoke("run", echo, notes, *option), 2, f"{option[0]}: works with one agent only, and you named 2; ", "init"
        )


def test_run_names_an_unknown_option_of_the_agent(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPADE_COREASON_SERVER__MODE", "embedded")
    result = invoke("run", "spade_coreason.agents.echo:EchoAgent", "--option", "dely_s=1")
    assert result.exit_code == 2
    assert '--option dely_s: unknown option of spade_coreason.agents.echo:EchoAgent; did you mean "delay_s"?' in result.stderr


def test_without_a_configuration_the_remedy_is_named(invoke: Invoke) -> None:
    assert_one_line(invoke("up"), 2, "config/platform.yaml", "spade-coreason init")
    assert_one_line(invoke("up", "-c", "other.yaml"), 2, "other.yaml")


def external_config(server: XmppServer, port: int, password: str = "wrong") -> str:
    return (
        f"server: {{mode: external, domain: {server.domain}, host: {server.host}, port: {port}, "
        f"tls: {{ca_file: '{server.ca_file}'}}}}\n"
        "agents:\n  - {jid: JID, agent: 'spade_coreason.agents.echo:EchoAgent', "
        f"password: '${{ECHO_PASSWORD:-{password}}}'}}\n"
    )


def test_a_wrong_password(invoke: Invoke, prosody: XmppServer, tmp_path: Path) -> None:
    jid, _ = asyncio.run(prosody.account())
    write_file(Path("config/platform.yaml"), external_config(prosody, prosody.port).replace("JID", jid))
    user, _, domain = jid.partition("@")
    remedy = (
        "refuses the login: wrong password, or no such account; correct the password, or create the account "
        f"(prosodyctl adduser {jid}; ejabberdctl register {user} {domain} PASSWORD), or set register: true (--register)"
    )
    assert_one_line(invoke("up"), 5, f"config/platform.yaml: agents[0].password: {jid}", remedy)
    checked = invoke("check")
    assert checked.exit_code == 5
    [line] = [line for line in checked.stdout.splitlines() if "refuses" in line]
    assert "  config/platform.yaml: agents[0].password: 127.0.0.1:" in line
    assert line.endswith(remedy)
    write_file(Path("secret"), "wrong\n")
    connection_options = ("--host", prosody.host, "--port", str(prosody.port), "--ca-file", str(prosody.ca_file))
    asked = invoke("ask", "echo", "hi", "--jid", jid, "--password-file", "secret", *connection_options)
    assert_one_line(asked, 5, jid, "refuses the login")
    assert "register: true" not in asked.stderr
    run_options = ("--jid", jid, "--password-file", "secret", *connection_options)
    assert_one_line(invoke("run", "spade_coreason.agents.echo:EchoAgent", *run_options), 5, f"error: {jid}", remedy)


def test_check_logs_in_and_says_what_the_server_can_do(
    invoke: Invoke, prosody: XmppServer, prosody_archive: XmppServer
) -> None:
    for server, has_archive in ((prosody, False), (prosody_archive, True)):
        jid, password = asyncio.run(server.account())
        write_file(Path("config/platform.yaml"), external_config(server, server.port, password).replace("JID", jid))
        checked = invoke("check")
        assert checked.exit_code == 0, checked.output
        assert "logs in" in checked.stdout
        way, _, text = checked.stdout.partition(f"{server.host}:{server.port}, ")[2].splitlines()[0].partition(": ")
        assert re.fullmatch(r"TLS 1\.3, certificate of localhost until 20\d\d-\d\d-\d\d, SCRAM-SHA-\d+", way)
        features = text.split(", ")
        assert {"stream management", "rooms"} <= set(features)
        assert ("archive" in features) == has_archive
        assert "registration" not in features  # servers announce it also where they refuse it
        assert not Path("data").exists()


def test_check_describes_the_server_below_the_logins(invoke: Invoke, prosody: XmppServer) -> None:
    config = external_config(prosody, prosody.port)
    head, _, agent_line = config.rpartition("  - ")
    lines = []
    for _ in range(2):
        jid, password = asyncio.run(prosody.account())
        lines.append(f"  - {agent_line}".replace("JID", jid).replace("wrong", password))
    write_file(Path("config/platform.yaml"), head + "".join(lines))
    checked = invoke("check")
    assert checked.exit_code == 0, checked.output
    *_, first, second, last = checked.stdout.splitlines()
    assert first.endswith("  logs in")
    assert second.endswith("  logs in")
    assert last.startswith("✓ server ")


def test_check_says_that_there_are_no_agents_yet(invoke: Invoke) -> None:
    write_file(Path("config/platform.yaml"), "server: {mode: embedded}\n")
    checked = invoke("check")
    assert checked.exit_code == 0
    assert "no agents are configured; add one under config/platform.yaml: agents" in " ".join(checked.stdout.split())


@pytest.mark.parametrize("command", ["check", "tools"])
def test_an_agent_may_have_methods_of_any_name(invoke: Invoke, command: str) -> None:
    write_file(Path("doctor.py"), DOCTOR)
    write_file(Path("config/platform.yaml"), agents_config('{jid: d@localhost, agent: "doctor:Doctor"}'))
    shown = invoke(command)
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output


@pytest.mark.parametrize("command", [("up", "--strict"), ("check",), ("tools",)])
def test_a_mistake_in_the_options_names_the_agent(invoke: Invoke, command: tuple[str, ...]) -> None:
    options = "{model: small, endpoint: {url: 'http://127.0.0.1:9/v1'}, output_guardrails: [{regex: '('}]}"
    llm_agent = f"{{jid: b@localhost, agent: 'spade_coreason.llm:LLMAgent', options: {options}}}"
    write_file(Path("config/platform.yaml"), f"server: {{mode: embedded}}\n{ECHO[:-1]}, {llm_agent}]\n")
    shown = invoke(*command)
    assert shown.exit_code == 2, shown.output
    assert "config/platform.yaml: agents[1].options.output_guardrails[0].regex" in shown.output


def test_check_tries_the_tokenizer(invoke: Invoke) -> None:
    agent = "{jid: a@localhost, agent: 'spade_coreason.agents.echo:EchoAgent', memory: {tokenizer: 'nothing:here'}}"
    write_file(Path("config/platform.yaml"), agents_config(agent))
    checked = invoke("check")
    assert checked.exit_code == 2
    assert "agents[0].memory.tokenizer: there is no module nothing" in " ".join(checked.output.split())


def test_check_looks_at_the_database(invoke: Invoke) -> None:
    write_file(Path("config/platform.yaml"), agents_config("{jid: a@localhost, agent: 'spade_coreason.agents.echo:EchoAgent'}"))
    write_file(Path("data/platform.db"), "no database")
    for command in ("check", "up"):
        done = invoke(command)
        assert done.exit_code == 2
        remedy = "name another file in storage.url, or restore a backup"
        assert f"data/platform.db: file is not a database; {remedy}" in " ".join(done.output.split())
    assert Path("data/platform.db").read_text() == "no database"


def test_a_certificate_that_nobody_knows(invoke: Invoke, prosody: XmppServer) -> None:
    jid, password = asyncio.run(prosody.account())
    write_file(Path("secret"), password)
    connection_options = ("--host", prosody.host, "--port", str(prosody.port), "--password-file", "secret")
    assert_one_line(invoke("ask", "echo", "hi", "--jid", jid, *connection_options), 4, jid, "certificate")


def test_a_refused_port(invoke: Invoke, prosody: XmppServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        write_file(Path("config/platform.yaml"), external_config(prosody, port).replace("JID", "a@localhost"))
        refused = f"cannot connect to 127.0.0.1:{port}: Connection refused; check that the server is running"
        assert_one_line(invoke("up", "--strict"), 4, f"error: config/platform.yaml: agents[0]: a@localhost/agent: {refused}")
        run = invoke("run", "spade_coreason.agents.echo:EchoAgent", *_connection_options(port))
        assert_one_line(run, 4, f"error: echo@127.0.0.1/agent: {refused}")
        checked = invoke("check")
        assert checked.exit_code == 4
        columns = checked.stdout.splitlines()[-1].split(maxsplit=2)
        remedy = "check that the server is running, and check host and port"
        assert columns == ["✗", "a@localhost", f"cannot connect to 127.0.0.1:{port}: Connection refused; {remedy}"]


def test_a_port_that_accepts_and_says_nothing(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        asked = invoke("ask", "echo", "hi", "--jid", "a@localhost", "--timeout", "0.5", *_connection_options(port))
        assert_one_line(asked, 4, f"127.0.0.1:{port}: no answer within 0.5 s")


def _connection_options(port: int) -> tuple[str, ...]:
    Path("secret").write_text("wrong")
    return "--host", "127.0.0.1", "--port", str(port), "--password-file", "secret"


@pytest.mark.parametrize("mode", ["embedded", "prosody"])
def test_a_port_in_use(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    if mode == "prosody":
        require("Prosody", prosody_server.installed())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_file(Path("config/platform.yaml"), f"server: {{mode: {mode}, port: {port}}}\n{ECHO}")
        in_use = f"port {port} on 127.0.0.1 is in use; stop the program that listens there, or choose another port"
        assert_one_line(invoke("up"), 4, f"error: config/platform.yaml: server.port: {in_use}")
        checked = invoke("check")
        assert (checked.exit_code, f"config/platform.yaml: server.port: {in_use}" in checked.stdout) == (4, True)
        monkeypatch.setenv("SPADE_COREASON_SERVER__MODE", mode)
        run = invoke("run", "spade_coreason.agents.echo:EchoAgent", "--port", str(port))
        assert_one_line(run, 4, f"error: --port: {in_use}")


def test_a_prosody_that_is_not_installed(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_file(Path("config/platform.yaml"), f"server: {{mode: prosody}}\n{ECHO}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_one_line(
        invoke("up"), 4, "config/platform.yaml: server.mode: the program `prosody` is not on the PATH", "apt install"
    )


def test_a_directory_that_cannot_be_written_is_one_line(invoke: Invoke) -> None:
    write_file(Path("data"), "a file")
    write_file(Path("config/platform.yaml"), f"server: {{mode: embedded}}\n{ECHO}")
    problem = "data: cannot be written: File exists; correct its permissions, or name another directory"
    assert_one_line(invoke("up"), 2, "error: config/platform.yaml: data_dir: ", problem)
    storage = "storage: {url: 'sqlite+aiosqlite:///../data/x.db'}\ndata_dir: elsewhere"
    write_file(Path("config/platform.yaml"), f"server: {{mode: embedded}}\n{storage}\n{ECHO}")
    assert_one_line(invoke("up"), 2, "error: config/platform.yaml: storage.url: ", "data/x.db: cannot be written: ")


def test_two_platforms_do_not_share_a_database(invoke: Invoke) -> None:
    write_file(Path("config/platform.yaml"), f"storage: {{url: 'sqlite+aiosqlite:///../shared/x.db'}}\n{ECHO}")
    with lock_database("sqlite+aiosqlite:///shared/x.db"):
        for command in (("up",), ("storage", "migrate")):
            assert_one_line(invoke(*command), 2, "shared/x.db: in use by process", "name another file (storage.url)")
        assert_one_line(invoke("up"), 2, "or share these agents: workers need PostgreSQL and server.mode: external")


def test_a_literal_password_works_with_one_warning(invoke: Invoke, prosody: XmppServer) -> None:
    jid, password = asyncio.run(prosody.account())
    text = external_config(prosody, prosody.port).replace("${ECHO_PASSWORD:-wrong}", password).replace("JID", jid)
    write_file(Path("config/platform.yaml"), text)
    checked = invoke("check")
    assert checked.exit_code == 0, checked.output
    [line] = checked.stderr.splitlines()
    assert line.startswith("warning: config/platform.yaml: agents[0].password")
    assert password not in checked.output


def test_the_program_shows_no_traceback_and_with_vv_does(tmp_path: Path) -> None:
    done = run_command("up", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    verbose = run_command("-vv", "up", cwd=tmp_path)
    assert verbose.returncode == 2
    assert "Traceback" in verbose.stderr
