"""The section `web`: on loopback by default, elsewhere only with TLS or behind a proxy that is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.certificates import sign_by_itself
from tests.support.configurations import agents_section, config_error, load_config

AGENTS = agents_section('jid: echo@localhost, agent: "agents.echo:EchoAgent", doors: [openai]')
NETWORK = "is reached from the network, where keys must not travel in plain text; set web.tls, or name your reverse proxy"


def test_without_the_section_there_are_no_doors_and_with_it_they_are_on_loopback(project: Path) -> None:
    settings = load_config(project, agents_section('jid: echo@localhost, agent: "agents.echo:EchoAgent"'))
    assert (settings.web, settings.agents[0].doors) == (None, ())
    web = load_config(project, f"web: {{}}\n{AGENTS}").web
    assert web is not None
    assert (web.host, web.tls, web.proxies, web.cors_origins, web.public_url) == (
        "127.0.0.1",
        None,
        (),
        (),
        "http://127.0.0.1:8080",
    )


@pytest.mark.parametrize("host", ["0.0.0.0", '"::"', "192.0.2.1", "agents.example.org", '"2001:db8::1"'])
def test_another_address_needs_tls_or_a_proxy_that_is_named(project: Path, host: str) -> None:
    address = f"web: {{host: {host}, url: https://agents.example.org"
    assert NETWORK in config_error(project, f"{address}}}\n{AGENTS}")
    assert load_config(project, f"{address}, proxies: [192.0.2.9]}}\n{AGENTS}").web is not None
    files = sign_by_itself(project, "agents.example.org")
    tls = f"tls: {{certificate: {files.certificate}, key: {files.key}}}"
    assert load_config(project, f"{address}, {tls}}}\n{AGENTS}").web is not None


@pytest.mark.parametrize("host", ["127.0.0.2", '"::1"', "localhost"])
def test_loopback_needs_neither(project: Path, host: str) -> None:
    assert load_config(project, f"web: {{host: {host}}}\n{AGENTS}").web is not None


def test_an_address_that_is_none_of_its_own_needs_a_public_one(project: Path) -> None:
    text = f"web: {{host: 0.0.0.0, proxies: [192.0.2.9]}}\n{AGENTS}"
    assert "web.url: is missing, and host: 0.0.0.0 names none" in config_error(project, text)


@pytest.mark.parametrize("proxies", ["[anywhere]", "[0.0.0.0/33]", '["*"]', "[proxy.example.org]"])
def test_a_proxy_is_named_by_its_address(project: Path, proxies: str) -> None:
    assert "web.proxies[0]" in config_error(project, f"web: {{proxies: {proxies}}}\n{AGENTS}")


def test_an_agent_with_a_door_needs_the_section(project: Path) -> None:
    assert "doors" in config_error(project, AGENTS)


@pytest.mark.parametrize(
    ("module", "place", "extra"),
    [("uvicorn", "web", "web"), ("a2a", "agents[0].doors[0]", "a2a"), ("mcp", "agents[0].doors[1]", "mcp")],
)
def test_without_its_packages_a_door_says_what_to_install(project: Path, module: str, place: str, extra: str) -> None:
    agents = AGENTS.replace("[openai]", "[a2a, mcp]")
    (project / "platform.yaml").write_text(f"web: {{}}\n{agents}")
    program = (
        "from importlib.machinery import PathFinder\n"
        "from pathlib import Path\n"
        "find = PathFinder.find_spec\n"
        f"PathFinder.find_spec = lambda name, *rest: None if name == {module!r} else find(name, *rest)\n"
        "from spade_coreason import load_settings\n"
        "try:\n    load_settings(Path('platform.yaml'), Path(), {})\n"
        "except Exception as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True, timeout=60)
    assert f"{place}: needs the extra {extra}; run: pip install" in done.stdout
