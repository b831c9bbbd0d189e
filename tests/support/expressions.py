"""The regular expressions of the package, found in its source, and texts that could make each of them slow."""

from __future__ import annotations

import ast
import math
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import spade_coreason

PACKAGE = Path(spade_coreason.__file__).parent
_METHODS: dict[str, Callable[[re.Pattern[Any], Any], object]] = {
    "match": lambda pattern, text: pattern.match(text),
    "fullmatch": lambda pattern, text: pattern.fullmatch(text),
    "search": lambda pattern, text: pattern.search(text),
    "sub": lambda pattern, text: pattern.sub(text[:0], text),
    "subn": lambda pattern, text: pattern.subn(text[:0], text),
    "split": lambda pattern, text: pattern.split(text),
    "findall": lambda pattern, text: pattern.findall(text),
    "finditer": lambda pattern, text: deque(pattern.finditer(text), 0),
}
_FUNCTIONS = {f"re.{name}" for name in ("compile", *_METHODS)}
_USES = re.compile(rf"import re\b|from re\b|\.({'|'.join(_METHODS)})\b")
"""What stands in a module that has an expression, or uses one. The others are not parsed."""
_FLAGS_POSITION = {"compile": 1, "split": 3, "sub": 4, "subn": 4}
"""The position of the flags among the arguments of a function of `re`; 2 for the others."""
_ANY_METHOD = frozenset({"match", "fullmatch", "search", "sub"})
"""The methods of an expression of which none is found."""

Samples = Mapping[str, Sequence[Mapping[str, object]]]
"""Values of the variables from which expressions are made, by module."""

_parser: Any = import_module("re._parser")
_NO_LIMIT = 16
"""A repetition that may be longer than this has no limit, as far as hostile texts go."""
_CATEGORIES = {"DIGIT": "7", "SPACE": " \n", "WORD": "a_", "NOT_DIGIT": "x ", "NOT_SPACE": "x", "NOT_WORD": "- "}
_BREAKERS = "\x00\x7f!x"
_MAX_ALPHABET = 8
_CHOICES = 3
_MIB = 2**20
_LONG_ENOUGH_S = 0.004
_LONGER = 16
"""The factor of the longer text."""
_MOST_GROWTH, _CLEARLY_LINEAR = 64, 32
_QUICK_CHARACTERS = 2**12
_QUICK_S = 0.0003
_MAX_QUICK_S, _MAX_S = 0.5, 20.0
"""Seconds of CPU after which a text is too slow: in the quick form, and with every length."""
_TRIES = 4
"""How often the longer text has to take too long."""
_BUSY = 4
"""The factor by which a busy machine may take longer: what is too slow is measured once more with it."""


@dataclass(frozen=True)
class Expression:
    """A regular expression of the package, and the methods that call it."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


@dataclass(frozen=True)
class HostileText:
    """A text of any length."""

    before: str
    unit: str
    after: str

    def make(self, characters: int) -> str:
        """Return the text with about that many characters."""
        count = (characters - len(self.before) - len(self.after)) // len(self.unit)
        return self.before + self.unit * max(1, count) + self.after


# Finding


def find_expressions(samples: Samples) -> list[Expression]:
    """Return all expressions of the package, compiled ones and those of direct calls.

    Raises AssertionError for one that is made from variables and has no sample.
    """
    paths = {*PACKAGE.rglob("*.py"), *(PACKAGE / "agents").rglob("*.py")}  # in a checkout a link
    modules = [_read(path, source) for path in sorted(paths) if _USES.search(source := path.read_text(encoding="utf-8"))]
    return [expression for module in modules for expression in _find_in(module, modules, samples)]


@dataclass(frozen=True)
class _Module:
    path: Path
    calls: list[tuple[ast.Call, str, str]]
    """The calls of functions of `re`: with the name of the function, and of the constant that has the result."""
    imported: set[str]
    methods: set[tuple[str, str]]
    """The names of objects and of their methods that it uses."""

    def methods_of(self, name: str) -> set[str]:
        """Return the methods of the object `name`; without a name, those of all objects but texts."""
        return {method for user, method in self.methods if user == name or (not name and method not in ("split", "match"))}


def _read(path: Path, source: str) -> _Module:
    module, names = _Module(path, [], set(), set()), dict[ast.AST, str]()
    for node in ast.walk(ast.parse(source)):  # an assignment comes before its value
        if isinstance(node, ast.Import):
            assert all(alias.asname is None for alias in node.names if alias.name == "re"), f"{path}: import re as it is"
        elif isinstance(node, ast.ImportFrom):
            assert node.module != "re", f"{path}: import re as a module"
            module.imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.value] = node.targets[0].id
        elif isinstance(node, ast.Attribute) and node.attr in _METHODS and ast.unparse(node.value) != "re":
            module.methods.add((ast.unparse(node.value), node.attr))
        elif isinstance(node, ast.Call) and (function := ast.unparse(node.func)) in _FUNCTIONS:
            module.calls.append((node, function.removeprefix("re."), names.get(node, "")))
    return module


def _find_in(module: _Module, modules: Sequence[_Module], samples: Samples) -> Iterator[Expression]:
    for call, function, name in module.calls:
        users = [other for other in modules if other is module or name in other.imported]  # "" is imported by none
        methods = {method for other in users for method in other.methods_of(name)} or _ANY_METHOD
        for pattern in _evaluate(call, function, module.path, samples):
            place = f"{module.path.relative_to(PACKAGE)}:{call.lineno}"
            yield Expression(place, pattern, frozenset(methods if function == "compile" else {function}))


def _evaluate(call: ast.Call, function: str, path: Path, samples: Samples) -> Iterator[re.Pattern[Any]]:
    position = _FLAGS_POSITION.get(function, 2)
    flags = next((keyword.value for keyword in call.keywords if keyword.arg == "flags"), None)
    if flags is None and len(call.args) > position:
        flags = call.args[position]
    place = path.relative_to(PACKAGE)
    module = vars(import_module(".".join((PACKAGE.name, *place.with_suffix("").parts))))
    sources = ast.unparse(call.args[0]), "0" if flags is None else ast.unparse(flags)
    problem = None
    for sample in ({}, *samples.get(str(place), ())):
        try:
            pattern, flag = (eval(source, {**module, **sample}) for source in sources)
        except NameError as error:
            problem = error
            continue
        problem = None
        yield re.compile(pattern, flag)
        if not sample:
            return  # it has no variables
    if problem is not None:
        raise AssertionError(f"{place}:{call.lineno}: {sources[0]} needs a sample of its variables: {problem}")


# Hostile texts


def hostile_texts(pattern: re.Pattern[Any]) -> list[HostileText]:
    """Return texts made of the literals and classes of an expression, each repeated, alone and in their order."""
    text = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    tree = _parser.parse(text, pattern.flags & ~re.DEBUG & ~(re.UNICODE if isinstance(pattern.pattern, bytes) else 0))
    alphabet = list(dict.fromkeys(_alphabet(tree)))[:_MAX_ALPHABET]
    runs = list(dict.fromkeys(_runs(tree, "", "")))
    befores = list(dict.fromkeys(["", *(before for before, _ in runs)]))
    after = next((one for one in _BREAKERS if one not in alphabet), "")
    units = {("", unit) for _, unit in runs} | {("", before + unit) for before, unit in runs} | set(runs)
    units |= {(before, one) for before in befores for one in alphabet}
    units |= {("", one + other) for one in alphabet for other in alphabet}
    return [HostileText(before, unit, end) for before, unit in sorted(units) if unit for end in ("", after)]


def _chunks(nodes: Any) -> list[list[Any]]:
    """Return the nodes of a sequence, with literals that follow each other as one."""
    chunks: list[list[Any]] = []
    for node in nodes:
        if chunks and str(node[0]) == str(chunks[-1][-1][0]) == "LITERAL":
            chunks[-1].append(node)
        else:
            chunks.append([node])
    return chunks


def _runs(nodes: Any, before: str, _: str) -> Iterator[tuple[str, str]]:
    """Yield samples of all parts of a sequence and of those in it, with what stands before each."""
    chunks = _chunks(nodes)
    for begin, chunk in enumerate(chunks):
        head = before + _sample([node for part in chunks[:begin] for node in part], 1, 0)
        for end in range(begin + 1, len(chunks) + 1):
            part = [node for piece in chunks[begin:end] for node in piece]
            for times in (0, 1):
                for choice in range(_CHOICES):
                    yield head, _sample(part, times, choice)
        for child in _children(chunk[0]):
            yield from _runs(child, head, "")


def _children(node: Any) -> list[Any]:
    """Return the sequences in a node."""
    kind, value = str(node[0]), node[1]
    if kind == "BRANCH":
        return list(value[1])
    if kind == "ATOMIC_GROUP":
        return [value]
    if kind in ("SUBPATTERN", "MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT", "ASSERT", "ASSERT_NOT"):
        return [value[-1]]
    return []


def _sample(nodes: Any, times: int, choice: int) -> str:
    """Return a text that a sequence matches, with each repetition at least so often, and one character of each class."""
    text = ""
    for node in nodes:
        kind, value = str(node[0]), node[1]
        if "REPEAT" in kind:
            text += _sample(value[2], times, choice) * min(max(value[0], times), value[1], _NO_LIMIT)
        elif kind == "BRANCH":
            text += _sample(value[1][choice % len(value[1])], times, choice)
        elif kind in ("SUBPATTERN", "ATOMIC_GROUP"):
            text += _sample(_children(node)[0], times, choice)
        elif characters := _characters(node):
            text += characters[choice % len(characters)]
    return text


def _alphabet(nodes: Any) -> Iterator[str]:
    for node in nodes:
        yield from _characters(node)
        for child in _children(node):
            yield from _alphabet(child)


def _characters(node: Any) -> str:
    """Return some characters that a node matches."""
    kind, value = str(node[0]), node[1]
    if kind == "LITERAL":
        return chr(value)
    if kind == "ANY":
        return "x"
    if kind == "NOT_LITERAL":
        return next(one for one in "x y" if ord(one) != value)
    if kind != "IN":
        return ""
    is_negated = str(value[0][0]) == "NEGATE"
    if is_negated:
        return "".join(one for one in 'x a7_-"\\\n<\u00e9' if not any(_contains(part, one) for part in value[1:]))[:_CHOICES]
    found = "".join(_characters_of_part(part) for part in value)
    return found[:2] + found[len(found) // 2 :][:2] + found[-1:]


def _characters_of_part(part: Any) -> str:
    kind, value = str(part[0]), part[1]
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return chr(value[0]) + chr(value[1])
    return _CATEGORIES[str(value).removeprefix("CATEGORY_")]


def _contains(part: Any, character: str) -> bool:
    kind, value = str(part[0]), part[1]
    if kind == "LITERAL":
        return bool(ord(character) == value)
    if kind == "RANGE":
        return bool(value[0] <= ord(character) <= value[1])
    category = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w", "NOT_DIGIT": r"\D", "NOT_SPACE": r"\S", "NOT_WORD": r"\W"}
    return re.match(category[str(value).removeprefix("CATEGORY_")], character) is not None


# Measuring


class _TooSlowError(Exception):
    pass


@contextmanager
def _limit_cpu(seconds: float) -> Iterator[None]:
    """Raise _TooSlowError in the middle of a search after so many seconds of CPU. Call it in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooSlowError

    former = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


def describe_excess(expression: Expression, *, every_length: bool = False, tries: int = _TRIES) -> str | None:
    """Return the text for which a method of an expression takes more than linear time; None if there is none.

    `tries` is how often it has to take more. One is enough for an expression that is known to take more.
    """
    for text in hostile_texts(expression.pattern):
        for method in sorted(expression.methods):
            if (found := measure(partial(_call, expression.pattern, method), text, every_length, tries)) is not None:
                return f"{expression.place}: {expression.pattern.pattern!r:.120}.{method}: {found}"
    return None


def _call(pattern: re.Pattern[Any], method: str, text: str) -> object:
    return _METHODS[method](pattern, text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text)


def measure(
    function: Callable[[str], object], text: HostileText, every_length: bool = False, tries: int = _TRIES
) -> str | None:
    """Return the times of a function with which sixteen times the length takes more than 64 times the CPU; None otherwise.

    Linear time takes sixteen times as long, quadratic 256 times: on a busy machine, many measurements must all be wrong by four
    before the answer is. A time is the best of ten, at a length that takes 4 ms, up to 1 MiB, and that of the longer text the
    best of `tries`. Without `every_length`, a text is left out that takes less than 0.3 ms at 4 KiB, or at most 32 times as
    long as a sixteenth of it.
    """

    def run(characters: int, times: int, good_enough_s: float = 0.0) -> float:
        subject, best = text.make(characters), math.inf
        for _ in range(times):
            begin = time.thread_time()  # that of the process counts in ticks of milliseconds while its limit is set
            function(subject)
            best = min(best, time.thread_time() - begin)
            if best < good_enough_s:
                break
        return best

    characters, limit_s = _QUICK_CHARACTERS, _MAX_S if every_length else _MAX_QUICK_S
    for allowed_s in (limit_s, _BUSY * limit_s)[:tries]:
        try:
            with _limit_cpu(allowed_s):
                if not every_length:
                    taken = run(characters, 2, _QUICK_S)
                    if taken < _QUICK_S or taken <= _CLEARLY_LINEAR * run(characters // _LONGER, 20):
                        return None
                characters = 16
                while run(characters, 2, _LONG_ENOUGH_S) < _LONG_ENOUGH_S:
                    if characters >= _MIB:
                        return None
                    characters *= 2
                # A quadratic one may take four times as long as it has to; the last lengths below take that out again.
                shorter = (characters * 5 // 8, characters * 3 // 4)
                characters = next((one for one in shorter if run(one, 2, _LONG_ENOUGH_S) >= _LONG_ENOUGH_S), characters)
                short = run(characters, 10)
        except _TooSlowError:
            continue
        for _ in range(tries):
            with suppress(_TooSlowError), _limit_cpu(_MOST_GROWTH * short):
                run(_LONGER * characters, 1)
                return None
        return f"{text}: {characters:,} characters take {short:.4f} s, sixteen times as many over {_MOST_GROWTH * short:.2f} s"
    return f"{text}: {characters:,} characters take more than {allowed_s:g} s"
