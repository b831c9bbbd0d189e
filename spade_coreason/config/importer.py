"""Modules found by name in the project directory first, whatever else is installed or imported already."""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..exceptions import ConfigError

OUR_PACKAGE = __name__.partition(".")[0]


def import_module(name: str, project: Path, place: str) -> ModuleType:
    """The module `name`, from `project` where that has its first part, else as Python finds it.

    `project` becomes the first entry of `sys.path`. Another module of the same name that was imported before is replaced
    in `sys.modules`, with its submodules; who imported it keeps it. ConfigError at `place` if it is not there or cannot be
    imported: the module, the exception, and where it was raised.
    """
    _put_first_on_path(project)
    importlib.invalidate_caches()  # a file may be newer than the last look at its directory
    try:
        _import_top_level(name, project)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(place, _describe_missing_module(name, error.name, project)) from error
        raise ConfigError(place, f"{name} cannot be imported: {describe_error(error, project)}; install it") from error
    except (Exception, SystemExit) as error:  # the code of a module may raise anything
        raise ConfigError(place, f"{name} cannot be imported: {describe_error(error, project)}; correct it there") from error


def load_attribute(spec: str, project: Path, place: str) -> Any:
    """What `module:attribute` names, from `project` first. ConfigError at `place` as for `import_module`."""
    name, _, path = spec.partition(":")
    found: Any = import_module(name, project, place)
    for step in path.split("."):
        if not hasattr(found, step):
            near = find_closest_name(step, (other for other in dir(found) if not other.startswith("_")))
            hint = f'did you mean "{near}"?' if near else "correct the name behind the colon"
            file = getattr(sys.modules.get(name), "__file__", None) or ""
            is_theirs = not file or Path(file).resolve().is_relative_to(project.resolve())
            where = "" if is_theirs else f" ({file})"  # perhaps not the one that was meant
            raise ConfigError(place, f'{name}{where} has no "{step}"; {hint}')
        found = getattr(found, step)
    return found


def suggest_agent_name(spec: str, project: Path) -> str:
    """How what does not name an agent may be meant: a module alone, its file, or a point where the colon belongs."""
    module = re.sub(r"\.py(:|$)", r"\1", spec).replace("/", ".").strip(".:")
    above, _, last = module.partition(":") if ":" in module else module.rpartition(".")
    if above and last[:1].isupper():
        return f'write it like "{above}:{last}"'
    for name in (module, above):
        agents = _find_agents(name, project)
        if len(agents) == 1:
            return f'did you mean "{name}:{agents[0]}"?'
    if re.fullmatch(r"\w+(\.\w+)*", module):
        return f'write it like "{module}:NAME", the name of its class or function behind a colon'
    return 'write it like "agents.echo:EchoAgent"'


def _find_agents(name: str, project: Path) -> list[str]:
    """The agents that a module of the project defines, as far as its text says; nothing is run."""
    try:
        text = (project / f"{name.replace('.', '/')}.py").read_text("utf-8")
        defined = ast.parse(text).body
    except (OSError, ValueError, SyntaxError):
        return []
    return [
        one.name
        for one in defined
        if (isinstance(one, ast.AsyncFunctionDef) and any(map(_is_agent, one.decorator_list)))
        or (isinstance(one, ast.ClassDef) and any(getattr(inner, "name", "") == "assist" for inner in one.body))
    ]


def _is_agent(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", getattr(called, "id", "")) == "agent"


def describe_error(error: BaseException, project: Path) -> str:
    """An exception in one line: its type, its text, and the file and line where it was raised."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    where = _find_location(error)
    return f"{named} ({_display_path(where[0], project)}:{where[1]})" if where else named


def _find_location(error: BaseException) -> tuple[str, int] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    # The import system and the modules beside this one lead to the user's code; it never went wrong in them.
    package = os.path.dirname(os.path.dirname(__file__))
    ways = {os.path.dirname(importlib.__file__), *(os.path.join(package, name) for name in ("", "config", "runtime"))}
    files = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    own = [(file, line) for file, line in files if not file.startswith("<frozen") and os.path.dirname(file) not in ways]
    return own[-1] if own else None


def _display_path(file: str, project: Path) -> str:
    path = Path(file)
    return str(path.relative_to(project)) if path.is_relative_to(project) else file


def _put_first_on_path(project: Path) -> None:
    entry = str(project)
    if sys.path[:1] != [entry]:
        sys.path[:] = [entry, *(other for other in sys.path if other != entry)]


def _import_top_level(module_name: str, project: Path) -> None:
    """Sees to it that the first part of `module_name`, if the project has it, is the project's."""
    name, _, inner = module_name.partition(".")
    if name == OUR_PACKAGE or name in sys.stdlib_module_names:
        return
    spec = PathFinder.find_spec(name, [str(project)])
    if spec is None or (_is_plain_directory(spec) and not _has_submodule(spec, inner)):
        return
    loaded = sys.modules.get(name)
    if loaded is not None and _is_loaded_from(loaded, spec):
        return
    before = {other: sys.modules.pop(other) for other in list(sys.modules) if f"{other}.".startswith(f"{name}.")}
    # By its spec and not by name: where the project's directory has no __init__.py, a package of that name that is
    # installed would win over it although it comes later on the path.
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        for other in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
            del sys.modules[other]
        sys.modules.update(before)
        raise


def _is_plain_directory(spec: ModuleSpec) -> bool:
    """Whether it is one without __init__.py: perhaps a package, perhaps no Python at all."""
    return spec.origin is None


def _has_submodule(package: ModuleSpec, inner: str) -> bool:
    name = inner.partition(".")[0]
    return bool(name) and PathFinder.find_spec(f"{package.name}.{name}", package.submodule_search_locations) is not None


def _is_loaded_from(module: ModuleType, spec: ModuleSpec) -> bool:
    """Whether `module` is what `spec` would load."""
    if spec.origin is not None:
        file = getattr(module, "__file__", None)
        return file is not None and _is_same_file(file, spec.origin)
    first = next(iter(getattr(module, "__path__", ())), None)
    return first is not None and _is_same_file(first, next(iter(spec.submodule_search_locations or ())))


def _is_same_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _describe_missing_module(name: str, missing: str, project: Path) -> str:
    above, _, last = missing.rpartition(".")
    parent = sys.modules.get(above)
    if above and parent is not None and not hasattr(parent, "__path__"):
        remedy = f"; write {above} without .py" if missing == f"{above}.py" else ""
        return f"there is no module {name}: {above} is a file, not a package{remedy}"
    path = list(parent.__path__) if above and parent is not None else [str(project)]
    near = find_closest_name(last, (module.name for module in pkgutil.iter_modules(path)))
    hint = f"did you mean {name.replace(missing, f'{above}.{near}'.lstrip('.'), 1)}?" if near else PROJECT_HINT
    return f"there is no module {name} in {project}; {hint}"


PROJECT_HINT = "start where it is, or name that directory with --project DIR"


def find_closest_name(name: str, names: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1)), None)
