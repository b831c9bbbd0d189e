"""The documented interceptors, on a server and in tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from prometheus_client import REGISTRY, generate_latest

from spade_coreason import AgentRequest, AgentTester, Platform, Response, Session, agent, load_settings
from spade_coreason.cli.checks import check_settings
from tests.docs.pages import read_page
from tests.support.program import run_pytest
from tests.support.servers.clients import StockClient
from tests.support.servers.server import XmppServer

ROOT = Path(__file__).parents[1]
PAGES = [read_page(ROOT / "docs" / "how-to" / name) for name in ("interceptors.md", "monitoring.md")]
EXAMPLES = {block.title: block.text for page in PAGES for block in page.blocks if block.title and block.language == "python"}
LIMIT = 20
"""The number of requests a minute that the documented limit accepts."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the documented modules."""
    monkeypatch.setenv("METRICS_PORT", "0")
    for name, text in EXAMPLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    yield tmp_path
    for name in EXAMPLES:
        sys.modules.pop(name.removesuffix(".py"), None)
    for collector in set(REGISTRY._names_to_collectors.values()):
        if "agent_" in str(getattr(collector, "_name", "")):
            REGISTRY.unregister(collector)


def test_an_interceptor_is_short() -> None:
    assert len(EXAMPLES["limits.py"].strip().splitlines()) < 30


async def test_the_documented_limit_and_counters_work_on_a_server(prosody: XmppServer, project: Path) -> None:
    jid, password = await prosody.account()
    settings = {
        "server": prosody.settings,
        "interceptors": ["metrics:Metrics"],
        "agents": [
            {
                "jid": jid,
                "password": password,
                "agent": "spade_coreason.agents.echo:EchoAgent",
                "interceptors": ["limits:RateLimit"],
            }
        ],
    }
    (project / "platform.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    loaded = load_settings(project / "platform.yaml", project, {})
    async with Platform(loaded), StockClient(*await prosody.account(), prosody) as alice:
        for number in range(LIMIT):
            assert await alice.ask(f"{number}", jid) == f"{number}"
        assert (await alice.ask("one more", jid)).startswith("That is too fast for me. Please try again in ")
    counted = generate_latest().decode()
    assert f'agent_requests_total{{agent="{jid}",channel="person"}} {LIMIT + 1}.0' in counted
    assert f'agent_turn_seconds_count{{agent="{jid}"}} {LIMIT}.0' in counted
    assert f'agent_failures_total{{agent="{jid}"}} 0.0' in counted


def test_the_documented_test_passes(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n", encoding="utf-8")
    done = run_pytest("-p", "no:cacheprovider", "test_limits.py", cwd=project)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


async def test_the_documented_moderation_masks_what_an_agent_sends(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))

    @agent
    async def swearing(request: AgentRequest, session: Session, response: Response) -> None:
        await response.markdown(f"damn {request.payload['query']}")

    async with AgentTester(swearing, interceptors=[import_module("moderation").Moderation]) as t:
        assert (await t.ask("rain")).text == "d*** rain"


@pytest.mark.parametrize(
    ("interceptor", "problem"),
    [
        ("limits:RateLimits", 'interceptors[0]: limits has no "RateLimits"; did you mean "RateLimit"?'),
        ("limit:RateLimit", "interceptors[0]: "),
        ("limits:time", "interceptors[0]: "),
    ],
)
async def test_check_names_a_wrong_interceptor(project: Path, interceptor: str, problem: str) -> None:
    agent = {"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"}
    settings = {"server": {"mode": "embedded"}, "interceptors": [interceptor], "agents": [agent]}
    (project / "platform.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    findings = await check_settings(load_settings(project / "platform.yaml", project, {}))
    [finding] = [finding for finding in findings if finding.subject == "echo@localhost"]
    assert (finding.verdict, finding.exit_code) == ("bad", 2)
    assert problem in finding.text
