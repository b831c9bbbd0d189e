"""Import of user code by name: the project directory comes first, before installed and already imported modules."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from ..domain.texts.enumeration import did_you_mean, find_closest
from ..exceptions import ConfigError

OUR_PACKAGE = __name__.partition(".")[0]


def import_module(name: str, project: Path, place: str) -> ModuleType:
    """Import the module `name`, from `project` if that contains its first part, else as Python finds it.

    `project` becomes the first entry of `sys.path`. Another module of the same name that was imported before is replaced
    in `sys.modules`, with its submodules; code that imported it before is not affected. Raise ConfigError at `place` if
    the module does not exist or cannot be imported. Its text names the module, the exception and the line that raised it.
    """
    _put_first_on_path(project)
    importlib.invalidate_caches()  # a file may be newer than Python's cached list of its directory
    try:
        _import_top_level(name, project)
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(place, _describe_missing_module(name, error.name, project)) from error
        raise ConfigError(place, f"{name} cannot be imported: {describe_error(error, project)}; install it") from error
    except BaseException as error:  # the code of a module may raise anything, and no cancellation arrives here
        raise ConfigError(place, f"{name} cannot be imported: {describe_error(error, project)}; correct the module") from error


def load_attribute(spec: str, project: Path, place: str) -> Any:
    """Return the object that `module:attribute` names; the module is imported by `import_module`.

    Raise ConfigError at `place` if the import fails or there is no such attribute.
    """
    name, _, path = spec.partition(":")
    target: Any = import_module(name, project, place)
    for step in path.split("."):
        if not hasattr(target, step):
            public = (other for other in dir(target) if not other.startswith("_"))
            hint = did_you_mean(step, public, "correct the name after the colon")
            file = getattr(sys.modules.get(name), "__file__", None) or ""
            is_in_project = not file or Path(file).resolve().is_relative_to(project.resolve())
            location = "" if is_in_project else f" ({file})"  # perhaps not the intended module
            raise ConfigError(place, f'{name}{location} has no "{step}"; {hint}')
        target = getattr(target, step)
    return target


def suggest_agent_name(spec: str, project: Path) -> str:
    """Suggest the agent that a wrong `spec` may mean.

    The spec may be a module alone or its file, or have a point in place of the colon.
    """
    module = re.sub(r"\.py(:|$)", r"\1", spec).replace("/", ".").strip(".:")
    above, _, last = module.partition(":") if ":" in module else module.rpartition(".")
    if above and last[:1].isupper():
        return f'write it like "{above}:{last}"'
    for name in (module, above):
        agents = _find_agents(name, project)
        if len(agents) == 1:
            return f'did you mean "{name}:{agents[0]}"?'
    if re.fullmatch(r"\w+(\.\w+)*", module):
        return f'write it like "{module}:NAME", with the name of its class or function after a colon'
    return 'write it like "spade_coreason.agents.echo:EchoAgent"'


def _find_agents(name: str, project: Path) -> list[str]:
    """Return the names of the agents that a module of the project defines, judged by its text; no code is run."""
    try:
        text = (project / f"{name.replace('.', '/')}.py").read_text("utf-8")
        statements = ast.parse(text).body
    except (OSError, ValueError, SyntaxError):
        return []
    return [
        node.name
        for node in statements
        if (isinstance(node, ast.AsyncFunctionDef) and any(map(_is_agent, node.decorator_list)))
        or (isinstance(node, ast.ClassDef) and any(getattr(inner, "name", "") == "assist" for inner in node.body))
    ]


def _is_agent(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(function, "attr", getattr(function, "id", "")) == "agent"


def describe_error(error: BaseException, project: Path) -> str:
    """Describe an exception in one line: its type, its text, and the file and line that raised it."""
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    description = f"{type(error).__name__}: {text}" if text else type(error).__name__
    location = _find_location(error)
    return f"{description} ({_display_path(location[0], project)}:{location[1]})" if location else description


def _find_location(error: BaseException) -> tuple[str, int] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    # The import system and our own modules only call the user's code; the error is never in them.
    package = os.path.dirname(os.path.dirname(__file__))
    callers = {
        os.path.dirname(importlib.__file__),
        *(os.path.join(package, name) for name in ("", "config", "runtime", "runtime/turns")),
    }
    frames = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    user_code = [
        (file, line) for file, line in frames if not file.startswith("<frozen") and os.path.dirname(file) not in callers
    ]
    return user_code[-1] if user_code else None


def _display_path(file: str, project: Path) -> str:
    path = Path(file)
    return str(path.relative_to(project)) if path.is_relative_to(project) else file


def _put_first_on_path(project: Path) -> None:
    entry = str(project)
    if sys.path[:1] != [entry]:
        sys.path[:] = [entry, *(other for other in sys.path if other != entry)]


def _import_top_level(module_name: str, project: Path) -> None:
    """Import the first part of `module_name` from the project, if the project has it."""
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
    # Import it by its spec and not by name: an installed package of that name would win over a directory of the project
    # without __init__.py, although it comes later on the path.
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
    """Return True for a directory without __init__.py: perhaps a package, perhaps no Python at all."""
    return spec.origin is None


def _has_submodule(package: ModuleSpec, inner: str) -> bool:
    name = inner.partition(".")[0]
    return bool(name) and PathFinder.find_spec(f"{package.name}.{name}", package.submodule_search_locations) is not None


def _is_loaded_from(module: ModuleType, spec: ModuleSpec) -> bool:
    """Return True if `module` is the module that `spec` would load."""
    if spec.origin is not None:
        file = getattr(module, "__file__", None)
        return file is not None and _is_same_file(file, spec.origin)
    first = next(iter(getattr(module, "__path__", ())), None)
    return first is not None and _is_same_file(first, next(iter(spec.submodule_search_locations or ())))


def _is_same_file(file: str, other: str) -> bool:
    return os.path.realpath(file) == os.path.realpath(other)


def _describe_missing_module(name: str, missing: str, project: Path) -> str:
    above, _, last = missing.rpartition(".")
    parent = sys.modules.get(above)
    if above and parent is not None and not hasattr(parent, "__path__"):
        remedy = f"; write {above} without .py" if missing == f"{above}.py" else ""
        return f"there is no module {name}: {above} is a file, not a package{remedy}"
    path = list(parent.__path__) if above and parent is not None else [str(project)]
    near = find_closest(last, (module.name for module in pkgutil.iter_modules(path)))
    hint = f"did you mean {name.replace(missing, f'{above}.{near}'.lstrip('.'), 1)}?" if near else PROJECT_HINT
    return f"there is no module {name} in {project}; {hint}"


PROJECT_HINT = "run the command in its directory, or name that with --project DIR, in which -c begins then"
