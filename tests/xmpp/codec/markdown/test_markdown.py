"""Markdown as a person reads it in a chat."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from spade_coreason.xmpp.codec.encoders.chat import style_markdown
from spade_coreason.xmpp.codec.markdown.tables import display_width
from tests.support.profiling import count_calls, measure_cpu_s

PLAIN = [
    "",
    " \n ",
    "\n\n a\n",
    'Hello, world! (Really?) It\'s 5 > 3 & 2 < 4; "quoted".',
    "2 * 3 * 4",
    "2*3*4 and 2**3**4 and x**y**z",
    "E = m*c**2*d",
    "snake_case_name, _private, __init__, __init__.py, obj.__dict__",
    "   leading blanks\n      and more\n\n    but no code",
    "\ttab",
    "1) first\n2) second",
    "1986. A great year",
    "C# and F# #",
    "#hashtag\n# ",
    "https://example.org/_foo_bar_/__a__?b=*c*&d=~~e~~",
    "  *   *\n *** \n*   *",
    "*",
    "**",
    "****",
    "a *b",
    "* a * b",
    "<tag> <b>bold</b> <!-- no --> &unknown; &; a&b;c &amp",
    "&#27;[31m &#0; &#xD800; &#x202e; &#10; &NewLine; &#8297;",
    "料金（*1）は税込（*2）、手数料（**1）は別（**2）です",
    "縦*横*高さ、底辺*高さ*0.5",
    "**「未完",
    r"¯\_(ツ)_/¯",
    r"C:\Users\.ssh\_x \\host\share \(a+b\) 5 \* 3",
    "a\\\nb  \nc",
    "\x00\x1b[1mbold\x1b[0m \ufffe\udc80and *",
    "a\r\nb * c\rd",
    "Name  Value\n----  -----\na     1",
    "Name  Value\n-----------\n\na     1",
    "Results\n=======\n3 passed",
    "-----\na\n-----",
    "~~~~~\nTitle\n~~~~~",
    " id | name\n----+-----\n  1 | Bob",
    "+---+\n| a |\n+---+",
    "a | b\nc | d",
    "*.py,*.txt and **/*.md",
    "f(*args, **kwargs); int *a, *b",
    "*/5 * * * *",
    ".*foo.*",
    "list[index](argument) d[k](a.b) [x](y) [x]()",
    "[ ] to do\n[x] done",
    "[a]: http://example.org\n[a] and [a][b]",
    "- a\n- b\nThat is all.",
    "  - x\n  - y",
    "-  two blanks\n+ plus\n* star",
    "- a\n  b\n- c\n\n  d\n",
    "> quoted\nmy reply",
    ">:( and >_<",
    "Alice <alice@example.org>, std::vector<std::vector>",
    "```\nnever closed",
    "`a\nb` and ` and ``",
    "Price 5* and 4* each",
    "~5 to ~6, ~~",
    "\N{RIGHT-TO-LEFT MARK}שלום * עולם_א_ב",
    "\N{ROCKET}_\N{ROCKET} *\N{FAMILY}",
    "The dash —\n---\nand below",
    "---\ntitle: x\n---",
]


@pytest.mark.parametrize("text", PLAIN, ids=ascii)
def test_text_without_markdown_is_unchanged(text: str) -> None:
    assert style_markdown(text) == text


@pytest.mark.parametrize("text", PLAIN, ids=ascii)
def test_text_without_markdown_is_unchanged_beside_markdown(text: str) -> None:
    if "never closed" not in text:
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        assert style_markdown(f"**x**\n\n{text}\n\n*y*") == f"*x*\n\n{lines}\n\n_y_"


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("It is **sunny**.", "It is *sunny*."),
        ("It is __very sunny__.", "It is *very sunny*."),
        ("*so* _so_", "_so_ _so_"),
        ("***both***", "_*both*_"),
        ("**a *b* c**", "*a _b_ c*"),
        ("~~gone~~", "~gone~"),
        ("`**x**` and ``a`b``", "`**x**` and ``a`b``"),
        ("**`x`**", "*`x`*"),
        ("(**x**), „*y*“", "(*x*), „_y_“"),
        ("**Umlaut ü:** x", "*Umlaut ü:* x"),
        ("**two\nlines**", "*two*\n*lines*"),
        ("**the * thing**", "*the * thing*"),
        ("line\nbreaks **stay**", "line\nbreaks *stay*"),
        (r"\*not\* **so**", r"\*not\* *so*"),
    ],
)
def test_spans_have_the_marks_of_message_styling(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("**「重要」**です", "*「重要」*です"),
        ("**注意：**请先登录", "*注意：*请先登录"),
        ("**Note:**请", "*Note:*请"),
        ('이것은 **"중요"**입니다', '이것은 *"중요"*입니다'),
        ("~~「削除」~~です", "~「削除」~です"),
        ("**สำคัญ!**มาก", "*สำคัญ!*มาก"),
        ("- **要点：**说明", "- *要点：*说明"),
        ("**一**、**二。**三", "*一*、二。三"),
        # A mark within a line of text would be shown as it is, because nothing separates it (XEP-0393).
        ("これは**「重要」**です", "これは「重要」です"),
        ("他说**“好”**。", "他说“好”。"),
        ("「**重要**」です", "「重要」です"),
        ("请按**A**键，第**3**章", "请按A键，第3章"),
        ("# **「題」**の話", "*「題」の話*"),
    ],
)
def test_bold_text_ends_beside_the_punctuation_of_scripts_without_spaces(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("AT&amp;T &lt;b&gt; &quot;q&quot; it&#39;s &#x27;x&#X27;", "AT&T <b> \"q\" it's 'x'"),
        ("5&nbsp;km &copy; &hellip; &#128640;", "5\N{NO-BREAK SPACE}km © … \N{ROCKET}"),
        ("`&amp;` &amp; ``&lt;``", "`&amp;` & `&lt;`"),
        ("```\n&amp;\n```\n&amp;", "```\n&amp;\n```\n&"),
        ("**a &amp; b**", "*a & b*"),
        ("# Q&amp;A", "*Q&A*"),
        ("> 1 &lt; 2", "> 1 < 2"),
        ("- R&amp;D", "- R&D"),
        ("|a|b|\n|-|-|\n|&lt;|x&amp;y|", "```\na  b\n<  x&y\n```"),
        ("https://example.org/?a=1&amp;b=2", "https://example.org/?a=1&b=2"),
        ("&lt;https://example.org/&gt;", "<https://example.org/>"),
        ("<https://example.org/?a=1&amp;b=2>", "https://example.org/?a=1&b=2"),
        ("[a &amp; b](https://example.org/?a=1&amp;b=2)", "a & b (https://example.org/?a=1&b=2)"),
        (r"\&amp;", r"\&amp;"),
    ],
)
def test_an_entity_becomes_its_character_except_in_code(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("un**believ**able", "unbelievable"),
        ("**bold**s", "bolds"),
        ("你好**世界**你好", "你好世界你好"),
        ("*the snake_case name*", "the snake_case name"),
        (r"**a 5\* hotel**", r"a 5\* hotel"),
        ("# On **this** day", "*On this day*"),
        ("# 5* hotels", "5* hotels"),
    ],
)
def test_a_mark_that_would_be_ambiguous_is_left_out(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("[the docs](https://example.org/a_b_)", "the docs (https://example.org/a_b_)"),
        ("[**the** docs](README.md)", "*the* docs (README.md)"),
        ('[the docs](/a "Read me")', 'the docs (/a "Read me")'),
        ("[https://example.org](https://example.org)", "https://example.org"),
        ("[](https://example.org)", "https://example.org"),
        ("<https://example.org/?a=b&c>", "https://example.org/?a=b&c"),
        ("[a@example.org](mailto:a@example.org)", "a@example.org"),
        ("![a map](https://example.org/map.png)", "a map (https://example.org/map.png)"),
        ("![](map.png)", "map.png"),
        ("[![map](map.png)](map.html)", "map (map.png) (map.html)"),
        ("**[docs](a.md)**", "*docs (a.md)*"),
        ("[x](javascript:alert(1)) *y*", "[x](javascript:alert(1)) _y_"),
        ("[straße](https://example.org/straße?ü)", "straße (https://example.org/straße?ü)"),
    ],
)
def test_a_link_shows_where_it_leads(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("# Weather", "*Weather*"),
        ("### Weather in `C` _now_ ###\nSunny.", "*Weather in `C` _now_*\nSunny."),
        ("Weather\n=======\n\nSunny.", "*Weather*\n\nSunny."),
        ("a\n\n---\n\nb\n\n* * *", "a\n\n———\n\nb\n\n———"),
    ],
)
def test_headings_and_rules_are_lines(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("```python\nx = **1**\n\n  y\n```\n*z*", "```\nx = **1**\n\n  y\n```\n_z_"),
        ("~~~\nx\n~~~", "```\nx\n```"),
        ("````\n```\nx\n```\n````", "```\n ```\nx\n ```\n```"),
        ("```python title=x\ny\n```", "```python title=x\ny\n```"),
        ("1. do:\n   ```sh\n   ls\n   ```\n   *so*", "1. do:\n```\nls\n```\n   _so_"),
        ("- ```\n  x\n  ```", "-\n```\nx\n```"),
        ("> ```js\n> x\n> ```", "> ```\n> x\n> ```"),
    ],
)
def test_code_is_preformatted_at_the_margin_and_without_its_language(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("> **a**\n> b\n>\n>> *c*", "> *a*\n> b\n>\n> > _c_"),
        ("> - **a**\n>   b", "> - *a*\n>   b"),
        ("> **a**\nme", "> *a*\nme"),
        ("- > **a**\n  > b", "- > *a*\n  > b"),
    ],
)
def test_quotes_are_quotes(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        ("- **a**\n- b\n\n- c", "- *a*\n- b\n\n- c"),
        ("* *a*\n+ b", "* _a_\n+ b"),
        ("3. **a**\n4. b\n07. c", "3. *a*\n4. b\n07. c"),
        ("- a\n    - b\n        - *c*\n- d", "- a\n  - b\n    - _c_\n- d"),
        ("1. a\n   - *b*\n\n     c\n2. d", "1. a\n  - _b_\n\n    c\n2. d"),
        ("10. *a*\n    b", "10. _a_\n    b"),
        ("- - **a**\n  - b", "- - *a*\n  - b"),
        ("- **a**\nb", "- *a*\nb"),
        ("- [ ] **a**\n- [x] b", "- [ ] *a*\n- [x] b"),
        ("-\n- **a**", "-\n- *a*"),
    ],
)
def test_lists_keep_their_marks_and_nest_by_two_blanks(markdown: str, text: str) -> None:
    assert style_markdown(markdown) == text


def test_a_table_is_aligned_and_has_no_marks() -> None:
    table = "| city | °C | sky |\n|:--|--:|:-:|\n| **東京** | 7 | `a\\|b` |\n| [Rom](r.it) | 21 | x | more |\n| x |\nAnd *so*."
    assert style_markdown(table).splitlines() == [
        "```",
        "city        °C  sky",
        "東京         7  a|b",
        "Rom (r.it)  21   x   more",
        "x",
        "```",
        "And _so_.",
    ]


def test_a_table_follows_its_text() -> None:
    assert style_markdown("Now:\n|a|b|\n|-|-|\n|1|2|") == "Now:\n```\na  b\n1  2\n```"


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("東京", 4), ("é", 1), ("\N{ROCKET}", 2), ("", 0)])
def test_the_display_width_counts_terminal_columns(text: str, columns: int) -> None:
    assert display_width(text) == columns


# Nothing harms

MARKS = [*"*_~`#>-+|[]()!<>:=\\\"'.1&\n\t ", "\n\n", "**", "~~", "```", "\n```\n", "](", "://", "\n- ", "\n  - ", "\n> ", "|-|"]
WORDS = ["a", "Wort", "x1", "ü", "世界", "שלום", "\N{ROCKET}", "\x00", "\ud800", "\r\n", "\u2028", " ", "  ", "\n"]


def count_word_characters(text: str) -> Counter[str]:
    return Counter(character for character in text if character.isalnum())


@pytest.mark.parametrize("seed", range(20))
def test_no_text_raises_or_loses_a_word_character(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        pieces = rng.choices(MARKS, k=rng.randrange(40)) + rng.choices(WORDS, k=rng.randrange(40))
        rng.shuffle(pieces)
        text = "".join(pieces)
        lost = count_word_characters(text) - count_word_characters(style_markdown(text))
        if "```" in text or "~~~" in text:
            lost -= count_word_characters(
                "".join(line for line in text.splitlines() if "```" in line or "~~~" in line)
            )  # languages
        assert not lost, text


@pytest.mark.parametrize("seed", range(5))
def test_plain_prose_is_unchanged(seed: int) -> None:
    rng = random.Random(seed)
    pieces = ["word", "Ünd", "世界", "3", "4.5", "a_b_c", "x-y", "it's", "(so)", '"so"', "e.g.,", "5%", "a/b", "* ", "- ", "– "]
    ends = [" ", " ", " ", ", ", ". ", "\n", "\n\n", "! ", "? ", ": ", " \N{ROCKET} "]
    for _ in range(200):
        text = "".join(rng.choice(pieces) + rng.choice(ends) for _ in range(rng.randrange(60)))
        assert style_markdown(text) == text


@cache
def measure_simple_text() -> tuple[float, float]:
    """Return the calls and the CPU seconds for each letter of a text with simple marks."""
    text = "Just *words* and _words_, `code`.\n\n" * 1_000
    with count_calls() as calls:
        style_markdown(text)
    return calls.total() / len(text), measure_cpu_s(lambda: style_markdown(text)) / len(text)


def build_hard_texts(size: int) -> list[str]:
    """Return texts that a parser may read in square time, each of some `size` marks."""
    return [
        *(mark * size for mark in ">[*_~`|-+#!(<\\="),
        *(mark * size for mark in ("> ", "- ", "1. ", "![", "[a](", "*a ", "**a *b ", "[[", "> - ", "://", "a\n", "- a\n")),
        "[" * size + "]" * size,
        "[" * (size * 2 // 5) + "](u.v)" * (size * 2 // 5),
        "![a" * (size * 2 // 5) + "](u.v)" * (size * 2 // 5),
        "*a " * (size // 2) + "b*" * (size // 2),
        "**" * size + "x" + "**" * size,
        " ".join("`" * count for count in range(size * 3 // 100)),
        "\n".join("  " * depth + "- a" for depth in range(size // 50)),
        "|a" * (size * 3 // 10) + "|\n" + "|-" * (size * 3 // 10) + "|\n" + "|\n" * size,
        f"|a|b|\n|-|-|\n|{'x' * (size * 4)}|b|\n" + "|a|b|\n" * (size // 2),
        f"a**{'1' * (size * 9)} 1**b",
        f"a|b\n|-{' ' * (size * 9)}x",
    ]


@pytest.mark.parametrize(
    "text",
    [*build_hard_texts(2_500), *(pytest.param(text, marks=pytest.mark.release) for text in build_hard_texts(10_000))],
    ids=lambda text: ascii(text[:8]),
)
def test_no_text_takes_long_or_grows_much(text: str) -> None:
    control_calls, control_cpu_s = measure_simple_text()  # for each letter; the worst of these texts takes some nine times that
    with count_calls() as calls:
        shown = style_markdown(text)
    assert calls.total() < 50 * control_calls * len(text)
    assert measure_cpu_s(lambda: style_markdown(text), 1) < 50 * control_cpu_s * len(text)
    assert not count_word_characters(text) - count_word_characters(shown)
    assert len(shown) < 30 * len(text)


@pytest.mark.parametrize("text", ["Just *words* and _words_.\n" * 200_000, "word " * 1_000_000, "[" * 5_000_000])
def test_a_very_long_text_stays_as_it_is(text: str) -> None:
    with count_calls() as calls:
        assert style_markdown(text) == text
    assert calls.total() < 20
    assert measure_cpu_s(lambda: style_markdown(text)) < 10 * measure_cpu_s(lambda: list(text))  # it looks at each letter once


def test_text_without_markdown_loads_no_parser() -> None:
    program = (
        "import sys; from spade_coreason.xmpp.codec.encoders.chat import style_markdown; style_markdown('Sunny, 21 °C.');"
        "print(*{'markdown_it', 'wcwidth'} & set(sys.modules))"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == ""
