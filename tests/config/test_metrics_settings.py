"""The section `metrics`: off by default, on loopback unless the configuration names another address."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configurations import agents_section, config_error, load_config

AGENTS = agents_section('jid: echo@localhost, agent: "agents.echo:EchoAgent"')


def test_without_the_section_there_are_no_metrics_and_with_it_they_are_on_loopback(project: Path) -> None:
    assert load_config(project, AGENTS).metrics is None
    metrics = load_config(project, f"metrics: {{}}\n{AGENTS}").metrics
    assert metrics is not None
    assert (metrics.address, metrics.url) == (("127.0.0.1", 9464), "http://127.0.0.1:9464/metrics")


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9465", ("127.0.0.1", 9465)),
        ("localhost:80", ("localhost", 80)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ('"[::1]:9464"', ("::1", 9464)),
        ("Metrics.Example.org:65535", ("metrics.example.org", 65535)),
    ],
)
def test_an_address_has_a_host_and_a_port(project: Path, listen: str, address: tuple[str, int]) -> None:
    metrics = load_config(project, f"metrics: {{listen: {listen}}}\n{AGENTS}").metrics
    assert metrics is not None
    assert metrics.address == address


@pytest.mark.parametrize(
    "listen", [":9464", "localhost", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "::1:9464", "http://a:1"]
)
def test_another_text_is_no_address(project: Path, listen: str) -> None:
    problem = f'metrics.listen: "{listen}" is not an address and a port; write it like 127.0.0.1:9464'
    assert problem in config_error(project, f'metrics: {{listen: "{listen}"}}\n{AGENTS}')


def test_the_metrics_need_another_address_than_the_doors(project: Path) -> None:
    text = f"web: {{port: 9464}}\nmetrics: {{}}\n{AGENTS}"
    assert "metrics.listen: 127.0.0.1:9464 is the address of web; choose another port" in config_error(project, text)
