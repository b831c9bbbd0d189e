"""Scenarios of recordings: what is typed into a terminal, and what has to appear there.

A scenario is a YAML file. `examples/NAME/recording.yaml` becomes `recording.svg` beside it, and
`tests/docs/pictures/scenarios/NAME.yaml` becomes `docs/assets/NAME.svg`.

    title: What the picture shows, in one line      # the name of the picture for screen readers
    columns: 90             # 80 to 130
    rows: 24
    shows: [agents/notes.py, spade_coreason/cli]    # what the picture shows; default: the folder of the scenario
    directory: .            # where the session starts: a copy of this folder of the repository; default: that of the scenario
    environment: {NAME: value}
    still: true             # the last screen, which does not move
    steps:
      - hidden: true        # takes no time in the picture; what a shell shows until then is cleared
        type: spade-coreason up -c platform.yaml >up.log 2>&1 & until grep -q Ready up.log; do sleep 0.1; done
      - type: spade-coreason chat desk      # key by key into a shell, then Enter
        wait: "desk ▸"                      # a text, or texts in this order, that appear after Enter
        pause: 2                            # seconds for the reader; default 1
        timeout: 120                        # seconds until the texts must have appeared; default 60
      - key: ctrl-d                         # instead of a line: ctrl-c, ctrl-d, ctrl-l, ctrl-o, tab, enter, escape
      - clear: true                         # the shell clears its screen

Without `wait`, a line waits until a program reads the next one: shells and prompt_toolkit both switch bracketed paste on then.
A `wait` with texts sees the output without its control sequences, also the line that was typed if the program draws it again.

The session is a real bash in a real terminal, with the prompt `$ `. HOME is a new directory, and PATH begins with the programs
of the virtual environment. At the end the terminal is closed, and what still runs in it is ended.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator
from yaml import safe_load

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = ROOT / "tests/docs/pictures/scenarios"
ASSETS = ROOT / "docs/assets"

KEYS = {"ctrl-c": "\x03", "ctrl-d": "\x04", "ctrl-l": "\x0c", "ctrl-o": "\x0f", "enter": "\r", "escape": "\x1b", "tab": "\t"}


class Step(BaseModel):
    """One line, key or clearing, and what to wait for after it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str | None = None
    copies: str | None = None
    """A regular expression: what fits it on the screen is typed, such as a code that is another one each time."""
    key: str | None = None
    clear: bool = False
    wait: str | tuple[str, ...] = ()
    pause: float = 1.0
    timeout: float = 60.0
    hidden: bool = False

    @model_validator(mode="after")
    def _check(self) -> Step:
        if sum((self.type is not None, self.copies is not None, self.key is not None, self.clear)) != 1:
            raise ValueError("a step has one of type, copies, key and clear")
        if self.key is not None and self.key not in KEYS:
            raise ValueError(f"no key {self.key!r}; there are {', '.join(KEYS)}")
        return self

    def fill(self, shown: str) -> str:
        """Return what is typed: the last text that was shown and fits `copies`, or `type` as it is."""
        return self.type or "" if self.copies is None else re.findall(self.copies, shown)[-1]

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that must appear, in this order."""
        return (self.wait,) if isinstance(self.wait, str) else self.wait


class Session(BaseModel):
    """The content of a scenario file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    columns: int = Field(90, ge=80, le=130)
    rows: int = Field(24, ge=10, le=50)
    shows: tuple[str, ...] = ()
    directory: str | None = None
    environment: dict[str, str] = {}
    still: bool = False
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Scenario:
    """A scenario file of a repository."""

    file: Path
    session: Session
    root: Path = ROOT

    @property
    def picture(self) -> Path:
        """The file of the picture."""
        return ASSETS / f"{self.file.stem}.svg" if self.file.parent == SCENARIOS else self.file.with_suffix(".svg")

    @property
    def directory(self) -> Path:
        """The folder whose copy the session starts in."""
        given = self.session.directory
        return self.file.parent if given is None else (self.root / given).resolve()

    @property
    def shows(self) -> list[str]:
        """The files and folders that the picture shows, from the root of the repository."""
        shown = self.session.shows or (self.file.parent.relative_to(self.root).as_posix(),)
        return sorted({*shown, self.file.relative_to(self.root).as_posix()})


def read_scenario(file: Path) -> Scenario:
    """Read a scenario file."""
    file = file.resolve()
    return Scenario(file, Session.model_validate(safe_load(file.read_text(encoding="utf-8"))))


def find_scenarios() -> list[Scenario]:
    """Read all scenarios of the repository."""
    files = [*SCENARIOS.glob("*.yaml"), *ROOT.glob("examples/*/recording.yaml")]
    return [read_scenario(file) for file in sorted(files)]
