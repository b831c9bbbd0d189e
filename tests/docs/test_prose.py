"""The check of the prose: the rules of style as numbers and words, each finding with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import prose

LONG = " ".join(["word"] * 36) + "."
SHORT = "The agent stores the turn."


def check(tmp_path: Path, text: str, name: str = "page.md") -> prose.Figures:
    path = tmp_path / Path(name).name
    path.write_text(text, encoding="utf-8")
    return prose.check_file(path, name)


def test_a_long_sentence_is_found_with_its_place(tmp_path: Path) -> None:
    figures = check(tmp_path, f"# Title\n\n{SHORT}\n\n- a point\n- {LONG}\n")
    assert (figures.long, figures.sentences) == (1, 3)
    [finding] = figures.findings
    assert finding.startswith("page.md:6: 36 words: word word")


def test_code_links_tables_and_comments_are_no_prose(tmp_path: Path) -> None:
    code = f"```text\n{LONG}\n```\n\n    {LONG}\n\n| {LONG} | |\n|---|---|\n| {LONG} | |\n\n<!-- {LONG} -->\n\n::: a.b\n"
    figures = check(tmp_path, f"{code}\nSee [the page](https://example.org/a/b) about `one two three`.\n")
    assert (figures.long, figures.sentences, figures.mean) == (0, 1, 5.0)


@pytest.mark.parametrize(
    "text", ["Whoever asks gets an answer.", "It says what is stored.", "| it waits meanwhile | |\n|---|---|"]
)
def test_a_vague_turn_is_found_also_in_a_table(tmp_path: Path, text: str) -> None:
    assert check(tmp_path, text).vague == 1


def test_a_page_may_have_a_long_sentence_in_a_hundred_and_readme_none(tmp_path: Path) -> None:
    text = f"{SHORT} " * 99 + LONG  # 2 % would be two of them
    assert check(tmp_path, text).passes("docs/index.md")
    assert not check(tmp_path, text).passes("README.md")
    assert not check(tmp_path, f"{text} {LONG} {LONG}").passes("docs/index.md")


def test_a_page_may_have_twenty_words_a_sentence(tmp_path: Path) -> None:
    sentence = " ".join(["word"] * 20) + ". "
    assert check(tmp_path, sentence * 3).passes("docs/index.md")
    assert not check(tmp_path, sentence * 3 + "One" + " word" * 20 + ".").passes("docs/index.md")


def test_docstrings_and_messages_of_a_module_are_read(tmp_path: Path) -> None:
    source = (
        f'"""Whether it works."""\n\nx = 1\n"""{SHORT}"""\n\n\n'
        f'def f(name: str) -> None:\n    """Do it.\n\n    {LONG}\n    """\n'
        '    raise ValueError(f"somebody else called {name} has it")\n'
    )
    figures = check(tmp_path, source, "module.py")
    assert (figures.openings, figures.long, figures.vague) == (1, 1, 1)
    assert [finding.partition(": ")[0] for finding in figures.findings] == ["module.py:1", "module.py:10", "module.py:12"]


@pytest.mark.parametrize(
    "source",
    [
        'STOPPED = "Stopped; somebody has to start it."',
        'problem = f"{name}: nobody answers there"\nraise ValueError(problem)',
        'def f() -> str:\n    return "see to the database server"',
        'REMEDIES = {404: "the server is not there"}',
        'NOTE = """\nx = 1\n# whoever reads this\n"""',
    ],
)
def test_a_vague_turn_is_found_in_any_text_of_a_module(tmp_path: Path, source: str) -> None:
    assert check(tmp_path, source, "module.py").vague == 1


@pytest.mark.parametrize(
    "source",
    [
        f'WORDS = frozenset("somebody nobody {LONG}".split())',
        f'QUERY = "SELECT somebody FROM people WHERE {LONG}"',
        f'XML = "<body>somebody {LONG}</body>"',
        'PATTERN = r"\\bsomebody( or nobody)?\\s"',
        f'TEMPLATE = """\n{LONG}\n{LONG}\n"""',
    ],
)
def test_words_queries_markup_patterns_and_templates_are_no_prose(tmp_path: Path, source: str) -> None:
    figures = check(tmp_path, source, "module.py")
    assert (figures.vague, figures.long) == (0, 0)


def test_comments_of_a_configuration_are_read(tmp_path: Path) -> None:
    text = f"# {SHORT}\n# Whoever asks\n# gets it.\na:\n  # {LONG}\n  b: '#1'  # nobody needs this key\n"
    figures = check(tmp_path, text, "platform.yaml")
    assert [finding.partition(": ")[0] for finding in figures.findings] == [
        "platform.yaml:1",
        "platform.yaml:5",
        "platform.yaml:6",
    ]


def test_a_file_that_breaks_a_rule_has_a_line_with_its_figures(tmp_path: Path) -> None:
    [head, finding] = prose.problems("page.md", check(tmp_path, f"{SHORT} {LONG}"))
    assert head.startswith("page.md: 20.5 words a sentence, 50.0% with more than 35")
    assert finding.startswith("page.md:1: 36 words")
    assert prose.problems("page.md", check(tmp_path, SHORT)) == []


@pytest.mark.release
def test_the_project_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([]) == 0, capsys.readouterr().out
