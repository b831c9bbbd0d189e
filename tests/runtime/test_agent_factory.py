"""Loading agents: the project comes first, parameters are injected, and errors are one line."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

from spade_coreason.contracts import AgentDefinition, AgentInterface
from spade_coreason.exceptions import ConfigError
from spade_coreason.runtime.agent_factory import Injectables, load_agent

PLACE = "config/platform.yaml: agents[2]"

ECHO = '''
class EchoAgent:
    """Repeats what you say.

    And more.
    """

    def __init__(self, manifest):
        self._manifest = manifest

    @property
    def manifest(self):
        return self._manifest

    async def assist(self, request, session, response):
        await response.markdown(request.payload["query"])
'''


@pytest.fixture(autouse=True)
def restore_modules() -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.modules.update(modules)
    sys.path[:] = path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def write(directory: Path, name: str, *codes: str) -> None:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(dedent, codes)), encoding="utf-8")


def load(project: Path, spec: str, parts: Injectables | None = None, place: str = PLACE, **options: object) -> Any:
    return load_agent(spec, place=place, project=project, injectables=parts or Injectables(), options=options)


def load_error(project: Path, spec: str, parts: Injectables | None = None, place: str = PLACE, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(project, spec, parts, place, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What an agent may be


def test_a_class_without_imports_of_the_package_is_an_agent(project: Path) -> None:
    write(project, "mine.py", ECHO)
    agent = load(project, "mine:EchoAgent")
    assert isinstance(agent, AgentInterface)
    assert agent.manifest.metadata.name == "EchoAgent"
    assert agent.manifest.capabilities[0].description == "Repeats what you say."


def test_a_factory_makes_an_agent_with_the_options(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO,
        """
        def make(manifest, *, mood, size=1):
            "Makes."
            agent = EchoAgent(manifest)
            agent.mood = mood, size
            return agent
        """,
    )
    agent = load(project, "mine:make", mood="gay")
    assert agent.mood == ("gay", 1)
    assert (agent.manifest.metadata.name, agent.manifest.capabilities[0].description) == ("make", "Makes.")


def test_an_instance_is_used_unchanged(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO,
        """
        class Case:
            echo = EchoAgent('any')
        """,
    )
    assert load(project, "mine:Case.echo") is sys.modules["mine"].Case.echo


def test_a_callable_object_with_a_coroutine_is_an_assist(project: Path) -> None:
    write(
        project,
        "mine.py",
        """
        class Assist:
            async def __call__(self, request, session, response): ...
        class Agent:
            manifest = "any"
            assist = Assist()
        """,
    )
    assert load(project, "mine:Agent").manifest == "any"


# The parts


@dataclasses.dataclass
class CountingFactory:
    """A factory of an injectable that counts its calls."""

    name: str
    made: int = 0

    def __call__(self) -> str:
        self.made += 1
        return self.name


def counting_injectables() -> tuple[Injectables, dict[str, CountingFactory]]:
    counted = {name: CountingFactory(name) for name in ("peers", "memory", "knowledge", "files", "usage")}
    return Injectables(**counted), counted  # type: ignore[arg-type]  # the keys are the fields


def test_only_the_requested_parts_are_made(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO,
        """
        class Noting(EchoAgent):
            def __init__(self, manifest, memory):
                super().__init__(manifest)
                self.memory = memory
        """,
    )
    parts, counted = counting_injectables()
    assert load(project, "mine:Noting", parts).memory == "memory"
    load(project, "mine:EchoAgent", parts)
    assert {name: part.made for name, part in counted.items()} == {
        "peers": 0,
        "memory": 1,
        "knowledge": 0,
        "files": 0,
        "usage": 0,
    }


def test_parts_and_options_are_passed_by_name_in_any_order(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO,
        """
        class Full(EchoAgent):
            def __init__(self, size, peers, *rest, memory, manifest, knowledge=None, **more):
                super().__init__(manifest)
                self.given = size, peers, rest, memory, knowledge, more
        """,
    )
    agent = load(project, "mine:Full", counting_injectables()[0], size=3, colour="red")
    assert agent.given == (3, "peers", (), "memory", "knowledge", {"colour": "red"})


def test_a_parameter_with_a_default_may_be_absent(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO,
        """
        class Modest(EchoAgent):
            def __init__(self, manifest, peers=None, knowledge=7, size=1):
                super().__init__(manifest)
                self.given = peers, knowledge, size
        """,
    )
    assert load(project, "mine:Modest").given == (None, 7, 1)


def test_a_manifest_comes_from_the_configuration_then_from_the_class_then_from_its_name(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO,
        """
        class Own(EchoAgent):
            def __init__(self, manifest='its own'):
                super().__init__(manifest)
        """,
    )
    write(project, "named.yaml", "metadata: {version: 1.2.3, name: from file, author: me}\ncapabilities: [{name: chat}]\n")
    given = AgentDefinition.simple("given")
    from_file = Injectables(manifest_file=project / "named.yaml")
    for name in ("Own", "EchoAgent"):
        assert load(project, f"mine:{name}", Injectables(manifest=given)).manifest is given
        assert load(project, f"mine:{name}", from_file).manifest.metadata.name == "from file"
    assert load(project, "mine:Own").manifest == "its own"
    assert load(project, "mine:EchoAgent").manifest.metadata.name == "EchoAgent"


def test_only_a_docstring_of_its_own_describes_a_class(project: Path) -> None:
    write(
        project,
        "mine.py",
        ECHO
        + "\nfrom dataclasses import dataclass\nclass Silent(EchoAgent): pass\n"
        + "@dataclass\nclass Data:\n    manifest: object\n    async def assist(self, request, session, response): ...\n",
    )
    for name in ("Silent", "Data"):
        assert load(project, f"mine:{name}").manifest.capabilities[0].description == ""


# Where it is found


def test_the_project_has_priority_over_an_installed_package(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    installed = tmp_path_factory.mktemp("site-packages")
    write(installed, "agents/__init__.py", "WHOSE = 'theirs'")
    write(installed, "agents/echo.py", "raise RuntimeError('not this one')")
    sys.path.insert(0, str(installed))
    unload("agents")
    write(project, "agents/__init__.py", "")
    write(project, "agents/echo.py", ECHO)
    load(project, "agents.echo:EchoAgent")
    assert sys.modules["agents.echo"].__file__ == str(project / "agents" / "echo.py")


@pytest.mark.parametrize("with_init", [True, False], ids=["a package", "a directory without __init__.py"])
def test_the_project_has_priority_over_an_imported_package(
    project: Path, tmp_path_factory: pytest.TempPathFactory, with_init: bool
) -> None:
    installed = tmp_path_factory.mktemp("site-packages")
    write(installed, "agents/__init__.py", "from . import run\nWHOSE = 'theirs'")
    write(installed, "agents/run.py", "WHOSE = 'theirs'")
    sys.path.insert(0, str(installed))
    unload("agents")
    theirs = __import__("agents")
    if with_init:
        write(project, "agents/__init__.py", "from .shared import WHOSE")
    write(project, "agents/shared.py", "WHOSE = 'ours'")
    write(project, "agents/echo.py", "from agents.shared import WHOSE\n" + ECHO)
    load(project, "agents.echo:EchoAgent")
    assert sys.modules["agents.echo"].WHOSE == "ours"
    assert "agents.run" not in sys.modules
    assert theirs.run.WHOSE == "theirs"  # whoever has it keeps it
    ours = sys.modules["agents"]
    sys.path.append(str(project / "later"))  # which makes Python look again for the parts of such a directory
    load(project, "agents.echo:EchoAgent")
    assert sys.modules["agents"] is ours


def test_a_module_is_run_once_for_all_agents_in_it(project: Path) -> None:
    write(project, "mine.py", "import sys\nsys.times = getattr(sys, 'times', 0) + 1\n" + ECHO)
    for _ in range(3):
        load(project, "mine:EchoAgent")
    assert vars(sys)["times"] == 1


def test_a_directory_that_is_no_package_hides_no_installed_one(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    installed = tmp_path_factory.mktemp("site-packages")
    write(installed, "notesbook/__init__.py", "")
    write(installed, "notesbook/agent.py", ECHO)
    sys.path.append(str(installed))
    write(project, "notesbook/monday.txt", "no Python")
    load(project, "notesbook.agent:EchoAgent")
    assert sys.modules["notesbook.agent"].__file__ == str(installed / "notesbook" / "agent.py")


def test_modules_of_python_and_of_this_package_are_never_replaced(project: Path) -> None:
    write(project, "json/__init__.py", ECHO)
    write(project, "spade_coreason/__init__.py", ECHO)
    before = sys.modules["json"], sys.modules["spade_coreason"]
    for name in ("json", "spade_coreason"):  # and the file tells that it is another one
        assert f'{name} ({sys.modules[name].__file__}) has no "EchoAgent"' in load_error(project, f"{name}:EchoAgent")
    assert (sys.modules["json"], sys.modules["spade_coreason"]) == before


def test_a_failed_import_restores_the_modules(project: Path) -> None:
    theirs = sys.modules["broken"] = ModuleType("broken")
    write(project, "broken/__init__.py", "import broken.inner\n1 / 0")
    write(project, "broken/inner.py", "")
    assert "ZeroDivisionError" in load_error(project, "broken:Agent")
    assert sys.modules["broken"] is theirs
    assert "broken.inner" not in sys.modules


def test_a_project_finds_its_own_modules_from_its_agents(project: Path) -> None:
    write(project, "words.py", "HELLO = 'hello'")
    write(project, "agents/__init__.py", "")
    write(project, "agents/greeter.py", "from words import HELLO\n" + ECHO)
    load(project, "agents.greeter:EchoAgent")
    assert sys.path[0] == str(project)
    assert sys.path.count(str(project)) == 1


# Mistakes

WRONG_AGENTS = (
    ECHO
    + """

class Sync(EchoAgent):
    def assist(self, request, session, response): ...

class Generator(EchoAgent):
    async def assist(self, request, session, response):
        yield 1

class Short(EchoAgent):
    async def assist(self, request): ...

class Mute:
    def __init__(self, manifest):
        self.manifest = manifest

class Bare:
    async def assist(self, request, session, response): ...

class Forgetful(EchoAgent):
    def __init__(self, manifest=None):
        super().__init__(None)

class Raising(EchoAgent):
    def __init__(self, manifest, delay_s=0):
        raise ValueError(
            "delay_s is\\nwrong")

class Worse(EchoAgent):
    @property
    def manifest(self):
        raise OSError("gone")

class Positional(EchoAgent):
    def __init__(self, manifest, size, /): ...

class Asking(EchoAgent):
    def __init__(self, manifest, peers, delay_s, mood="gay"): ...

async def weather(request, session, response): ...

instance = EchoAgent("any")
nothing = None
"""
)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("EcoAgent", '.agent: mine has no "EcoAgent"; did you mean "EchoAgent"?'),
        ("zzz", '.agent: mine has no "zzz"; correct the name after the colon'),
        ("nothing", ".agent: mine:nothing is not an agent: it is a NoneType; an agent has "),
        ("Sync", '.agent: mine:Sync is not an agent: its assist is not a coroutine; write "async def assist'),
        ("Generator", ".agent: mine:Generator is not an agent: its assist is a generator; "),
        (
            "Short",
            ".agent: mine:Short is not an agent: its assist cannot be called with (request, session, response): too many",
        ),
        ("Mute", '.agent: mine:Mute is not an agent: it is a Mute without "assist"; an agent has an attribute "manifest" and'),
        ("Bare", '.agent: mine:Bare is not an agent: it is a Bare without "manifest"; '),
        ("Forgetful", '.agent: mine:Forgetful is not an agent: it is a Forgetful without "manifest"; '),
        ("Raising", ".agent: mine:Raising cannot be created: ValueError: delay_s is wrong (mine.py:42)"),
        ("Worse", ".agent: mine:Worse has no manifest: OSError: gone (mine.py:48)"),
        ("Positional", '.agent: mine:Positional takes "manifest" by position only; remove the "/"'),
        ("Asking", ".agent: mine:Asking needs peers, which is not available here; give it a default"),
        ("weather", ".agent: mine:weather is a coroutine function, not an agent; put @agent(...) above it"),
    ],
)
def test_an_object_that_is_no_agent_is_one_line_with_the_reason(project: Path, name: str, line: str) -> None:
    write(project, "mine.py", WRONG_AGENTS)
    assert load_error(project, f"mine:{name}").startswith(PLACE + line)


def test_wrong_options_are_named(project: Path) -> None:
    write(project, "mine.py", WRONG_AGENTS)
    parts = counting_injectables()[0]
    assert load_error(project, "mine:Asking", parts) == (
        f"{PLACE}.options.delay_s: is missing, and mine:Asking needs it; set a value"
    )
    assert load_error(project, "mine:Asking", parts, dely_s=1) == (
        f'{PLACE}.options.dely_s: unknown option of mine:Asking; did you mean "delay_s"?'
    )
    assert load_error(project, "mine:Asking", parts, zzz=1).endswith("unknown option of mine:Asking; it takes delay_s, mood")
    assert load_error(project, "mine:EchoAgent", parts, zzz=1).endswith("unknown option of mine:EchoAgent; it takes none")
    assert load_error(project, "mine:Asking", parts, peers=1) == (
        f"{PLACE}.options.peers: the platform sets peers itself; remove it"
    )
    assert load_error(project, "mine:instance", parts, size=1).startswith(
        f"{PLACE}.options.size: mine:instance is already an agent"
    )
    assert load_error(project, "mine:Asking", parts, "", dely_s=1).startswith("options.dely_s: unknown option of mine:Asking")
    assert load_error(project, "mine:Sync", place="").startswith("mine:Sync is not an agent")


def test_a_manifest_file_that_cannot_be_used_is_named(project: Path) -> None:
    write(project, "mine.py", WRONG_AGENTS)
    write(project, "bad.yaml", "metadata: {}")
    bad = Injectables(manifest_file=project / "bad.yaml")
    assert load_error(project, "mine:EchoAgent", bad).startswith(f"{PLACE}.manifest: {project}/bad.yaml: metadata.version: ")
    assert load_error(project, "mine:instance", bad).startswith(f"{PLACE}.manifest: mine:instance is already an agent")
    assert load_error(project, "mine:Bare", bad).startswith(f"{PLACE}.manifest: mine:Bare has its own manifest")


def test_a_missing_module_is_one_line_with_the_most_similar_name(project: Path) -> None:
    write(project, "agents/__init__.py", "")
    write(project, "agents/echo.py", ECHO)
    assert load_error(project, "agents.ecko:EchoAgent") == (
        f"{PLACE}.agent: there is no module agents.ecko in {project}; did you mean agents.echo?"
    )
    assert load_error(project, "agnets.echo:EchoAgent").endswith(
        f"no module agnets.echo in {project}; did you mean agents.echo?"
    )
    assert load_error(project, "qqq.www:Agent").endswith(
        f"there is no module qqq.www in {project}; run the command in its directory,"
        " or name that with --project DIR, in which -c begins then"
    )
    assert load_error(project, "agents.echo.inner:Agent").endswith(
        "there is no module agents.echo.inner: agents.echo is a file, not a package"
    )
    for wrong in (":EchoAgent", ""):
        assert "does not name an agent; write it like" in load_error(project, wrong)
    assert load_error(project, "agents.echo.EchoAgent").endswith('write it like "agents.echo:EchoAgent"')
    for module in ("agents.echo", "agents/echo.py", "agents.echo:", "agents.echo.echo"):
        assert load_error(project, module).endswith('does not name an agent; did you mean "agents.echo:EchoAgent"?')
    write(project, "one.py", "import spade_coreason\n@spade_coreason.agent(description='x')\nasync def chef(a, b, c): ...\n")
    assert load_error(project, "one").endswith('did you mean "one:chef"?')
    write(project, "broken.py", "class")
    write(project, "two.py", f"{ECHO}\n\nclass Other(EchoAgent):\n    async def assist(self, *all): ...\n")
    for module in ("two", "broken", "nowhere"):
        assert f'write it like "{module}:NAME", with the name of' in load_error(project, module)
    assert load_error(project, "agents.echo.py:EchoAgent").endswith("is a file, not a package; write agents.echo without .py")


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\n\n1 / 0\n", "mine cannot be imported: ZeroDivisionError: division by zero (mine.py:3); correct the module"),
        ("def f(:\n", "mine cannot be imported: SyntaxError: "),
        (
            "import a_library_of_nobody\n",
            "mine cannot be imported: ModuleNotFoundError: No module named 'a_library_of_nobody' (mine.py:1); install it",
        ),
        ("from inner import x\n", "mine cannot be imported: KeyError: 'y' (inner.py:2); correct the module"),
        ("import sys\nsys.exit(3)\n", "mine cannot be imported: SystemExit: 3 (mine.py:2); "),
        ("from os import nothing_like_that\n", "mine cannot be imported: ImportError: cannot import name 'nothing_like_that'"),
        ("raise RuntimeError\n", "mine cannot be imported: RuntimeError (mine.py:1); "),
        ("raise RuntimeError('two\\nlines')\n", "mine cannot be imported: RuntimeError: two lines (mine.py:1); "),
    ],
)
def test_a_module_that_raises_is_one_line_with_file_and_line(project: Path, code: str, line: str) -> None:
    write(project, "mine.py", code)
    write(project, "inner.py", "z = {}\nz['y']\n")
    assert load_error(project, "mine:Agent").startswith(f"{PLACE}.agent: {line}")


def test_a_syntax_error_shows_its_own_line(project: Path) -> None:
    write(project, "mine.py", "x = 1\ndef f(:\n    pass\n")
    assert "(mine.py:2)" in load_error(project, "mine:Agent")


def test_loading_an_agent_does_not_import_spade(project: Path) -> None:
    write(project, "mine.py", ECHO)
    code = f"""
import sys
from pathlib import Path
from spade_coreason.runtime.agent_factory import Injectables, load_agent
load_agent("mine:EchoAgent", place="", project=Path({str(project)!r}), injectables=Injectables(), options={{}})
print(*(name for name in ("spade", "slixmpp", "sqlalchemy") if name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def unload(name: str) -> None:
    for other in [other for other in sys.modules if f"{other}.".startswith(f"{name}.")]:
        del sys.modules[other]
