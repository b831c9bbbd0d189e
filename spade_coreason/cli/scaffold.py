"""The files of a new project."""

from __future__ import annotations

import shlex
from string import Template

from .agent_names import AgentName

AGENT = Template('''\
"""An agent that knows the weather, and remembers where you are."""

from spade_coreason import AgentRequest, Response, Session, agent


@agent(description="Knows the weather")
async def $name(request: AgentRequest, session: Session, response: Response) -> None:
    city = request.payload["query"] or await session.get("city", "Valencia")
    await session.store("city", city)
    await response.thought("Looking out of the window…")
    await response.markdown(f"It is sunny in **{city}**.")
''')

MODEL_AGENT = Template('''\
"""An agent with a language model, which remembers what matters to you."""

from spade_coreason.llm import LLMAgent


def forecast(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name, in English
    """
    return f"It is sunny in {city}."


class $class_name(LLMAgent):
    """Knows the weather, and where you live."""

    default_prompt = "You talk with people about the weather, briefly. Remember where they live."
    default_tools = (forecast,)
''')

MODEL_TEST = Template("""\
from $name import $class_name, forecast

from spade_coreason import AgentTester
from spade_coreason.testing import FakeModel, tool_call


def test_the_forecast_names_the_city() -> None:
    assert forecast("Berlin") == "It is sunny in Berlin."


async def test_it_looks_at_the_forecast() -> None:
    model = FakeModel([tool_call("forecast", city="Berlin"), "Sunny!"])
    async with AgentTester($class_name, model=model) as t:
        assert (await t.ask("How is the weather in Berlin?")).text == "Sunny!"
    assert model.requests[1].tool_results == ["It is sunny in Berlin."]
""")

TEST = Template("""\
from $name import $name

from spade_coreason import AgentTester


async def test_it_knows_the_weather() -> None:
    async with AgentTester($name) as t:
        assert (await t.ask("Berlin")).text == "It is sunny in **Berlin**."


async def test_it_remembers_the_city() -> None:
    async with AgentTester($name) as t:
        await t.ask("Berlin")
        assert "Berlin" in (await t.ask("")).text
""")

CONFIGURATION = Template("""\
# The configuration that `spade-coreason up` runs. Check it with `spade-coreason check`.

server:
  # A local server: Prosody if it is installed, else a small one for demonstrations.
  # For a real server write: {mode: external, domain: example.org}
  mode: auto

agents:
  - jid: $jid
    agent: "$name:$attribute"
$options    # On a real server the account's password comes from the environment:
    # password: "$${${variable}_PASSWORD}"
""")

MODEL_OPTIONS = """\
    options:
      # Asked at OPENAI_BASE_URL with the key OPENAI_API_KEY, else at OpenAI.
      model: "${OPENAI_MODEL:-gpt-4o-mini}"
      # Show each use of a tool to the person.
      show_tools: true
"""

MODEL_PACKAGES = ("openai", "regex")
"""The packages of the extra `llm`."""

MODEL_README = """
It asks a language model: OpenAI's, or one on any server with the same API.

    export OPENAI_API_KEY=…                               # OpenAI; for Ollama and others:
    export OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_MODEL=…

Without a model, a script can stand in: it calls the tool whose words a question contains, and remembers the rest.

    OPENAI_MODEL=script spade-coreason up

The packages for language models are the extra `llm` of spade_coreason. `make` in the checkout installs it there. Elsewhere:

    pip install '/path/to/the/checkout[llm]'

Without access to a package index, download the packages elsewhere (first line), and copy the directory `wheels`:

    pip wheel --wheel-dir wheels '/path/to/the/checkout[llm]'
    pip install --no-index --find-links wheels 'spade-coreason[llm]'
"""

MODEL_SETUP = "export OPENAI_API_KEY=…"
MODEL_HINTS = (
    "For a model other than OpenAI's, also export OPENAI_BASE_URL and OPENAI_MODEL.",
    "Without a model, set OPENAI_MODEL=script: a script stands in for it.",
)

README = Template("""\
# $account

An agent on XMPP, made with spade_coreason.
$model
    # run it
    spade-coreason up
    # ask it or chat with it, from another terminal in this directory
    spade-coreason ask $jid $question
    spade-coreason chat $jid

    # test it without a server (needs pytest and pytest-asyncio)
    python -m pytest

- `$name.py` is the agent.
- `config/platform.yaml` names the agents and their server.
- `tests/test_$name.py` tests it.
- `data/` is created at the first run. It holds conversations and memories.
""")

PYTEST_INI = """\
[pytest]
testpaths = tests
pythonpath = .
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

GITIGNORE = """\
data/
__pycache__/
.pytest_cache/
.venv/
"""


QUESTION, MODEL_QUESTION = "Berlin", "How is the weather in Berlin?"


def build_files(agent: AgentName, *, uses_model: bool = False) -> dict[str, str]:
    """Return the text of every project file by its path; `uses_model` adds a language model."""
    name = agent.module
    values = {
        "name": name,
        "account": agent.account,
        "jid": agent.jid,
        "class_name": agent.class_name,
        "attribute": agent.class_name if uses_model else name,
        "variable": name.upper(),
        "options": MODEL_OPTIONS if uses_model else "",
        "model": MODEL_README if uses_model else "",
        "question": shlex.quote(MODEL_QUESTION if uses_model else QUESTION),
    }
    return {
        f"{name}.py": (MODEL_AGENT if uses_model else AGENT).substitute(values),
        f"tests/test_{name}.py": (MODEL_TEST if uses_model else TEST).substitute(values),
        "config/platform.yaml": CONFIGURATION.substitute(values),
        "README.md": README.substitute(values),
        "pytest.ini": PYTEST_INI,
        ".gitignore": GITIGNORE,
    }
