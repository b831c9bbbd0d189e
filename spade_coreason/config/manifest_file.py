"""Manifests read from YAML or JSON files, with mistakes reported in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from ..contracts import AgentDefinition
from ..contracts.base import StrictModel
from ..contracts.manifest import NonEmpty, Version
from ..contracts.memory import ManifestMemory
from ..exceptions import ConfigError
from .files import parse_yaml
from .mistakes import describe_mistakes, format_key


class ShortManifest(StrictModel):
    """A short manifest: the parameters of `AgentDefinition.simple` as a file."""

    name: NonEmpty
    version: Version = "0.1.0"
    description: str = ""
    author: NonEmpty = "unknown"
    system_prompt: str | None = None
    memory: ManifestMemory | None = None


def load_manifest(path: str | Path) -> AgentDefinition:
    """Read a manifest from a YAML or JSON file.

    The manifest is complete, or has only `name` and the other parameters of `AgentDefinition.simple`. Raise ConfigError
    with the file, the field and the cause.
    """
    path = Path(path)
    data = _load_mapping(path)
    is_short = "name" in data and "metadata" not in data
    model: type[BaseModel] = ShortManifest if is_short else AgentDefinition
    try:
        manifest = model.model_validate(data)
    except ValidationError as error:
        key, problem = next(iter(describe_mistakes(error, model).items()))
        raise ConfigError(f"{path}: {format_key(key)}" if key else str(path), problem) from error
    return manifest if isinstance(manifest, AgentDefinition) else AgentDefinition.simple(**dict(manifest))


def _load_mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text) if path.suffix.lower() == ".json" else parse_yaml(text, str(path))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not UTF-8; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}", f"is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(str(path), f"is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(str(path), "contains no manifest; add a name, or metadata and capabilities")
    return data
