"""The command that messages name for a missing extra can be pasted, wherever the package was installed from."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.domain.environment.installation import install_hint

PLACEHOLDER = "pip install '/path/to/the/checkout[llm]'"


def install_from(origin: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the metadata of an installation first on the path, with `origin` as its direct_url.json; None writes none."""
    metadata = tmp_path / "packages" / "spade_coreason-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spade-coreason\nVersion: 0.1.0\n")
    if origin is not None:
        text = origin if isinstance(origin, str) else json.dumps(origin)
        (metadata / "direct_url.json").write_text(text)
    monkeypatch.syspath_prepend(metadata.parent)


def test_the_hint_names_the_checkout_that_is_installed_in_this_environment() -> None:
    *command, target = shlex.split(install_hint("llm"))
    assert command == ["pip", "install"]
    assert target.endswith("[llm]")
    project = tomllib.loads((Path(target.removesuffix("[llm]")) / "pyproject.toml").read_text())["project"]
    assert project["name"] == "spade-coreason"
    assert "llm" in project["optional-dependencies"]


@pytest.mark.parametrize("info", [{}, {"editable": True}], ids=["copied", "editable"])
@pytest.mark.parametrize("name", ["checkout", "it's my checkout", "größe $HOME %41"])
def test_the_path_of_the_checkout_is_quoted_for_a_shell(
    name: str, info: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / name
    checkout.mkdir()
    install_from({"url": checkout.as_uri(), "dir_info": info}, tmp_path, monkeypatch)
    assert shlex.split(install_hint("llm,mcp")) == ["pip", "install", f"{checkout}[llm,mcp]"]


@pytest.mark.parametrize(
    "origin",
    [
        None,
        {"url": "file:///nowhere/at/all", "dir_info": {}},
        {"url": "file:///tmp", "archive_info": {}},
        {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
        {"url": "https://example.org/tmp", "dir_info": {}},
        {"url": 7, "dir_info": {}},
        {"dir_info": {}},
        [],
        "null",
        "{",
    ],
    ids=str,
)
def test_without_a_local_directory_the_hint_has_a_placeholder(
    origin: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_from(origin, tmp_path, monkeypatch)
    assert install_hint("llm") == PLACEHOLDER
