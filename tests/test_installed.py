"""The wheel, installed by pip from the package index into environments of its own, and used in empty directories.

The bare environment has what the package requires, and nothing else. Each extra has an environment of its own, but for two.
`local` brings gigabytes: a test of the bare environment shows what is said without it. `socks` has no use alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.cli.test_knowledge import build_pdf
from tests.docs import setups
from tests.docs.pages import Page, read_page
from tests.docs.setups import own_prosody
from tests.support.a2a_server import run_a2a_server
from tests.support.chat_completions import ChatCompletionsServer, text_answer, tool_call_answer
from tests.support.model_server import ModelServer
from tests.support.proxy_server import ProxyServer
from tests.support.wait import TIMEOUT_S
from tests.test_optional_packages import check_what_fails, find_what_fails

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[1]
HOW_TO = ROOT / "docs" / "how-to"
MCP_SERVER = ROOT / "tests" / "support" / "mcp_servers" / "legacy_server.py"
ECHO = 'agents: [{jid: echo@localhost, agent: "spade_coreason.agents.echo:EchoAgent"'
INSTALL_TIMEOUT_S = 600
Install: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Install the wheel with extras, and other packages. Return the directory of programs of its environment.

    The processes of one test run share the environments. What every installation has is installed once, and linked.
    """
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    shared /= "installed"
    shared.mkdir(exist_ok=True)

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        done = shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(shared / name, ignore_errors=True)
                fill(shared / name)
                done.touch()
        return shared / name

    def build(directory: Path) -> None:
        run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(directory))

    def fill_with_requirements(directory: Path) -> None:
        venv.create(directory, with_pip=False, symlinks=True)
        run_pip(directory, "install", str(wheel))
        run_pip(directory, "uninstall", "-y", "spade-coreason")

    def install_wheel(extras: str = "", *others: str) -> Path:
        def fill(directory: Path) -> None:
            shutil.copytree(requirements, directory, symlinks=True, copy_function=os.link)
            run_pip(directory, "install", f"{wheel}[{extras}]" if extras else str(wheel), *others)

        return make("-".join([extras or "bare", *others]), fill) / "bin"

    [wheel] = make("wheel", build).glob("*.whl")
    requirements = make("requirements", fill_with_requirements)
    return install_wheel


def run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_pip(directory: Path, *arguments: str) -> str:
    python = str(directory / "bin" / "python")
    return run_python("-m", "pip", "--python", python, "--disable-pip-version-check", *arguments)


@pytest.fixture
def bare(install: Install) -> Path:
    """The programs of an environment with the wheel, installed without an extra."""
    return install()


def environment(programs: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
    return {**kept, "PATH": f"{programs}{os.pathsep}{kept['PATH']}", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def attempt(programs: Path, directory: Path, command: str, **more: str) -> tuple[int, str]:
    """Run a command of the shell in a directory. Return its exit code and its output."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=directory,
        env={**environment(programs), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout


def run(programs: Path, directory: Path, command: str, **more: str) -> str:
    """Run a command of the shell in a directory, and return its output."""
    code, output = attempt(programs, directory, command, **more)
    assert code == 0, output
    return output


@contextmanager
def running(programs: Path, directory: Path, *command: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run the platform in a directory, from when its agents are online until the block ends."""
    up = subprocess.Popen(
        command,
        cwd=directory,
        env={**environment(programs), **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with up:
        try:
            wait_for_line(up, "Ready", " is online")
            yield up
        finally:
            up.terminate()
            up.communicate(timeout=TIMEOUT_S)


def wait_for_line(process: subprocess.Popen[str], *parts: str) -> None:
    """Read the output of a process until a line that has one of these parts."""
    assert process.stdout is not None
    assert any(part in line for line in process.stdout for part in parts)


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def write_blocks(page: Page, directory: Path, *titles: str) -> None:
    """Write the files that a page shows."""
    blocks = {block.title: block.text for block in page.blocks}
    for title in titles:
        write(directory, title, blocks[title])


def fetch(url: str, body: Any = None, **headers: str) -> str:
    """Fetch a page, or post JSON to it."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=TIMEOUT_S) as response:
        text: str = response.read().decode()
        return text


UP = ("spade-coreason", "up", "-c", "platform.yaml")
README, OVERVIEW = read_page(ROOT / "README.md"), read_page(ROOT / "docs" / "index.md")

# Without an extra


def test_the_package_is_that_of_the_environment(bare: Path, tmp_path: Path) -> None:
    where = run(bare, tmp_path, "python -c 'import spade_coreason; print(spade_coreason.__file__)'")
    assert Path(where.strip()).is_relative_to(bare.parent)


def test_a_bare_installation_lacks_only_what_needs_an_extra_and_names_it(bare: Path, tmp_path: Path) -> None:
    check_what_fails(find_what_fails(str(bare / "python"), tmp_path))


def test_the_demo_runs_in_an_empty_directory_and_leaves_the_assistant_out(bare: Path, tmp_path: Path) -> None:
    output = run(bare, tmp_path, "spade-coreason demo")
    assert "assistant is not started, because the package openai is missing (pip install '" in output
    assert "[llm]')" in output
    assert output.endswith("All 6 answers were right.\n")
    assert ("senders can be forged" in output) == ("embedded" in output)


@pytest.mark.embedded
def test_an_agent_answers_on_the_embedded_server(bare: Path, tmp_path: Path) -> None:
    write(tmp_path, "platform.yaml", f"{ECHO}}}]\nserver: {{mode: embedded}}\n")
    with running(bare, tmp_path, *UP):
        assert run(bare, tmp_path, "spade-coreason ask echo hello") == "hello\n"


def test_the_agent_of_the_readme_passes_its_test(install: Install, tmp_path: Path) -> None:
    programs = install("llm", "pytest", "pytest-asyncio")
    write_blocks(README, tmp_path, "shop.py", "test_shop.py")
    assert "1 passed" in run(programs, tmp_path, "python -m pytest -q -o asyncio_mode=auto test_shop.py")


def test_the_agent_of_the_overview_runs_and_passes_its_test(install: Install, tmp_path: Path) -> None:
    programs = install("", "pytest", "pytest-asyncio")
    write_blocks(OVERVIEW, tmp_path, "weather.py", "pytest.ini", "test_weather.py")
    assert "1 passed" in run(programs, tmp_path, "python -m pytest -q test_weather.py")
    with running(programs, tmp_path, "spade-coreason", "run", "weather:weather"):
        assert run(programs, tmp_path, "spade-coreason ask weather Berlin") == "It is sunny in **Berlin**.\n"
    run(programs, tmp_path, "spade-coreason init sunny")
    assert "passed" in run(programs, tmp_path / "sunny", "python -m pytest -q")


@pytest.mark.servers
def test_the_configuration_of_the_guide_runs_on_a_server_of_ones_own(bare: Path, tmp_path: Path) -> None:
    write_blocks(read_page(HOW_TO / "prosody.md"), tmp_path, "platform.yaml")
    with own_prosody(tmp_path / "server", "echo", "alice") as names:
        invitation = run(bare, tmp_path, "spade-coreason invite echo -c platform.yaml", **names)
        assert invitation == "xmpp:echo@example.org?roster\n"
        assert "✓ echo@example.org" in run(bare, tmp_path, "spade-coreason check -c platform.yaml", **names)
        with running(bare, tmp_path, *UP, **names):
            answer = run(
                bare,
                tmp_path,
                "spade-coreason ask echo@example.org Berlin --jid alice@example.org"
                ' --host "$XMPP_HOST" --port "$XMPP_PORT" --ca-file "$XMPP_CA_FILE"',
                **names,
                SPADE_COREASON_PASSWORD=names["ALICE_PASSWORD"],
            )
    assert answer == "Berlin\n"


NEEDY = {
    "postgres": ("up", f"{ECHO}}}]\nstorage: {{url: 'postgresql+asyncpg://127.0.0.1:9/x'}}\n"),
    "tokens": ("up", f"{ECHO}}}]\nmemory: {{tokenizer: o200k}}\n"),
    "embeddings": ("up", f"{ECHO}}}]\nknowledge: {{embedder: openai, model: m, url: 'http://127.0.0.1:9/v1'}}\n"),
    "local": ("up", f"{ECHO}}}]\nknowledge: {{embedder: local, model: m}}\n"),
    "web": ("check", f"{ECHO}}}]\nweb: {{}}\n"),
    "metrics": ("up", f"{ECHO}}}]\nmetrics: {{}}\n"),
    "otel": ("up", f"{ECHO}}}]\ntracing: {{enabled: true}}\n"),
    "reload": ("up --reload", f"{ECHO}}}]\n"),
    "llm": ("check", 'agents: [{jid: a@localhost, agent: "spade_coreason.llm:LLMAgent", options: {model: small}}]\n'),
}
"""A command and a configuration that need an extra, by its name."""


@pytest.mark.parametrize("extra", NEEDY)
def test_a_command_that_needs_an_extra_fails_with_one_line_that_names_it(bare: Path, tmp_path: Path, extra: str) -> None:
    command, configuration = NEEDY[extra]
    write(tmp_path, "platform.yaml", configuration)
    code, output = attempt(bare, tmp_path, f"spade-coreason {command} -c platform.yaml")
    assert code != 0
    [line] = [line for line in output.splitlines() if "pip install" in line]
    assert f"[{extra}]'" in line
    assert "Traceback" not in output


# With one


async def test_with_postgres_the_platform_stores_in_postgresql(install: Install, tmp_path: Path) -> None:
    programs = install("postgres")
    write(tmp_path, "platform.yaml", f'{ECHO}}}]\nstorage: {{url: "${{DATABASE_URL}}"}}\n')
    with setups.postgresql(tmp_path) as names, running(programs, tmp_path, *UP, **names):
        answer = await asyncio.to_thread(run, programs, tmp_path, "spade-coreason ask echo hello -c platform.yaml", **names)
    assert answer == "hello\n"
    assert not [path for path in (tmp_path / "data").rglob("*.db") if path.name == "platform.db"]


def test_with_tokens_the_tokens_of_a_model_are_counted(install: Install, tmp_path: Path) -> None:
    write(
        tmp_path,
        "count.py",
        "from spade_coreason.memory.tokens import counter_for\nprint(counter_for('o200k')('Hello, world'))\n",
    )
    assert run(install("tokens"), tmp_path, "python count.py") == "3\n"


async def test_with_embeddings_knowledge_is_found_by_its_meaning(install: Install, tmp_path: Path) -> None:
    programs = install("embeddings")
    write(tmp_path, "refunds.md", "# Refunds\n\nA refund takes two weeks.")
    async with ModelServer() as server:
        knowledge = f"knowledge: {{embedder: openai, model: small, url: '{server.url}'}}"
        write(tmp_path, "platform.yaml", f"{ECHO}}}]\n{knowledge}\n")
        add = "spade-coreason knowledge add echo refunds.md -c platform.yaml"
        search = "spade-coreason knowledge search echo money -c platform.yaml"
        await asyncio.to_thread(run, programs, tmp_path, add)
        assert "A refund takes two weeks." in await asyncio.to_thread(run, programs, tmp_path, search)
    assert server.requests


def test_with_pdf_an_agent_learns_a_pdf(install: Install, tmp_path: Path) -> None:
    programs = install("pdf")
    (tmp_path / "warranty.pdf").write_bytes(build_pdf("The warranty lasts two years."))
    write(tmp_path, "platform.yaml", f"{ECHO}}}]\n")
    run(programs, tmp_path, "spade-coreason knowledge add echo warranty.pdf -c platform.yaml")
    found = run(programs, tmp_path, "spade-coreason knowledge search echo warranty -c platform.yaml")
    assert "The warranty lasts two years." in found


@pytest.mark.parametrize("extras", ["llm", "llm,socks"])
async def test_with_llm_an_agent_answers_with_a_model(install: Install, tmp_path: Path, extras: str) -> None:
    programs = install(extras)
    async with (
        ChatCompletionsServer(text_answer("I am ", "a model.")) as model,
        ProxyServer(model.url) as proxy,
    ):
        proxies = {"ALL_PROXY": f"socks5h://{proxy.address}"} if "socks" in extras else {}
        url = "http://model.example/v1" if proxies else model.url
        write(tmp_path, "platform.yaml", make_assistant(url, output_guardrails=[{"regex": "secret"}]))
        with running(programs, tmp_path, *UP, **proxies):
            answer = await asyncio.to_thread(run, programs, tmp_path, "spade-coreason ask assistant hello")
        assert answer == "I am a model.\n"
        assert bool(proxy.destinations) == bool(proxies)


async def test_with_mcp_a_model_calls_the_tools_of_servers(install: Install, tmp_path: Path) -> None:
    programs = install("llm,mcp")
    server = [str(programs / "python"), str(MCP_SERVER), str(tmp_path / "server.log")]
    async with ChatCompletionsServer(tool_call_answer(("local__say", {"text": "hi"})), text_answer("It was called.")) as model:
        write(tmp_path, "platform.yaml", make_assistant(model.url, mcp={"local": {"command": server}}))
        with running(programs, tmp_path, *UP):
            answer = await asyncio.to_thread(run, programs, tmp_path, "spade-coreason ask assistant hello")
    assert answer == "It was called.\n"
    assert [message for request in model.requests for message in request["messages"] if message["role"] == "tool"]


def make_assistant(url: str, **options: Any) -> str:
    """Return a configuration of an agent with a model."""
    options = {"model": "small", "endpoint": {"url": url, "api_key": "none"}, **options}
    agent = {"jid": "assistant@localhost", "agent": "spade_coreason.llm:LLMAgent", "options": options}
    return json.dumps({"agents": [agent]})


def test_with_mcp_agents_are_tools_of_an_editor(install: Install, tmp_path: Path) -> None:
    programs = install("mcp")
    write_blocks(read_page(HOW_TO / "mcp-server.md"), tmp_path, "librarian.py", "library.yaml", "ask_library.py")
    with setups.web(tmp_path) as names:
        create = "spade-coreason keys create editor --agent librarian@localhost -c library.yaml > editor-key.txt"
        run(programs, tmp_path, create, **names)
        with running(programs, tmp_path, "spade-coreason", "up", "-c", "library.yaml", **names):
            output = run(programs, tmp_path, "python ask_library.py", **names)
    assert "I have nothing about ships. You have asked 1 questions before." in output


def test_with_web_agents_are_behind_http(install: Install, tmp_path: Path) -> None:
    programs = install("web")
    write(tmp_path, "platform.yaml", f"{ECHO}, doors: [openai, webhook]}}]\nweb: {{}}\n")
    with setups.web(tmp_path) as names:
        key = run(programs, tmp_path, "spade-coreason keys create one --agent echo -c platform.yaml 2>log", **names).strip()
        with running(programs, tmp_path, *UP, **names):
            assert fetch(f"{names['URL']}/healthz")
            question = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
            answer = json.loads(fetch(f"{names['URL']}/v1/chat/completions", question, **{"Authorization": f"Bearer {key}"}))
    assert answer["choices"][0]["message"]["content"] == "hello"


def test_with_metrics_prometheus_can_scrape(install: Install, tmp_path: Path) -> None:
    programs = install("metrics")
    write(tmp_path, "platform.yaml", f"{ECHO}}}]\nmetrics: {{}}\n")
    with setups.metrics(tmp_path) as names, running(programs, tmp_path, *UP, **names):
        assert "spade_coreason_requests_total{" in fetch(f"http://{names['METRICS']}/metrics")


async def test_with_a2a_an_agent_elsewhere_is_asked(install: Install, tmp_path: Path) -> None:
    programs = install("a2a")
    async with run_a2a_server() as server:
        options = {"url": server.url, "allow_private": True}
        agent = {"jid": "desk@localhost", "agent": "spade_coreason.agents.a2a:RemoteA2AAgent", "options": options}
        write(tmp_path, "platform.yaml", json.dumps({"agents": [agent]}))
        with running(programs, tmp_path, *UP):
            answer = await asyncio.to_thread(run, programs, tmp_path, "spade-coreason ask desk 'say hello'")
    assert answer == "hello\n"


def test_with_a2a_and_web_an_agent_has_a_card(install: Install, tmp_path: Path) -> None:
    programs = install("a2a,web")
    write(tmp_path, "platform.yaml", f"{ECHO}, doors: [a2a]}}]\nweb: {{}}\n")
    with setups.web(tmp_path) as names:
        key = run(programs, tmp_path, "spade-coreason keys create one --agent echo -c platform.yaml 2>log", **names).strip()
        with running(programs, tmp_path, *UP, **names):
            card = fetch(f"{names['URL']}/a2a/echo/.well-known/agent-card.json", **{"Authorization": f"Bearer {key}"})
    assert json.loads(card)["supportedInterfaces"]


def test_with_reload_a_change_is_live(install: Install, tmp_path: Path) -> None:
    programs = install("reload")
    write_blocks(OVERVIEW, tmp_path, "weather.py")
    with running(programs, tmp_path, "spade-coreason", "run", "weather:weather", "--reload") as process:
        assert run(programs, tmp_path, "spade-coreason ask weather Berlin") == "It is sunny in **Berlin**.\n"
        weather = tmp_path / "weather.py"
        write(tmp_path, "weather.py", weather.read_text().replace("It is sunny", "It rains"))
        wait_for_line(process, "Reloaded")
        assert run(programs, tmp_path, "spade-coreason ask weather Berlin") == "It rains in **Berlin**.\n"


@pytest.mark.parametrize("sdk", [(), ("opentelemetry-sdk",)])
def test_with_otel_turns_are_traced_where_there_is_an_sdk(install: Install, tmp_path: Path, sdk: tuple[str, ...]) -> None:
    programs = install("otel", *sdk)
    write_blocks(read_page(HOW_TO / "tracing.md"), tmp_path, "platform.yaml", "traced.py")
    program = ("python", "traced.py") if sdk else ("spade-coreason",)
    with running(programs, tmp_path, *program, "up", "-c", "platform.yaml"):
        assert run(programs, tmp_path, "spade-coreason ask relay@localhost hello") == "echo: hello\n"
    assert not sdk or " invoke_agent echo@localhost\n" in (tmp_path / "spans.txt").read_text()


def test_with_docs_the_site_is_built(install: Install, tmp_path: Path) -> None:
    build = f"python -m mkdocs build --strict --quiet --site-dir {shlex.quote(str(tmp_path / 'site'))}"
    run(install("docs"), ROOT, build, NO_MKDOCS_2_WARNING="1")
    assert (tmp_path / "site" / "index.html").exists()
