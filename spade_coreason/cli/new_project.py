"""The files of a new project."""

from __future__ import annotations

from string import Template

AGENT = Template('''\
"""An agent that knows the weather, and remembers where you are."""

from spade_coreason import agent


@agent(description="Knows the weather")
async def $name(request, session, response):
    city = request.payload["query"] or await session.get("city", "Valencia")
    await session.store("city", city)
    await response.thought("Looking out of the window…")
    await response.markdown(f"It is sunny in **{city}**.")
''')

TEST = Template("""\
from $name import $name

from spade_coreason import AgentTester


async def test_it_knows_the_weather():
    async with AgentTester($name) as t:
        assert (await t.ask("Berlin")).text == "It is sunny in **Berlin**."


async def test_it_remembers_the_city():
    async with AgentTester($name) as t:
        await t.ask("Berlin")
        assert "Berlin" in (await t.ask("")).text
""")

CONFIGURATION = Template("""\
# What `spade-coreason up` runs. `spade-coreason check` says whether it is right.

server:
  # A server of its own on this machine: Prosody if it is installed, else a small one for demonstrations.
  # For a real server write: {mode: external, domain: example.org}
  mode: auto

agents:
  - jid: $name@localhost
    agent: "$name:$name"
    # On a real server the account's password comes from the environment:
    # password: "$${${variable}_PASSWORD}"
""")

README = Template("""\
# $name

An agent on XMPP, made with spade_coreason.

    # run it
    spade-coreason up
    # from another terminal here: ask it, or talk to it
    spade-coreason ask $name@localhost Berlin
    spade-coreason chat $name@localhost

    # test it, without a server
    pip install pytest pytest-asyncio
    pytest

- `$name.py` is the agent.
- `config/platform.yaml` says which agents run, and on which server.
- `tests/test_$name.py` tests it.
- `data/` comes with the first run: what was said and remembered.
""")

PYTEST = """\
[pytest]
testpaths = tests
pythonpath = .
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
"""

IGNORED = """\
data/
__pycache__/
.pytest_cache/
.venv/
"""


def files_of(name: str) -> dict[str, str]:
    """The text of every file of a project whose agent has this name, by its path."""
    values = {"name": name, "variable": name.upper()}
    return {
        f"{name}.py": AGENT.substitute(values),
        f"tests/test_{name}.py": TEST.substitute(values),
        "config/platform.yaml": CONFIGURATION.substitute(values),
        "README.md": README.substitute(values),
        "pytest.ini": PYTEST,
        ".gitignore": IGNORED,
    }
