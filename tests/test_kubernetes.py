"""docker/kubernetes/, without a cluster: the schemas of Kubernetes, and what the platform itself says to its parts."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from spade_coreason.app.loop_watch import BLOCKED_S
from spade_coreason.config.loader import load_settings
from spade_coreason.doors.guard import HEALTH_PATHS
from tests.support.program import run_command

DIRECTORY = Path(__file__).parents[1] / "docker" / "kubernetes"
VERSIONS = ("1.27", "1.31", "1.37")
LABELS = {"app.kubernetes.io/name": "spade-coreason"}


def read(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DIRECTORY / name).read_text()))


@pytest.fixture
def manifests() -> dict[str, dict[str, Any]]:
    """All manifests by their kind."""
    found = [*read("secret.yaml"), *read("workers.yaml")]
    assert all(manifest["metadata"]["name"] == "spade-coreason" for manifest in found)
    by_kind = {manifest["kind"]: manifest for manifest in found}
    assert len(by_kind) == len(found)
    return by_kind


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_fit_the_schemas(manifests: dict[str, dict[str, Any]], version: str) -> None:
    for manifest in manifests.values():
        assert kubernetes_validate.validate(manifest, version, strict=True) == version
    wrong = copy.deepcopy(manifests["Deployment"])
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_the_configuration_can_be_read_with_the_secret(manifests: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    text = manifests["ConfigMap"]["data"]["platform.yaml"]
    secrets = manifests["Secret"]["stringData"]
    assert set(re.findall(r"\$\{(\w+)\}", text)) == set(secrets)
    (tmp_path / "platform.yaml").write_text(text)
    settings = load_settings(tmp_path / "platform.yaml", tmp_path, secrets)
    assert settings.server.mode == "external"
    assert settings.storage.url.startswith("postgresql+asyncpg://")
    assert settings.web is not None
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    # Eight agents are given back at a time.
    assert pod["terminationGracePeriodSeconds"] > 2 * settings.limits.grace_s
    [container] = pod["containers"]
    [port] = container["ports"]
    assert port["containerPort"] == settings.web.port


def test_the_parts_name_each_other(manifests: dict[str, dict[str, Any]]) -> None:
    deployment, service = manifests["Deployment"]["spec"], manifests["Service"]["spec"]
    assert deployment["replicas"] >= 2
    assert deployment["template"]["metadata"]["labels"] == LABELS
    assert deployment["selector"]["matchLabels"] == service["selector"] == LABELS
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == LABELS
    pod = deployment["template"]["spec"]
    [container] = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounts) == set(volumes)
    assert volumes["data"]["emptyDir"] == {}
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["SPADE_COREASON_DATA_DIR"].startswith(mounts["data"] + "/")
    dockerfile = (DIRECTORY.parent / "Dockerfile").read_text()
    assert f"WORKDIR {Path(mounts['configuration']).parent}\n" in dockerfile
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile
    ports = {port["name"] for port in container["ports"]}
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert {probe["httpGet"]["path"] for probe in probes} == HEALTH_PATHS
    assert {probe["httpGet"]["port"] for probe in probes} | {port["targetPort"] for port in service["ports"]} == ports


def test_a_blocked_worker_is_not_killed_before_it_knows_what_blocks_it(manifests: dict[str, dict[str, Any]]) -> None:
    probe = manifests["Deployment"]["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > BLOCKED_S * 1.25


def test_the_container_is_started_with_a_command_of_the_program(manifests: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    [container] = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "spade-coreason"
    assert run_command(*container["args"], "--help", cwd=tmp_path).returncode == 0
