"""Record a scenario with asciinema, and draw it with svg-term."""

from __future__ import annotations

import getpass
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from pathlib import Path
from shlex import join
from typing import Any

from .play import HIDE, SHOW
from .project import list_files
from .scenario import ROOT, Scenario

SVG_TERM = ROOT / "build/pictures/node_modules/.bin/svg-term"
LIMIT_BYTES = 1_000_000
LONGEST_WAIT_S = 1.2
"""Waits longer than this are shortened."""
END_S = 4.0
"""The time of the last screen. The picture begins with it."""

_FRAME_S = 0.03


class RecordingError(Exception):
    """A recording that failed; it tells why, and what to do."""


@dataclass(frozen=True)
class Event:
    """What appeared on the terminal, and when."""

    at_s: float
    output: str


def record(scenario: Scenario) -> Path:
    """Play a scenario, draw its picture, and return the file of the picture."""
    for program, path in (("asciinema", shutil.which("asciinema")), ("svg-term", shutil.which(SVG_TERM))):
        if path is None:
            raise RecordingError(f"{program} is missing; `make pictures` installs it")
    with tempfile.TemporaryDirectory(prefix="recording-") as temporary:
        place = Path(temporary)
        home, cast = place / "home", place / "recording.cast"
        home.mkdir()
        events = _play(scenario, _copy_project(scenario, place), home, cast)
        session = scenario.session
        _check_privacy("".join(event.output for event in events), place)
        header = {"version": 2, "width": session.columns, "height": session.rows}
        lines: list[Any] = [header, *([event.at_s, "o", event.output] for event in events)]
        cast.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        drawn = place / "recording.svg"
        at_end = ["--at", str(int(events[-1].at_s * 1000))] if session.still else []
        command = [str(SVG_TERM), "--in", str(cast), "--out", str(drawn), "--window", "--no-cursor", "--no-optimize", *at_end]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode or not drawn.exists():
            raise RecordingError(f"svg-term: {done.stderr or done.stdout}")
        svg = _improve(drawn.read_text(encoding="utf-8"), session.title)
    if len(svg.encode()) > LIMIT_BYTES:
        raise RecordingError(f"{scenario.picture.name} has {len(svg.encode()):,} bytes; make it shorter")
    scenario.picture.write_text(svg, encoding="utf-8")
    return scenario.picture


def _copy_project(scenario: Scenario, place: Path) -> Path:
    """Copy the folder of the session, as `git` knows it. The root of the repository gets its virtual environment too."""
    source = scenario.directory
    copy = place / ("spade_coreason" if source == ROOT else source.name)
    for file in list_files(ROOT, [source.relative_to(ROOT).as_posix()]):
        target = copy / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target, follow_symlinks=False)
    if source == ROOT:
        (copy / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return copy


def _play(scenario: Scenario, directory: Path, home: Path, cast: Path) -> list[Event]:
    log = cast.with_suffix(".log")
    log.touch()
    environment = {
        name: text for name, text in os.environ.items() if not name.startswith(("SPADE_COREASON_", "OPENAI_", "COLORFGBG"))
    }
    environment |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "ASCIINEMA_CONFIG_HOME": str(home / ".asciinema")}
    environment["PYTHONPATH"] = str(ROOT)
    player = [sys.executable, "-m", "tests.docs.pictures.play", str(scenario.file), str(directory), str(home), str(log)]
    size = ["--cols", str(scenario.session.columns), "--rows", str(scenario.session.rows)]
    asciinema = subprocess.run(
        ["asciinema", "rec", "--quiet", *size, "--command", join(player), str(cast)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    if asciinema.returncode or not cast.exists():
        raise RecordingError(f"asciinema: {asciinema.stderr}")
    if reason := log.read_text(encoding="utf-8"):
        raise RecordingError(f"{scenario.file.relative_to(ROOT)}: {reason}")
    lines = map(json.loads, cast.read_text(encoding="utf-8").splitlines()[1:])
    return edit([Event(at_s, output) for at_s, kind, output in lines if kind == "o"])


def edit(events: list[Event]) -> list[Event]:
    """Take the time out of hidden parts and long waits, join what appears at once, and hold the end for a while."""
    edited: list[Event] = []
    now_s = before_s = 0.0
    is_hidden = False
    for event in events:
        if not is_hidden:
            now_s += min(event.at_s - before_s, LONGEST_WAIT_S)
        before_s = event.at_s
        is_hidden = _is_hidden_after(event.output, is_hidden)
        output = event.output.replace(HIDE, "").replace(SHOW, "")
        if edited and now_s - edited[-1].at_s < _FRAME_S:
            edited[-1] = Event(edited[-1].at_s, edited[-1].output + output)
        else:
            edited.append(Event(round(now_s, 3), output))
    return [*edited, Event(round(now_s + END_S, 3), "\x1b[?25l")]


def _is_hidden_after(output: str, is_hidden: bool) -> bool:
    hide, show = output.rfind(HIDE), output.rfind(SHOW)
    return is_hidden if hide == show else hide > show


def _check_privacy(output: str, place: Path) -> None:
    """Refuse a recording that names this machine."""
    private = {socket.gethostname(), str(ROOT), str(place), str(Path.home()), str(Path(sys.prefix))}
    user = getpass.getuser()
    private |= {f"{user}@", f"/{user}/"}
    for text in private - {"/", "localhost"}:
        if text in output:
            raise RecordingError(f"the recording shows {text!r}, which belongs to this machine")


def _improve(svg: str, title: str) -> str:
    """Give the picture a name for screen readers, let it shrink where a page is narrow, and begin with its last screen."""
    head, angle, rest = svg.partition(">")
    sizes = dict(re.findall(r'\b(width|height)="([\d.]+)"', head))
    view = f'viewBox="0 0 {sizes["width"]} {sizes["height"]}"'
    return begin_at_the_end(f'{head} {view} role="img" xml:space="preserve"{angle}<title>{escape(title)}</title>{rest}\n')


def begin_at_the_end(svg: str) -> str:
    """Show the last screen first, and nothing else to people who want less motion. A picture without motion stays as it is."""
    animation = re.search(r"(\.\w+)\{animation-duration:([\d.]+)s;", svg)
    if animation is None:
        return svg
    name, duration_s = animation[1], float(animation[2])
    screens = re.findall(r"([\d.]+)%\{transform:(translateX\(-[\d.]+px\))\}", svg[animation.start() : svg.index("</style>")])
    # A screen is shown until the next one begins. The last one, at 100 per cent, looks like the one before.
    seen_from_s = math.ceil(float(screens[-2][0]) * duration_s * 10) / 1000
    begin = f"animation-delay:-{seen_from_s:g}s;transform:{screens[-1][1]};"
    still = f"@media (prefers-reduced-motion:reduce){{{name}{{animation:none}}}}"
    animated = f"{name}{{{begin}{svg[animation.start() + len(name) + 1 :]}"
    return f"{svg[: animation.start()]}{animated.replace('</style>', f'{still}</style>', 1)}"
