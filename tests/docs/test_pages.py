"""Every code block and command of the documentation runs; see `tests/docs/pages.py`."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.docs.pages import (
    DOCS,
    EXAMPLES,
    PAGES,
    ROOT,
    Block,
    Page,
    PageRun,
    check_output,
    read_console,
    read_page,
    read_plain_command,
)
from tests.docs.setups import SETUPS
from tests.support.program import COMMAND

LONG_GUIDES = (
    "backups",
    "develop-with-reload",
    "ejabberd",
    "monitoring",
    "postgresql",
    "resources",
    "retention",
    "upgrading",
    "workers",
)
OF_A_RELEASE = {"examples/mcp_agent/README.md", *(f"docs/how-to/{name}.md" for name in LONG_GUIDES)}
"""The pages that take longest: on servers and databases that other tests start too, or with several starts of a platform."""
SERVER_GUIDES = ("access-and-operators", "clients", "isolation", "prosody", "rooms")
ON_SERVERS = {
    "docs/tutorial/7-go-live.md",
    "examples/refund_desk/README.md",
    "examples/release_bot/README.md",
    *(f"docs/how-to/{name}.md" for name in SERVER_GUIDES),
}
"""The pages that start Prosody, or use a program of `make servers`."""


def marks_of(page: Page) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.release] if page.name in OF_A_RELEASE else []
    return [*marks, pytest.mark.servers] if page.name in ON_SERVERS | OF_A_RELEASE else marks


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=marks_of(page)) for page in map(read_page, PAGES) if page.blocks],
    ids=lambda page: page.name,
)
def test_the_blocks_of_a_page_run_in_their_order(page: Page, tmp_path: Path) -> None:
    directory = tmp_path / "page"
    directory.mkdir()
    with ExitStack() as stack:
        environment = {}
        if page.setup:
            name, *arguments = page.setup
            environment = dict(stack.enter_context(SETUPS[name](tmp_path / "setup", *arguments)))
        PageRun(page, directory, environment).run()


def test_each_page_begins_with_its_heading() -> None:
    """A page that begins with a comment got its title from the name of its file."""
    assert [page for page in PAGES if not page.read_text(encoding="utf-8").startswith("# ")] == []


def test_pages_on_doors_can_be_followed_in_one_directory() -> None:
    """A key with the name of another is refused, and a secret in the file of another replaces it."""
    made, files = list[str](), list[str]()
    for name in ("doors", "openai", "a2a", "mcp-server", "webhooks"):
        text = (DOCS / "how-to" / f"{name}.md").read_text(encoding="utf-8")
        for kind, made_name, file in re.findall(r"^\$ spade-coreason (keys|webhooks) create (\S+) .*> (\S+)$", text, re.M):
            made.append(f"{kind} {made_name}")
            files.append(file)
    assert len(made) == len(set(made)) == len(set(files)) == 6


def test_no_example_has_the_name_of_another_module() -> None:
    """`profile.py` hid the module that cProfile imports."""
    titles = [
        Path(block.title) for page in map(read_page, (ROOT / "README.md", *PAGES)) for block in page.blocks if block.title
    ]
    files = [path for path in titles + list(EXAMPLES.rglob("*.py")) if path.suffix == ".py"]
    assert len(files) > 50
    others = sys.stdlib_module_names | packages_distributions().keys()
    assert [str(file) for file in files if file.stem in others] == []


@pytest.mark.parametrize(
    ("documented", "printed", "matches"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a …\n", "a b\n", True),
        ("a …\n", "a b\nc\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\n", "a\n", True),
        ("", "anything\n", True),
        ("a.c\n", "abc\n", False),
    ],
)
def test_an_output_is_compared_with_the_documented_one(documented: str, printed: str, matches: bool) -> None:
    if matches:
        check_output("x", documented, printed)
    else:
        with pytest.raises(AssertionError, match="x: it printed"):
            check_output("x", documented, printed)


@pytest.mark.parametrize(
    ("command", "plain"),
    [
        ("spade-coreason", ({}, COMMAND)),
        ("python -m pytest -q", ({}, [sys.executable, "-m", "pytest", "-q"])),
        ("spade-coreason ask echo 'hi  you' \"it's\"", ({}, [*COMMAND, "ask", "echo", "hi  you", "it's"])),
        ("A=$WORD B= spade-coreason ask $WORD", ({"A": "a/b", "B": ""}, [*COMMAND, "ask", "a/b"])),
        ("spade-coreason ask $SENTENCE", None),
        ("spade-coreason ask echo '$WORD'", None),
        ('spade-coreason ask echo "$WORD"', None),
        ("spade-coreason status | head -1", None),
        ("spade-coreason ask echo hi >file", None),
        ("python -c 1", None),
        ("spade-coreason-more", None),
        ("rm x; spade-coreason", None),
        ("spade-coreason ask a$(date)", None),
    ],
)
def test_a_command_that_needs_no_shell_is_read_as_a_shell_would(command: str, plain: object) -> None:
    assert read_plain_command(command, {"WORD": "a/b", "SENTENCE": "a  'b"}) == plain


def test_a_console_block_has_commands_with_their_outputs() -> None:
    text = "$ one\nout\n$ two \\\n  more\n$ three\n\nlast\n"
    assert list(read_console(text)) == [("one", "out\n"), ("two   more", ""), ("three", "\nlast\n")]


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (Block("python", None, "x = 1\n", 7, None, ""), "a block of python needs a title"),
        (Block("sh", None, "exit 3\n", 7, None, ""), "exit code 3"),
        (Block("console", None, "$ echo a\nb\n", 7, None, ""), "it printed\na\n"),
        (Block("console", None, "$ sed -i s/a/b/ no_such_file\n", 7, None, ""), "exit code 2"),
        (Block("yaml", None, "conversation: {no_such_key: 1}\n", 7, None, ""), "no_such_key"),
        (Block("json", None, "{", 7, None, ""), "Expecting property name"),
        (Block("python", None, "nowhere", 7, "from", "README.md"), "not in README.md"),
        (Block("sh", None, "reboot", 7, "not run", "tests/docs/test_pages.py::test_no_such_test"), "there is no test"),
        (Block("sh", None, "reboot", 7, "not run", "because"), "names no test"),
    ],
    ids=lambda value: value.language if isinstance(value, Block) else "",
)
def test_a_block_that_is_wrong_fails_with_its_place(block: Block, problem: str, tmp_path: Path) -> None:
    page = Page(DOCS / "page.md", (block,), ())
    with pytest.raises(AssertionError, match=r"docs/page\.md:7: ") as error:
        PageRun(page, tmp_path).run()
    assert problem in str(error.value)


def test_files_and_background_commands_of_a_page_are_there_for_the_next_ones(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        '# Page\n\n```python title="sub/hello.py"\nprint("hello")\n```\n\n'
        '```sh title="serve.sh"\ntrap "echo bye; exit 0" TERM\necho Ready\nwhile :; do sleep 0.05; done\n```\n\n'
        "```console\n$ bash serve.sh &\nReady\n$ cd sub\n$ python hello.py\nhello\n$ kill %1\n```\n",
        encoding="utf-8",
    )
    page = read_page(path)
    assert [(block.language, block.title) for block in page.blocks] == [
        ("python", "sub/hello.py"),
        ("sh", "serve.sh"),
        ("console", None),
    ]
    PageRun(Page(DOCS / "page.md", page.blocks, ()), tmp_path).run()
