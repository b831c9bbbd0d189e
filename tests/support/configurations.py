"""Configurations as text, and the settings or errors that they result in."""

from __future__ import annotations

from pathlib import Path

import pytest

from spade_coreason.config.loader import load_settings
from spade_coreason.config.settings import Settings
from spade_coreason.exceptions import ConfigError


def load_config(project: Path, text: str, name: str = "platform.yaml", **environ: str) -> Settings:
    path = Path("config") / name
    (project / path).write_text(text, encoding="utf-8")
    return load_settings(path, project, environ)


def config_error(project: Path, text: str, name: str = "platform.yaml", **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(project, text, name, **environ)
    assert str(caught.value) == f"{caught.value.place}: {caught.value.problem}"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def agents_section(*lines: str) -> str:
    return "agents:\n" + "\n".join(f"  - {{{line}}}" for line in lines)


ECHO = 'jid: echo@localhost, agent: "agents.echo:EchoAgent"'
