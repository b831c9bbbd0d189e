"""The dashboard, the alerts and their page name metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from spade_coreason.app.metrics.definitions import METRICS
from tests.docs.pages import DOCS, ROOT

DASHBOARD = json.loads((ROOT / "docker" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((ROOT / "docker" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
MONITORING = (DOCS / "how-to" / "monitoring.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
LABELS = {
    f"{metric.shown_name}{suffix}": {*metric.labels, *(("le",) if suffix == "_bucket" else ())}
    for metric in METRICS
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}
"""The labels of each series."""


def queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def alerts() -> dict[str, Any]:
    [group] = ALERTS["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@pytest.mark.parametrize("query", [*queries(), *(rule["expr"] for rule in alerts().values())])
def test_a_query_names_metrics_and_labels_that_exist(query: str) -> None:
    names = re.findall(r"\b(?:spade_coreason_|process_)\w+", query)
    known = [*LABELS, "process_cpu_seconds_total", "process_resident_memory_bytes"]
    assert names or query == 'up{job="spade_coreason"} == 0'
    assert [name for name in names if name not in known] == []
    for name, selector in re.findall(r"(spade_coreason_\w+)\{(.*?)\}", query):
        assert set(re.findall(r"(\w+)=", selector)) <= LABELS[name], name
    labels = [LABELS[name] | {"instance", "job"} for name in names if name in LABELS]
    for group in re.findall(r"by \((.*?)\)", query):
        assert any(set(group.split(", ")) <= each for each in labels), group


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for query in queries() for name in re.findall(r"spade_coreason_\w+", query)}
    assert {metric.name for metric in METRICS if not any(name.startswith(metric.name) for name in shown)} == set()


def test_every_metric_is_in_the_page_and_the_page_names_no_other() -> None:
    named = set(re.findall(r"`(spade_coreason_\w+)`", REFERENCE + MONITORING))
    assert named - {"spade_coreason_"} == {metric.shown_name for metric in METRICS}
    assert set(re.findall(r"^spade_coreason_\w+", MONITORING, re.M)) <= LABELS.keys()


def test_the_panels_have_places_of_their_own_and_legends_with_labels_that_exist() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for before, after in pairwise(panels):
        one, other = before["gridPos"], after["gridPos"]
        assert one["y"] + one["h"] <= other["y"] or one["x"] + one["w"] <= other["x"], after["title"]
    for panel in panels:
        for target in panel.get("targets", ()):
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = set(", ".join(re.findall(r"by \((.*?)\)", target["expr"])).split(", "))
            assert labels <= kept or labels == {"instance"}, panel["title"]


def test_the_page_has_the_alerts_of_the_file() -> None:
    section = MONITORING.partition("### Let Prometheus read them")[2].partition("###")[0]
    documented = re.findall(r"^\| [^|`]+ \| `(.+)` \|$", section, re.M)
    assert documented == [rule["expr"] for rule in alerts().values()]
    assert all(rule["annotations"]["summary"] for rule in alerts().values())


def test_the_scrape_example_of_the_page_is_that_of_the_file() -> None:
    file = yaml.safe_load((ROOT / "docker" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    [documented] = re.findall(r'```yaml title="prometheus.yml"\n(.*?)```', MONITORING, re.S)
    assert file == {"rule_files": ["alerts.yml"], **yaml.safe_load(documented)}
    assert (Path(ROOT) / "docker" / "prometheus" / file["rule_files"][0]).is_file()
