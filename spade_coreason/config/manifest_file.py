"""Manifests read from YAML or JSON files, with mistakes reported in one line."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from ..contracts import AgentDefinition
from ..contracts.base import StrictModel
from ..contracts.manifest import NonEmpty, Version
from ..contracts.memory import ManifestMemory
from ..exceptions import ConfigError

# Messages by pydantic's error types, for those whose own messages are about Python.
_MESSAGES = {
    "missing": "is missing",
    "string_type": "must be a text; quote it",
    "string_too_short": "must not be empty",
    "list_type": "must be a list, like [one, two]",
    "tuple_type": "must be a list, like [one, two]",
    "dict_type": "must contain keys with values, like {key: value}",
    "model_type": "must contain keys with values, like {key: value}",
    "too_short": "must not be empty",
}


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
        field, problem = _first_problem(error, model)
        raise ConfigError(f"{path}: {field}" if field else str(path), problem) from error
    return manifest if isinstance(manifest, AgentDefinition) else AgentDefinition.simple(**dict(manifest))


def _load_mapping(path: Path) -> dict[str, Any]:
    is_json = path.suffix.lower() == ".json"
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text) if is_json else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not UTF-8; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}", f"is not JSON: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        place = f"{path}: line {error.problem_mark.line + 1}" if error.problem_mark else str(path)
        raise ConfigError(place, f"is not YAML: {' '.join((error.problem or 'it cannot be read').split())}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(str(path), f"is not {'JSON' if is_json else 'YAML'}: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise ConfigError(str(path), "contains no manifest; add a name, or metadata and capabilities")
    return data


def _first_problem(error: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """Return the field and the description of the mistake to correct first."""
    # A mistyped key is also reported as missing; the unknown key says more.
    details = min(error.errors(include_url=False), key=lambda details: details["type"] != "extra_forbidden")
    section, field = model, ""
    for step in details["loc"]:
        if isinstance(step, int):
            field += f"[{step}]"
            continue
        variants = _sections_in(model)
        if any(step == variant.__name__ for variant in variants):  # pydantic's name for a member of a union
            model = next(variant for variant in variants if step == variant.__name__)
            continue
        section = variants[0] if variants else section
        field += f".{step}" if field else str(step)
        model = _keys_of(section).get(str(step), model)
    if details["type"] == "extra_forbidden":
        return field, _describe_unknown_key(str(details["loc"][-1]), section)
    if details["type"] == "value_error":
        return field, str(details["ctx"]["error"])
    message = details["msg"].replace("Input should be", "must be").replace("String should", "must")
    return field, _MESSAGES.get(details["type"], message)


def _keys_of(section: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a section as they are written in a file, each with its annotation."""
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


def _describe_unknown_key(key: str, section: type[BaseModel]) -> str:
    keys = list(_keys_of(section))
    near = difflib.get_close_matches(key.lower().replace("-", "_"), keys, n=1)
    return f'unknown key; did you mean "{near[0]}"?' if near else f"unknown key; the keys are {', '.join(keys)}"
