"""A real Prometheus reads two workers, knows the alerts, and answers every query of the dashboard."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import httpx
import pytest
import yaml

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.docs.pages import ROOT
from tests.support.servers.clients import StockClient
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import find_program, require
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S, eventually
from tests.support.workers import run_workers

FILES = ROOT / "docker" / "prometheus"
PANELS = json.loads((ROOT / "docker" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))["panels"]
VARIABLES = {"$agent": ".*", "$__rate_interval": "1m"}
"""What Grafana puts into a query."""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def read(self, path: str, **parameters: str) -> Any:
        """Return what the server answers; raise HTTPError for a query that it does not understand."""
        with urlopen(f"http://{self._address}/api/v1/{path}?{urlencode(parameters)}", timeout=TIMEOUT_S) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[float]:
        """Return the values of a query of the dashboard."""
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        return [float(series["value"][1]) for series in self.read("query", query=expression)["result"]]

    def is_up(self, targets: int) -> bool:
        """Tell if it has read so many targets twice, as a rate needs it."""
        try:
            return self.query("up == 1 and count_over_time(up[1m]) > 1") == [1.0] * targets
        except OSError:
            return False


@contextmanager
def run_prometheus(directory: Path, targets: list[str]) -> Iterator[Prometheus]:
    """Run Prometheus with the files of `docker/prometheus`, which read these targets each second."""
    configuration = yaml.safe_load((FILES / "prometheus.yml").read_text(encoding="utf-8"))
    [job] = configuration["scrape_configs"]
    job |= {"scrape_interval": "1s", "static_configs": [{"targets": targets}]}
    configuration["global"] = {"evaluation_interval": "1s"}
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration))
    shutil.copy(FILES / "alerts.yml", directory)
    subprocess.run(["promtool", "check", "config", file], check=True, timeout=TIMEOUT_S)
    address = f"127.0.0.1:{find_free_ports(1)[0]}"
    command = [
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    with (directory / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(address)
        finally:
            process.terminate()


@pytest.mark.release
async def test_prometheus_reads_two_workers_and_finds_a_value_for_each_panel_of_the_dashboard(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    require("Prometheus", find_program("prometheus") is not None)
    *addresses, web = [f"127.0.0.1:{port}" for port in find_free_ports(3)]
    async with (
        run_workers(prosody, postgres, tmp_path, agents=2, agent="tests.app.test_metrics:Desk") as workers,
        StockClient(*await prosody.account(), prosody) as alice,
    ):
        behind_doors = [agent | {"doors": ["openai"]} for agent in workers.settings["agents"]]
        doors = {"agents": behind_doors, "access": {"allow": ["*"]}, "web": {"port": int(web.partition(":")[2])}}
        for address, further in zip(addresses, ({}, doors), strict=True):
            await workers.start(workers.configure(address, metrics={"listen": address}, **further))
        await workers.wait_for(1, 1)
        with run_prometheus(tmp_path, addresses) as prometheus:
            await eventually(lambda: prometheus.is_up(2))
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"http://{web}/v1/models")).status_code == 401
            for agent in workers.agents:
                assert await alice.ask("remind", agent) == "done"
            with suppress(TimeoutError):
                await eventually(lambda: list_empty_panels(prometheus) == [])
            assert list_empty_panels(prometheus) == []
            [group] = prometheus.read("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}


def list_empty_panels(prometheus: Prometheus) -> list[str]:
    """Return the titles of the panels that show no number."""
    return [
        panel["title"]
        for panel in PANELS
        if panel["type"] != "row"
        and not any(math.isfinite(value) for target in panel["targets"] for value in prometheus.query(target["expr"]))
    ]
